"""What is served: prompt and answer lengths, service goals, routing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .checks import number, whole
from .errors import InvalidValueError
from .moe_load import SERVED_LOADS, check_load

MAX_CONTEXT = 1 << 27  # 128M tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One traffic pattern.

    Attributes:
        input_tokens: prompt length (ISL).
        output_tokens: answer length (OSL).
        prefix_cache_share: share of the prompt found in the prefix cache, 0 to < 1.
        load: expert routing: ``balanced``, ``uniform_random``, ``power_law_1.01``, ``power_law_1.2`` or a factor >= 1
            (tokens of the most loaded rank over the mean); :mod:`.moe_load` says what each means.
        max_ttft_seconds: service goal on the time to first token; inf = none.
        max_itl_seconds: service goal on the inter-token latency; inf = none.

    Raises:
        InvalidValueError: a rule is broken.
    """

    input_tokens: int = 8192
    output_tokens: int = 1024
    prefix_cache_share: float = 0.0
    load: str | float = "balanced"
    max_ttft_seconds: float = math.inf
    max_itl_seconds: float = math.inf

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            whole(name, getattr(self, name), 1, MAX_CONTEXT)
        if number("prefix_cache_share", self.prefix_cache_share, "at least 0 and below 1", high=1.0) == 1.0:
            raise InvalidValueError("prefix_cache_share must be at least 0 and below 1, got 1; some prompt must be computed")
        for name in ("max_ttft_seconds", "max_itl_seconds"):
            number(name, getattr(self, name), "positive (inf = no goal)", above=True, high=math.inf)
        if not isinstance(check_load(self.load, SERVED_LOADS), str):
            number("load", self.load, "a name or a factor >= 1", low=1.0)

    @property
    def decode_context(self) -> float:
        """Mean context a decode step reads: input + output/2, tokens."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def peak_context(self) -> int:
        """Tokens a sequence holds in the KV cache when it ends: input + output."""
        return self.input_tokens + self.output_tokens
