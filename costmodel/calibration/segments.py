"""Piecewise latency + bytes/bandwidth: the regimes of a collective over message size, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_REGIMES = 4
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
        (size.size * np.log(b[count][0] / size.size + 1e-5) + (3 * r - 1) * np.log(size.size), b[count][1])
        for r, b in enumerate(best)
        if r and count in b
    ]
    starts = min(ranked)[1]
    found = []
    for i, j in zip(starts, (*starts[1:], count), strict=True):
        latency, slope, _ = lines[i, j]
        knee = 0.0 if i == 0 else float(np.sqrt(size[edges[i]] * size[edges[i] - 1]))
        found.append(Segment(knee, latency, ideal_seconds_per_byte / slope))
    return found


def _line(size: Floats, seconds: Floats, least_slope: float) -> tuple[float, float, float]:
    """Latency >= 0 and slope >= ``least_slope`` of the least relative squares; cost in squared log error."""
    weight = 1 / seconds
    design = np.stack([weight, size * weight], 1)
    solution, *_ = np.linalg.lstsq(design / np.linalg.norm(design, axis=0), np.ones(size.size), rcond=None)
    latency, slope = solution / np.linalg.norm(design, axis=0)
    if slope < least_slope:
        slope = least_slope
        latency = float(np.sum(weight * (1 - slope * size * weight)) / np.sum(weight**2))
    if latency < 0:
        latency = 0.0
        slope = max(float(np.sum(size * weight) / np.sum((size * weight) ** 2)), least_slope)
    latency = max(float(latency), 1e-9)
    return latency, float(slope), float(np.sum(np.log((latency + slope * size) * weight) ** 2))
