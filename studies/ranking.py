"""By what a result is ranked, and the objectives that have no column of their own in its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import Result

AREA = "frontier_area"
# objectives of ours that carry a unit the name does not say
_HEADINGS = {"quality": "quality gain, nats/token"}


def ranking_objective(objectives: Sequence[str], user: Sequence[str]) -> str:
    """What designs are ranked by: the frontier area, or the first user objective where no built-in one is left.

    Args:
        objectives: names of all objectives of a study, in order.
        user: names of the user's own.
    """
    return objectives[0] if objectives and set(objectives) <= set(user) else AREA


def ranked_by(result: Result) -> str:
    """``frontier_area`` or the name of the objective that a result is ranked by."""
    return str(result.data.get("ranked_by", AREA))


def ranked_by_text(result: Result) -> str:
    """What designs are ranked by, in words."""
    name = ranked_by(result)
    return "frontier area" if name == AREA else f"objective {name}, larger first"


def extra_objectives(result: Result) -> list[tuple[str, str]]:
    """(heading, name) of each objective that is no other column of the ranked table: the user's own, quality."""
    rates = [f"tokens_per_second_per_gpu_at_{point['rate']:g}" for point in result.reference["at_rates"]]
    return [(_HEADINGS.get(name, name), name) for name in result.data["objectives"] if name not in (AREA, *rates)]


def differing(rows: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(heading, key) of each column that tells designs apart and is not always shown: family, window, latents, shared experts."""
    found = []
    for heading, key in (
        ("family", "family"),
        ("windowed layers", "num_sliding_window_layers"),
        ("window", "sliding_window"),
        ("KV rank", "kv_lora_rank"),
        ("Q rank", "q_lora_rank"),
        ("shared", "n_shared_experts"),
        ("dense layers", "first_k_dense_replace"),
    ):
        held = rows if key == "family" else [*rows, reference]
        if len({row.get(key) for row in held}) > 1:
            found.append((heading, key))
    return found


def at_concurrency_limit(row: Mapping[str, Any], spec: Mapping[str, Any]) -> list[float]:
    """User rates at which a design's best point has as many sequences in flight as the study allows."""
    limit = (spec.get("concurrency") or {}).get("high")
    if not limit:
        return []
    return [p["rate"] for p in row["at_rates"] if p["concurrency"] is not None and p["concurrency"] >= limit * (1 - 1e-9)]
