"""Rate of the FFN's products over (H, H′): where a design's dimensions sit between the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...costmodel.gemm import gemm_seconds
from ...costmodel.profile import DEFAULT_PROFILE
from .style import Plot, new_figure, title


def alignment_rows(
    hidden: Sequence[int],
    inner: Sequence[int],
    *,
    tokens: int = 4096,
    gated: bool = True,
    format: str = "nvfp4",
    profile: str = DEFAULT_PROFILE,
) -> list[dict[str, Any]]:
    """FLOP/s of one FFN (gate-up and down together) at each pair.

    Args:
        hidden: values of H.
        inner: values of H′ (the width on one GPU).
        tokens: rows of the products, M.
        gated: gate and up fused (N = 2H′).
        format: number format.
        profile: kernel profile.
    """
    h, i = np.meshgrid(np.asarray(hidden), np.asarray(inner), indexing="ij")
    up = (2 if gated else 1) * i
    seconds = gemm_seconds(tokens, up, h, format=format, profile=profile) + gemm_seconds(
        tokens, h, i, format=format, profile=profile
    )
    rate = 2.0 * tokens * h * (up + i) / seconds
    return [
        {
            "hidden_size": int(a),
            "inner_size": int(b),
            "flop_per_second": float(r),
            "aligned_256": bool(a % 256 == 0 and b % 256 == 0),
        }
        for a, b, r in zip(h.ravel(), i.ravel(), rate.ravel(), strict=True)
    ]


def draw_alignment(rows: Sequence[dict[str, Any]], *, designs: Sequence[tuple[str, int, int]] = (), note: str = "") -> Plot:
    """Draw the map; ``designs`` are (name, H, H′) to mark."""
    hidden = sorted({row["hidden_size"] for row in rows})
    inner = sorted({row["inner_size"] for row in rows})
    grid = np.array([row["flop_per_second"] for row in rows]).reshape(len(hidden), len(inner)) / 1e15
    figure, axis = new_figure((9.6, 6.0))
    axis.grid(False)
    mesh = axis.pcolormesh(inner, hidden, grid, cmap="cividis", shading="nearest")
    bar = figure.colorbar(mesh, ax=axis, pad=0.02)
    bar.set_label("FFN rate on one GPU, PFLOP/s", fontsize=11)
    for index, (name, h, i) in enumerate(designs):
        if hidden[0] <= h <= hidden[-1] and inner[0] <= i <= inner[-1]:
            axis.scatter(i, h, marker="o", s=80, facecolor="white", edgecolor="black", linewidth=1.6, zorder=4)
            axis.annotate(
                name, (i, h), xytext=(8, 8 if index % 2 == 0 else -14), textcoords="offset points", fontsize=9, zorder=5,
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
            )  # fmt: skip
    axis.set_xlabel("H′ on one GPU (FFN or expert width)", fontsize=11)
    axis.set_ylabel("Hidden size H", fontsize=11)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    title(axis, "Where tiles are full: FFN rate over H and H′", note)
    return Plot("alignment", figure, list(rows))
