"""Where the time goes in four regimes: short or long context, throughput or latency (blog Fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...costmodel.architecture import Architecture
from ...costmodel.regimes import four_regimes
from ...costmodel.serving import ServingSetup
from .style import CATEGORY_COLOURS, Plot, Row, new_figure

CONTEXTS = (2048, 131072)  # short and long, tokens a decode step reads


def breakdown_rows(
    architecture: Architecture, setup: ServingSetup, *, contexts: tuple[int, int] = CONTEXTS, allowed: Any = None
) -> list[dict[str, Any]]:
    """Seconds of one decode step by category, in each regime (:func:`shapefront.costmodel.regimes.four_regimes`).

    Args:
        architecture: the design.
        setup: deployment; its workload's lengths are replaced.
        contexts: KV tokens a decode step reads, short then long.
        allowed: layouts the design may use, ``(1, P)``; all when None.
    """
    rows = []
    for regime in four_regimes(architecture, setup, contexts=contexts, allowed=allowed):
        point = regime.point
        layout = ",".join(f"{name}={point[name]}" for name in ("tpa", "kvp", "dpa", "tpf", "ep", "pp") if point[name] > 1)
        for name, share in regime.shares.items():
            rows.append(
                {
                    "context": regime.context,
                    "goal": regime.goal,
                    "category": name,
                    "seconds": float(point["breakdown"][name]),
                    "share": float(share),
                    "layout": layout or "1 GPU",
                    "concurrency": float(point["concurrency"]),
                    "tokens_per_second_per_user": float(point["tokens_per_second_per_user"]),
                    "tokens_per_second_per_gpu": float(point["tokens_per_second_per_gpu"]),
                }
            )
    return rows


def draw_breakdown(rows: Sequence[Row], *, note: str = "") -> Plot:
    """Draw a pie for each regime: columns are contexts, rows are goals."""
    contexts = sorted({row["context"] for row in rows})
    goals = list(dict.fromkeys(row["goal"] for row in rows))
    figure, axes = new_figure((4.6 * len(contexts) + 0.4, 8.4), len(goals), len(contexts), squeeze=False)
    for i, goal in enumerate(goals):
        for j, context in enumerate(contexts):
            _pie(axes[i][j], [row for row in rows if row["goal"] == goal and row["context"] == context])
    figure.suptitle("Where a decode step's time goes" + (f"\n{note}" if note else ""), x=0.02, ha="left", fontsize=13)
    handles = [axes[0][0].bar([0], [0], color=colour, label=name) for name, colour in CATEGORY_COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    return Plot("breakdown", figure, list(rows))


def _pie(axis: Any, rows: Sequence[Row]) -> None:
    axis.grid(False)
    first = rows[0]
    shares = [max(0.0, row["share"]) for row in rows]  # a profile's signed step constant can make "other" negative
    colours = [CATEGORY_COLOURS[row["category"]] for row in rows]
    wedges, _ = axis.pie(
        shares,
        colors=colours,
        startangle=90,
        counterclock=False,
        radius=0.95,
        wedgeprops={"edgecolor": "white", "linewidth": 1.5},
    )
    for wedge, row in zip(wedges, rows, strict=True):
        if row["share"] < 0.02:
            continue
        angle = np.deg2rad((wedge.theta1 + wedge.theta2) / 2)
        inside = row["share"] >= 0.12
        distance = 0.58 if inside else 1.1
        axis.annotate(
            f"{row['share']:.0%}", (distance * np.cos(angle), distance * np.sin(angle)), ha="center", va="center", fontsize=11,
            color="white" if inside and row["category"] in ("gemm", "communication") else "black",
        )  # fmt: skip
    axis.set_title(
        f"{first['context']:,} tokens · {first['goal']}\n{first['tokens_per_second_per_user']:,.0f} tokens/s/user, "
        f"{first['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU\n{first['layout']}",
        fontsize=10,
    )
