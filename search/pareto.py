"""Pareto fronts and exact hypervolume; every objective is maximised.

Shapes: ``values`` is ``(N, K)``, one row a design, one column an objective. Equal rows do not dominate each other,
so that a front keeps all of them (Optuna's ``best_trials`` does the same).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..costmodel import InvalidValueError
from ..costmodel.checks import LARGEST, as_floats, numbers, whole

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _as_points(values: ArrayLike) -> FloatArray:
    points = as_floats("objective values", values)
    if points.ndim != 2:
        raise InvalidValueError(f"objective values must have shape (designs, objectives), got {points.shape}")
    if np.isnan(points).any():
        raise InvalidValueError("objective values must not be NaN; drop failed designs first")
    return points


def non_dominated(values: ArrayLike) -> IntArray:
    """Positions of the rows that no other row dominates, ascending.

    Row a dominates row b when a >= b in every objective and a > b in one. One and two objectives sort once
    (N log N); more objectives cull against the best remaining row (N times front size).

    Args:
        values: shape ``(N, K)``, larger is better.

    Returns:
        int64 positions, shape ``(F,)``.

    Raises:
        InvalidValueError: not two-dimensional, or a NaN.
    """
    points = _as_points(values)
    if len(points) == 0:
        return np.zeros(0, dtype=np.int64)
    if points.shape[1] == 1:
        return np.flatnonzero(points[:, 0] == points[:, 0].max()).astype(np.int64)
    if points.shape[1] == 2:
        return _non_dominated_2d(points)
    return _non_dominated_cull(points)


def _non_dominated_2d(points: FloatArray) -> IntArray:
    order = np.lexsort((-points[:, 1], -points[:, 0]))  # first objective falling, ties by the second falling
    first, second = points[order, 0], points[order, 1]
    best_before = np.concatenate(([-np.inf], np.maximum.accumulate(second)[:-1]))
    same_as_previous = np.concatenate(([False], (first[1:] == first[:-1]) & (second[1:] == second[:-1])))
    rises = second > best_before
    group = np.maximum.accumulate(np.where(same_as_previous, 0, np.arange(len(order))))  # start of each run of equal rows
    return np.sort(order[rises[group]]).astype(np.int64)


def _non_dominated_cull(points: FloatArray) -> IntArray:
    alive = np.arange(len(points))
    alive = alive[np.argsort(-points.sum(axis=1), kind="stable")]
    kept: list[IntArray] = []
    while len(alive):
        best = points[alive[0]]  # the largest sum that is left: nothing that is left dominates it
        rest = points[alive]
        equal = (rest == best).all(axis=1)
        kept.append(alive[equal])
        alive = alive[(rest > best).any(axis=1)]
    return np.sort(np.concatenate(kept)).astype(np.int64)


def best_layers(values: ArrayLike, at_least: int) -> IntArray:
    """Positions of the first non-dominated layers that together hold ``at_least`` rows (all rows if there are fewer).

    The first layer is the front; the next is the front of what is left, and so on.

    Args:
        values: shape ``(N, K)``.
        at_least: rows wanted.

    Returns:
        int64 positions, ascending.
    """
    points = _as_points(values)
    whole("at_least", at_least, 0, 10**12)
    left = np.arange(len(points))
    taken: list[IntArray] = []
    while len(left) and sum(map(len, taken)) < at_least:
        layer = non_dominated(points[left])
        taken.append(left[layer])
        left = np.delete(left, layer)
    return np.sort(np.concatenate(taken)).astype(np.int64) if taken else np.zeros(0, dtype=np.int64)


def dominated_by(values: ArrayLike, front: ArrayLike, *, strict: bool = False) -> NDArray[np.bool_]:
    """Which rows of ``values`` some row of ``front`` dominates.

    Args:
        values: shape ``(N, K)``.
        front: shape ``(F, K)``.
        strict: true: only where a front row is larger in *every* objective.

    Returns:
        bool, shape ``(N,)``.
    """
    points, edge = _as_points(values), _as_points(front)
    if len(edge) == 0 or len(points) == 0:
        return np.zeros(len(points), dtype=np.bool_)
    if points.shape[1] == 2:
        return _dominated_by_2d(points, edge[non_dominated(edge)], strict)
    out = np.zeros(len(points), dtype=np.bool_)
    step = max(1, 4_000_000 // (len(edge) * points.shape[1]))
    for start in range(0, len(points), step):
        block = points[start : start + step, None, :]
        if strict:
            beats = np.all(edge > block, axis=2)
        else:
            beats = np.all(edge >= block, axis=2) & np.any(edge > block, axis=2)
        out[start : start + step] = np.any(beats, axis=1)
    return out


def _dominated_by_2d(points: FloatArray, edge: FloatArray, strict: bool) -> NDArray[np.bool_]:
    edge = np.unique(edge, axis=0)  # first objective rising, so the second falls
    # first front row with x > p.x (strict) or x >= p.x
    at = np.searchsorted(edge[:, 0], points[:, 0], side="right" if strict else "left")
    inside = at < len(edge)
    row = edge[np.minimum(at, len(edge) - 1)]
    if strict:
        return np.asarray(inside & (row[:, 1] > points[:, 1]))
    better = (row[:, 0] >= points[:, 0]) & (row[:, 1] >= points[:, 1])
    return np.asarray(inside & better & np.any(row != points, axis=1))


def hypervolume(values: ArrayLike, reference_point: ArrayLike) -> float:
    """Exact volume between a front and a reference point (one to three objectives).

    The measure of the union of the boxes [reference, row]. Two objectives: a sweep along the staircase. Three: rows
    by falling third objective, each slab the area of the staircase so far times its height (Beume et al. 2009, IEEE
    TEVC 13(5), section III, with a sorted array in place of a tree).

    Args:
        values: shape ``(N, K)``, K in 1, 2, 3; larger is better; rows not above the reference point add nothing.
        reference_point: shape ``(K,)``.

    Returns:
        The volume, in the product of the objectives' units.

    Raises:
        InvalidValueError: shapes do not match, K > 3, or a NaN.
    """
    points = _as_points(values)
    reference = numbers("the reference point", reference_point, "finite", low=-LARGEST)
    if reference.shape != (points.shape[1],):
        raise InvalidValueError(f"the reference point needs one value per objective: {points.shape[1]}, got {reference.shape}")
    if points.shape[1] > 3:
        raise InvalidValueError(f"hypervolume is exact for one to three objectives, got {points.shape[1]}")
    points = points[(points > reference).all(axis=1)] - reference
    if len(points) == 0:
        return 0.0
    points = points[non_dominated(points)]
    if points.shape[1] == 1:
        return float(points.max())
    return _area(points) if points.shape[1] == 2 else _volume(points)


def _area(points: FloatArray) -> float:
    points = np.unique(points, axis=0)  # x rises, y falls
    widths = np.diff(points[:, 0], prepend=0.0)
    heights = np.maximum.accumulate(points[::-1, 1])[::-1]
    return float(np.sum(widths * heights))


def _volume(points: FloatArray) -> float:
    points = points[np.argsort(-points[:, 2], kind="stable")]
    stairs = np.zeros((0, 2))
    total = area = 0.0
    for i, (x, y, z) in enumerate(points):
        stairs, area = _insert(stairs, area, x, y)
        below = points[i + 1, 2] if i + 1 < len(points) else 0.0
        total += area * (z - below)
    return float(total)


def _insert(stairs: FloatArray, area: float, x: float, y: float) -> tuple[FloatArray, float]:
    """Add a corner to a staircase (x rising, y falling) and return it with its new area."""
    at = int(np.searchsorted(stairs[:, 0], x, side="left"))
    if at < len(stairs) and stairs[at, 1] >= y:
        return stairs, area
    stop = at + 1 if at < len(stairs) and stairs[at, 0] == x else at
    start = at - int(np.searchsorted(stairs[:at, 1][::-1], y, side="right"))  # steps to the left that are not higher
    gone = stairs[start:stop]
    left = stairs[start - 1, 0] if start else 0.0
    floor = stairs[stop, 1] if stop < len(stairs) else 0.0
    edges = np.concatenate(([left], gone[:, 0], [x]))
    heights = np.concatenate((gone[:, 1], [floor]))
    area += float(np.sum(np.diff(edges) * (y - heights)))
    return np.concatenate((stairs[:start], [[x, y]], stairs[stop:])), area


@dataclass(slots=True)
class Front:
    """A front that grows block by block and always equals the front of everything shown to it.

    Attributes:
        objectives: number of objectives K.
        ids: design ids of the members, in order of arrival, shape ``(F,)``.
        values: their objectives, shape ``(F, K)``.
    """

    objectives: int
    ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.values = np.zeros((0, self.objectives))

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: ArrayLike, values: ArrayLike) -> bool:
        """Merge a block of designs; returns whether the front changed.

        Args:
            ids: shape ``(N,)``.
            values: shape ``(N, K)``.
        """
        new_ids, points = np.asarray(ids, dtype=np.int64), _as_points(values)
        keep = ~dominated_by(points, self.values) if len(self.ids) else np.ones(len(points), dtype=np.bool_)
        if not keep.any():
            return False
        all_ids = np.concatenate((self.ids, new_ids[keep]))
        all_values = np.concatenate((self.values, points[keep]))
        front = non_dominated(all_values)
        changed = bool((front >= len(self.ids)).any())
        self.ids, self.values = all_ids[front], all_values[front]
        return changed
