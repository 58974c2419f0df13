"""Tile quantisation: throughput over a fine sweep of N with one forced tile (blog Fig. 5), the user's dimensions marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...costmodel.gemm import gemm_seconds
from .style import BLUE, GREEN, VERMILION, Plot, new_figure, title

M, K = 8192, 8192
TILE = (256, 128, 2, 4)  # 256x128 tiles, clusterMMA pairs along M, a 4x2 cooperative grid array: 512x512 on 8 SMs
LOW, HIGH = 2048, 6144


def sawtooth_rows(
    *, profile: str = "gb300-blog", format: str = "nvfp4", low: int = LOW, high: int = HIGH, step: int = 32, tile: Any = TILE
) -> list[dict[str, Any]]:
    """FLOP/s at each N from ``low`` to ``high``; ``multiple`` is the largest of 512, 256, 128, 64 that divides N."""
    n = np.arange(low, high + 1, step)
    rate = 2.0 * M * n * K / gemm_seconds(M, n, K, format=format, profile=profile, tile=tile)
    return [
        {
            "n": int(size),
            "flop_per_second": float(value),
            "multiple": next((step_ for step_ in (512, 256, 128, 64) if size % step_ == 0), 0),
        }
        for size, value in zip(n, rate, strict=True)
    ]


def sweep_range(marks: Mapping[str, int]) -> tuple[int, int]:
    """N to sweep so that the marks up to 8192 lie inside, in whole steps of 512."""
    near = [size for size in marks.values() if size <= 8192]
    low = min([LOW, *(size - 512 for size in near)])
    high = max([HIGH, *(size + 512 for size in near)])
    return max(512, low // 512 * 512), -(-high // 512) * 512


def draw_sawtooth(rows: Sequence[dict[str, Any]], *, marks: Mapping[str, int] | None = None, note: str = "") -> Plot:
    """Draw the sweep.

    Args:
        rows: from :func:`sawtooth_rows`.
        marks: name → N of a design's products; those outside the sweep are left out.
        note: line under the title.
    """
    figure, axis = new_figure()
    n = np.array([row["n"] for row in rows])
    rate = np.array([row["flop_per_second"] for row in rows]) / 1e15
    axis.plot(n, rate, color=BLUE, linewidth=1.4, zorder=2)
    for multiple, colour, marker in ((512, GREEN, "o"), (256, VERMILION, "s")):
        at = np.array([row["multiple"] for row in rows]) == multiple
        label = "multiple of 512" if multiple == 512 else "multiple of 256, not of 512"
        axis.scatter(n[at], rate[at], color=colour, marker=marker, s=30, zorder=3, label=label)
    bottom, top = float(rate.min()), float(rate.max())
    names: dict[int, list[str]] = {}
    for name, size in (marks or {}).items():
        if n[0] <= size <= n[-1]:
            names.setdefault(size, []).append(name)
    for index, size in enumerate(sorted(names)):
        value = float(np.interp(size, n, rate))
        floor = bottom - (top - bottom) * (0.1 + 0.22 * (index % 2))
        axis.annotate(
            "\n".join([*names[size], f"{size:,}"]), (size, value), xytext=(size, floor), ha="center", va="top", fontsize=9,
            arrowprops={"arrowstyle": "->", "color": "black", "linewidth": 1.0},
        )  # fmt: skip
    axis.set_xlim(n[0], n[-1])
    axis.set_ylim(bottom - (top - bottom) * (0.6 if names else 0.1), top + (top - bottom) * 0.06)
    axis.set_xlabel(f"GEMM-N (M = {M}, K = {K}; tile 256×128, clusterMMA, 4×2 CGA: 512×512 on 8 SMs)", fontsize=11)
    axis.set_ylabel("Throughput, PFLOP/s", fontsize=11)
    axis.set_xticks(range(int(n[0]), int(n[-1]) + 1, 512 if n[-1] - n[0] <= 6144 else 1024))
    title(axis, "Partly filled tiles still take a full tile's time", note)
    figure.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)
    return Plot("sawtooth", figure, list(rows))
