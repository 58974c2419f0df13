"""How published tables were run (``data/serving/protocols.toml``): requests of the job, pass size, expert kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..hardware import data_directory, read_toml


@dataclass(frozen=True, slots=True)
class Protocol:
    """One benchmark procedure.

    Attributes:
        prefix: ids of the figures that were run so begin with it.
        requests: requests of a job by (prompt tokens, answer tokens).
        max_tokens: tokens of one pass of an attention rank.
        expert_kernel: back end of the experts.
    """

    prefix: str
    requests: Mapping[tuple[int, int], int]
    max_tokens: int
    expert_kernel: str


@lru_cache(maxsize=1)
def protocols() -> tuple[Protocol, ...]:
    """Every known procedure."""
    found = read_toml(data_directory("serving") / "protocols.toml").values()
    return tuple(
        Protocol(p["prefix"], {(i, o): n for i, o, n in p["requests"]}, p["max_tokens"], p["expert_kernel"]) for p in found
    )


def protocol_of(figure: str) -> Protocol | None:
    """The procedure of a figure, by its id; ``None`` where none is known."""
    return next((p for p in protocols() if figure.startswith(p.prefix)), None)
