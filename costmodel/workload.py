"""What is served: prompt and answer lengths, service goals, routing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InvalidValueError

MAX_CONTEXT = 1 << 27  # 128M tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One traffic pattern.

    Attributes:
        input_tokens: prompt length (ISL).
        output_tokens: answer length (OSL).
        prefix_cache_share: share of the prompt found in the prefix cache, 0 to < 1.
        load: expert routing: ``balanced``, ``power_law_1.01``, ``power_law_1.2`` or a factor >= 1
            (tokens of the most loaded rank over the mean).
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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONTEXT:
                raise InvalidValueError(f"{name} must be a whole number from 1 to {MAX_CONTEXT}, got {value!r:.40}")
        if not 0 <= self.prefix_cache_share < 1:
            raise InvalidValueError(f"prefix_cache_share must be at least 0 and below 1, got {self.prefix_cache_share}")
        for name in ("max_ttft_seconds", "max_itl_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"{name} must be positive, got {getattr(self, name)}")
        if isinstance(self.load, str):
            if self.load not in ("balanced", "power_law_1.01", "power_law_1.2"):
                raise InvalidValueError(
                    f"load must be balanced, power_law_1.01, power_law_1.2 or a factor >= 1, got {self.load!r:.40}"
                )
        elif not 1 <= self.load < 1e6:
            raise InvalidValueError(f"a load factor must be at least 1 and below 1e6, got {self.load}")

    @property
    def decode_context(self) -> float:
        """Mean context a decode step reads: input + output/2, tokens."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def peak_context(self) -> int:
        """Tokens a sequence holds in the KV cache when it ends: input + output."""
        return self.input_tokens + self.output_tokens
