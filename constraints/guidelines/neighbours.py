"""Compliant neighbours of a design: what a guideline prices a departure against."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...costmodel.architecture import MAX_DIMENSION, Architecture
from ...costmodel.batch import ArchitectureBatch
from ...costmodel.errors import InvalidValueError
from ..equal_quality import equal_quality_violations

STEP = 128


def try_with(design: Architecture, **changes: int) -> Architecture | None:
    """The changed design, None where the change breaks a rule of architectures."""
    try:
        return design.with_(**changes)
    except InvalidValueError:
        return None


def with_dimension(design: Architecture, dimension: str, value: int) -> Architecture | None:
    """The design with one dimension changed; shared experts as wide as the routed ones stay so."""
    changes = {dimension: value}
    if dimension == "moe_intermediate_size" and design.shared_expert_intermediate_size == design.moe_intermediate_size:
        changes["shared_expert_intermediate_size"] = value
    return try_with(design, **changes)


def around(
    design: Architecture, dimension: str, multiple: int, ok: Callable[[int], bool] | None = None
) -> tuple[Architecture, Architecture, Architecture] | None:
    """The neighbours below and above whose ``dimension`` is a multiple, and the nearer of the two (the lower at a tie).

    Below the first multiple both are taken above, so that a line through them can still be drawn.

    Args:
        design: a design whose dimension is not compliant.
        dimension: field name.
        multiple: what the dimension must be a multiple of.
        ok: further condition on the value.
    """
    value = getattr(design, dimension)

    def seek(start: int, step: int) -> Architecture | None:
        for candidate in range(start, start + step * 64, step):
            if not 0 < candidate <= MAX_DIMENSION:
                return None
            if ok is None or ok(candidate):
                changed = with_dimension(design, dimension, candidate)
                if changed is not None:
                    return changed
        return None

    below = value // multiple * multiple
    low, high = seek(below, -multiple), seek(below + multiple, multiple)
    if high is None:
        return None
    if low is None:
        upper = seek(getattr(high, dimension) + multiple, multiple)
        return None if upper is None else (high, upper, high)
    distances = [abs(getattr(d, dimension) - value) for d in (low, high)]
    return low, high, low if distances[0] <= distances[1] else high


def merged_experts(design: Architecture, width: int) -> Architecture | None:
    """The design with fewer, wider experts of at least ``width``, total and active parameters kept.

    E, k and H′e scale by one factor: E/f experts, k/f of them used, f·H′e wide. The factor is the smallest common divisor of E
    and k that reaches the width; where none divides both, k and E are rounded and H′e follows k. Shared experts stay as they are.

    Returns:
        None where even one expert per token is narrower.
    """
    k, experts, own = design.num_experts_per_tok, design.num_experts, design.moe_intermediate_size
    shared = design.shared_expert_intermediate_size
    for factor in range(2, k + 1):
        if k % factor == 0 and experts % factor == 0 and own * factor >= width:
            return try_with(
                design,
                num_experts=experts // factor,
                num_experts_per_tok=k // factor,
                moe_intermediate_size=own * factor,
                shared_expert_intermediate_size=shared,
            )
    for fewer in range(k - 1, 0, -1):
        wider = round(k * own / fewer / STEP) * STEP
        if wider >= width:
            count = max(fewer, round(experts * own / wider))
            return try_with(design, num_experts=count, num_experts_per_tok=fewer, moe_intermediate_size=wider)
    return None


def same_expert_weights(design: Architecture, width: int) -> Architecture | None:
    """The design with experts of another width and E and k scaled so that E·H′e and k·H′e stay.

    Returns:
        None where E (a multiple of what it shares with 8) or k would not come out whole within half a percent.
    """
    ratio = design.moe_intermediate_size / width
    k, unit = round(design.num_experts_per_tok * ratio), math.gcd(design.num_experts, 8)
    experts = round(design.num_experts * ratio / unit) * unit
    if k < 1 or experts < k:
        return None
    off = max(abs(k / (design.num_experts_per_tok * ratio) - 1), abs(experts / (design.num_experts * ratio) - 1))
    if off > 0.005:
        return None
    return try_with(design, moe_intermediate_size=width, num_experts=experts, num_experts_per_tok=k)


def changes(design: Architecture, fixed: Architecture) -> dict[str, int]:
    """Dimension → new value, for the dimensions in which ``fixed`` differs."""
    names = ArchitectureBatch.__slots__[1:]
    return {name: getattr(fixed, name) for name in names if getattr(fixed, name) != getattr(design, name)}


def _grid(design: Architecture, hidden: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Depths, head counts and expert counts around a rescaling of the design to each hidden size, one row a combination."""
    ratio = hidden / design.hidden_size
    group = design.num_key_value_heads if design.attention == "gqa" else 8
    groups = np.maximum(1, np.round(design.num_attention_heads * ratio / group)).astype(np.int64)
    depth = np.maximum(2, np.round(design.num_hidden_layers / ratio**2)).astype(np.int64)
    axes = [np.arange(hidden.size), np.arange(-1, 2), np.arange(-4, 5)]
    if design.num_experts:
        axes += [
            np.arange(max(1, design.num_experts_per_tok // 2), design.num_experts_per_tok + 4),
            np.array([1.0, 0.96, 0.92, 0.88, 0.84]),
        ]
    size, more_heads, more_layers, *expert_axes = (a.ravel() for a in np.meshgrid(*axes, indexing="ij"))
    columns = {
        "hidden_size": hidden[size],
        "num_attention_heads": np.maximum(groups[size] + more_heads, 1) * group,
        "num_hidden_layers": depth[size] + more_layers,
    }
    if design.num_experts:
        k, density = expert_axes
        experts = np.floor(k * density * design.num_experts / design.num_experts_per_tok / 8).astype(np.int64) * 8
        columns |= {"num_experts_per_tok": k, "num_experts": experts}
        rows = experts >= k
    else:
        rows = np.ones(size.shape, dtype=bool)
    rows &= columns["num_hidden_layers"] >= 2
    return {name: column[rows] for name, column in columns.items()}


@lru_cache(maxsize=256)
def reshaped(design: Architecture, smallest: int, largest: int) -> ArchitectureBatch | None:
    """Designs of equal total and active parameters (within 1 %) whose hidden size lies between the bounds.

    At equal quality with the design (see :mod:`shapefront.constraints.equal_quality`) but for the shape penalty.

    Heads scale with the hidden size, the FFN or expert width solves the total on a lattice of 128, KV heads are kept, E/k is
    kept or up to a sixth lower (never sparser); windowed and leading layers scale with the depth.

    Args:
        design: the design to rescale.
        smallest: least hidden size.
        largest: greatest hidden size.

    Returns:
        the designs, None where there is none.
    """
    hidden = np.arange(-(-smallest // STEP) * STEP, largest + 1, STEP, dtype=np.int64)
    if not hidden.size:
        return None
    grid = _grid(design, hidden)
    rows = grid["hidden_size"].size
    values = {name: getattr(design, name) for name in ArchitectureBatch.__slots__ if name != "kind"}
    columns = {name: np.full(rows, value, dtype=np.int64) for name, value in values.items()} | grid
    share = columns["num_hidden_layers"] / design.num_hidden_layers
    for name in ("num_sliding_window_layers", "first_k_dense_replace"):
        columns[name] = np.minimum(np.round(getattr(design, name) * share).astype(np.int64), columns["num_hidden_layers"] - 1)
    columns["sliding_window"] = np.where(columns["num_sliding_window_layers"] > 0, design.sliding_window, 0)
    solved = "moe_intermediate_size" if design.num_experts else "intermediate_size"
    follows = design.n_shared_experts and design.shared_expert_intermediate_size == design.moe_intermediate_size

    def build(width: NDArray[np.int64]) -> ArchitectureBatch:
        columns[solved] = width
        if follows:
            columns["shared_expert_intermediate_size"] = width
        return ArchitectureBatch.from_arrays(design.kind, **columns)

    ones = np.ones(rows, dtype=np.int64)
    first, second = build(ones * 1024).total_params, build(ones * 2048).total_params
    slope = (second - first) / 1024
    width = np.round((design.total_params - first + slope * 1024) / np.maximum(slope, 1) / STEP).astype(np.int64) * STEP
    inside = (width >= STEP) & (width <= MAX_DIMENSION)
    if not inside.any():
        return None
    columns = {name: column[inside] for name, column in columns.items()}
    batch = build(width[inside])
    near = np.abs(batch.total_params / design.total_params - 1) <= 0.01
    near &= np.abs(batch.active_params / design.active_params - 1) <= 0.01
    # nothing but the shape penalty may be given up (it is judged by the caller); the counts are held above
    judged = ("total_params", "active_params", "delta_loss_shape")
    for name, value in equal_quality_violations(batch, design).items():
        if not name.startswith(judged):
            near &= value <= 0
    return batch.take(np.flatnonzero(near)) if near.any() else None
