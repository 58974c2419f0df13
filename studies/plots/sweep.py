"""Throughput of one product against its K and its N (blog Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...costmodel.gemm import gemm_seconds
from .style import BLUE, GREY, VERMILION, Plot, new_figure

M, N_FIXED, K_FIXED = 8192, 9728, 8448  # the blog's Fig. 4
LARGEST = 16384


def sweep_rows(*, profile: str = "gb300-blog", format: str = "nvfp4", step: int = 256) -> list[dict[str, Any]]:
    """FLOP/s over K at N = 9728 and over N at K = 8448, M = 8192; ``share`` is of the sweep's maximum."""
    sizes = np.arange(256, LARGEST + 1, step)
    rows = []
    for dimension, n, k in (("K", np.full_like(sizes, N_FIXED), sizes), ("N", sizes, np.full_like(sizes, K_FIXED))):
        rate = 2.0 * M * n * k / gemm_seconds(M, n, k, format=format, profile=profile)
        for size, value in zip(sizes, rate, strict=True):
            rows.append(
                {"dimension": dimension, "size": int(size), "flop_per_second": float(value), "share": float(value / rate.max())}
            )
    return rows


def threshold(rows: Sequence[dict[str, Any]], dimension: str, share: float = 0.8) -> int:
    """The first size from which on the sweep stays at or above ``share`` of its maximum."""
    sizes = [row for row in rows if row["dimension"] == dimension]
    below = [index for index, row in enumerate(sizes) if row["share"] < share]
    return int(sizes[below[-1] + 1]["size"]) if below else int(sizes[0]["size"])


def draw_sweep(rows: Sequence[dict[str, Any]], *, note: str = "", marks: Sequence[int] = ()) -> Plot:
    """Draw both sweeps; ``marks`` are sizes of a design to mark."""
    figure, axes = new_figure((11, 4.8), 1, 2, sharey=True)
    for axis, dimension, other in zip(axes, ("K", "N"), (f"N = {N_FIXED}", f"K = {K_FIXED}"), strict=True):
        part = [row for row in rows if row["dimension"] == dimension]
        sizes = [row["size"] for row in part]
        axis.plot(sizes, [row["flop_per_second"] / 1e15 for row in part], color=BLUE, linewidth=1.8)
        at = threshold(rows, dimension)
        axis.axvline(at, color=VERMILION, linewidth=1.2, linestyle=(0, (4, 2)))
        axis.annotate(f"80 % from {at:,}", (at, 0.06), xycoords=("data", "axes fraction"), xytext=(5, 0),
                      textcoords="offset points", fontsize=10, color=VERMILION)  # fmt: skip
        for mark in marks:
            axis.axvline(mark, color=GREY, linewidth=0.9, linestyle=":")
        axis.set_xlim(0, LARGEST)
        axis.set_ylim(bottom=0)
        axis.set_xlabel(f"GEMM-{dimension} (M = {M}, {other})", fontsize=11)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_xticks(range(0, LARGEST + 1, 4096))
    axes[0].set_ylabel("Throughput, PFLOP/s", fontsize=11)
    figure.get_layout_engine().set(w_pad=0.2)
    figure.suptitle("A small K or N leaves the GPU idle" + (f"\n{note}" if note else ""), x=0.01, ha="left", fontsize=12)
    return Plot("sweep", figure, list(rows))
