"""One forward pass of all layers over architectures x layouts x loads, as tables of distinct work and their gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .step_communication import exchange, local_communication
from .step_options import StepOptions
from .step_parts import dense_ffn, local_gemms, local_other, routed_experts
from .step_plan import Keyed, StepPlan

FloatArray = NDArray[np.float64]
CATEGORIES = ("gemm", "attention", "communication", "other")
HEAD_PARTS = ("head_gemm", "head_elementwise", "head_gather")
_CACHE_POINTS = 1 << 16  # points of one chunk: a (A, P, C) array of 512 KiB; measured faster than 256 KiB and 1 MiB
# (designs, key, options) → part → seconds of all layers on the key's distinct work; names ending in _gemm are products
AttentionKernel = Callable[[ArchitectureBatch, Keyed, StepOptions], dict[str, FloatArray]]


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Seconds of one part on its distinct work, ``(A, U)``, with the key that spreads it over the grid."""

    key: Keyed
    seconds: FloatArray
    category: str


def chunks(count: int, points: int) -> Iterator[slice]:
    """Slices of the architecture axis whose grids fit the cache."""
    size = max(1, _CACHE_POINTS // max(points, 1))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def tables(b: ArchitectureBatch, plan: StepPlan, attention: AttentionKernel, options: StepOptions) -> dict[str, Table]:
    """Every part of the pass on its distinct work, all layers together, before any overlap."""
    found: dict[str, Table] = {}
    for name, seconds in local_gemms(b, plan.local, options).items():
        found[name] = Table(plan.local, seconds, "gemm")
    for name, seconds in attention(b, plan.attention, options).items():
        found[name] = Table(plan.attention, seconds, "gemm" if name.endswith("_gemm") else "attention")
    gemm, activation = dense_ffn(b, plan.dense, options, shared=False)
    found["dense_ffn_gemm"] = Table(plan.dense, gemm, "gemm")
    if b.kind.moe:
        shared, shared_activation = dense_ffn(b, plan.shared, options, shared=True)
        found["shared_expert_gemm"] = Table(plan.shared, shared, "gemm")
        found["expert_gemm"] = Table(plan.experts, routed_experts(b, plan.experts, options), "gemm")
        found["shared_expert_elementwise"] = Table(plan.shared, shared_activation, "other")
    found["activation_elementwise"] = Table(plan.dense, activation, "other")
    for name, seconds in local_other(b, plan.local, options).items():
        found[name] = Table(plan.local, seconds, "other")
    for name, seconds in {**local_communication(b, plan.local, options), **exchange(b, plan.exchange, options)}.items():
        key = plan.local if name in ("head_gather", "kv_all_to_all") else plan.exchange
        found[name] = Table(key, seconds, "communication")
    return found


def gather_category(found: Mapping[str, Table], category: str, points: int, *, only: tuple[str, ...] = ()) -> FloatArray:
    """Sum of a category's tables over the grid, ``(A, P * C)``: tables of one key are added before they are spread."""
    by_key: dict[int, tuple[Keyed, FloatArray]] = {}
    for name, table in found.items():
        if table.category != category or (only and name not in only):
            continue
        mark = id(table.key)
        by_key[mark] = (table.key, by_key[mark][1] + table.seconds) if mark in by_key else (table.key, table.seconds)
    total: FloatArray | None = None
    for key, seconds in by_key.values():
        spread = key.gather(seconds)
        total = spread if total is None else np.add(total, spread, out=total)
    if total is None:
        rows = next(iter(found.values())).seconds.shape[0]
        return np.zeros((rows, points))
    return total


def hidden_shared_expert(found: Mapping[str, Table], share: float) -> FloatArray | None:
    """Seconds of the shared expert that run beside the routed experts: share · min(shared, routed)."""
    if not share or "shared_expert_gemm" not in found:
        return None
    shared, routed = found["shared_expert_gemm"], found["expert_gemm"]
    return share * np.minimum(shared.key.gather(shared.seconds), routed.key.gather(routed.seconds))


def shown_communication(out: FloatArray, overlap: float) -> FloatArray | float:
    """Share of the communication that shows: 1 - min(overlap, rest/communication), ``(A, P * C)`` or 1.

    What is hidden runs beside the pass's other work (two microbatches in turn), so there is never more of it than of
    that work: with ``overlap`` 1 a pass takes max(communication, rest).

    Args:
        out: seconds of each category, ``(4, A, P * C)``, nothing hidden yet.
        overlap: share of the communication that a stack hides where there is work enough, [0, 1].
    """
    if not overlap:
        return 1.0
    rest = out[0] + out[1] + out[3]
    return np.asarray(1.0 - np.minimum(overlap, rest / np.maximum(out[2], 1e-30)))


def fill_pass(
    b: ArchitectureBatch, plan: StepPlan, attention: AttentionKernel, options: StepOptions, out: FloatArray
) -> tuple[dict[str, Table], FloatArray | float]:
    """Fill ``out`` of shape ``(4, A, P * C)`` with the seconds of each category; overlaps applied, no pipeline, no host.

    Returns:
        the tables it was gathered from, and the share of the communication that shows.
    """
    found = tables(b, plan, attention, options)
    for index, category in enumerate(CATEGORIES):
        out[index] = gather_category(found, category, out.shape[2])
    hidden = hidden_shared_expert(found, options.step.shared_expert_overlap)
    if hidden is not None:
        out[0] -= hidden
    shown = shown_communication(out, options.step.overlap)
    out[2] *= shown
    return found, shown


def price_pass(b: ArchitectureBatch, plan: StepPlan, attention: AttentionKernel, options: StepOptions) -> FloatArray:
    """Categories of one pass of all layers, ``(4, A, P, C)``, in cache-sized chunks of designs."""
    points = plan.shape[0] * plan.shape[1]
    out = np.empty((4, len(b), points))
    for piece in chunks(len(b), points):
        fill_pass(b.take(piece), plan, attention, options, out[:, piece])
    return out.reshape(4, len(b), *plan.shape)
