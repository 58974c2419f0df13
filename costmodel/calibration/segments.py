"""Piecewise latency + bytes/bandwidth: the regimes of a collective over message size, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_REGIMES = 4
_NOISE = 0.01  # relative repeatability of the tables, below which more regimes explain nothing
_SOFT, _REWEIGHTINGS = 0.05, 4
_MIN_SIZES = 3  # distinct message sizes in one regime


@dataclass(frozen=True)
class Segment:
    """One regime.

    Attributes:
        knee: message size above which it rules, B (0 for the first).
        latency: fixed time, s.
        efficiency: share of the ideal rate, in (0, 1].
    """

    knee: float
    latency: float
    efficiency: float


def fit_segments(size: Floats, seconds: Floats, ideal_seconds_per_byte: float) -> list[Segment]:
    """Regimes that explain the measured times best, their number chosen by BIC.

    Args:
        size: message size per row, B.
        seconds: measured time per row, s.
        ideal_seconds_per_byte: of the best algorithm on the bare link; no regime may be faster.
    """
    order = np.argsort(size, kind="stable")
    size, seconds = size[order], seconds[order]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(size)) + 1, [size.size]])  # rows of equal size stay together
    count = len(edges) - 1
    lines: dict[tuple[int, int], tuple[float, float, float]] = {}
    for i in range(count):
        for j in range(i + min(_MIN_SIZES, count), count + 1):
            lines[i, j] = _line(size[edges[i] : edges[j]], seconds[edges[i] : edges[j]], ideal_seconds_per_byte)
    best: list[dict[int, tuple[float, tuple[int, ...]]]] = [{0: (0.0, ())}]
    for _ in range(MAX_REGIMES):
        step: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (i, j), (_a, _b, cost) in lines.items():
            if i in best[-1]:
                total = best[-1][i][0] + cost
                if j not in step or total < step[j][0]:
                    step[j] = total, (*best[-1][i][1], i)
        best.append(step)
    ranked = [
        (size.size * np.log(b[count][0] / size.size + _NOISE**2) + (3 * r - 1) * np.log(size.size), b[count][1])
        for r, b in enumerate(best)
        if r and count in b
    ]
    starts = min(ranked)[1]
    found: list[Segment] = []
    slope_before = 0.0
    for i, j in zip(starts, (*starts[1:], count), strict=True):
        latency, slope, _ = lines[i, j]
        knee = 0.0
        if found:
            knee = _knee(float(size[edges[i] - 1]), float(size[edges[i]]), found[-1].latency, slope_before, latency, slope)
        found.append(Segment(knee, latency, ideal_seconds_per_byte / slope))
        slope_before = slope
    return found


def _knee(last: float, first: float, latency: float, slope: float, next_latency: float, next_slope: float) -> float:
    """Where one regime gives way: the lines' crossing if it lies between the sizes, else halfway (in log) for a jump."""
    if slope > next_slope:
        crossing = (next_latency - latency) / (slope - next_slope)
        if last <= crossing <= first:
            return crossing
        if crossing < last:
            return last
    return float(np.sqrt(last * first))


def _line(size: Floats, seconds: Floats, least_slope: float) -> tuple[float, float, float]:
    """Latency > 0 and slope >= ``least_slope`` of the least relative deviations (reweighted squares); their cost."""
    weight = 1 / seconds
    for _ in range(_REWEIGHTINGS):
        latency, slope = _weighted_line(size, seconds, weight, least_slope)
        deviation = np.abs(np.log((latency + slope * size) / seconds))
        weight = 1 / (seconds * np.sqrt(np.maximum(deviation, 2 * _NOISE)))
    # soft-L1 on log time: a bad row counts by its size, not by its square
    loss = 2 * _SOFT**2 * (np.sqrt(1 + (deviation / _SOFT) ** 2) - 1)
    return latency, slope, float(np.sum(loss))


def _weighted_line(size: Floats, seconds: Floats, weight: Floats, least_slope: float) -> tuple[float, float]:
    design = np.stack([weight, size * weight], 1)
    scale = np.linalg.norm(design, axis=0)
    solution, *_ = np.linalg.lstsq(design / scale, seconds * weight, rcond=None)
    latency, slope = (float(x) for x in solution / scale)
    square = weight**2
    if slope < least_slope:
        slope = least_slope
        latency = float(np.sum(square * (seconds - slope * size)) / np.sum(square))
    if latency < 0:
        slope = max(float(np.sum(square * size * seconds) / np.sum(square * size**2)), least_slope)
    return max(latency, 1e-9), slope
