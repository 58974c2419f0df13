"""How a search went: hypervolume of the open front over trials and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .style import BLUE, GREY, Plot, Row, new_figure, title


def draw_history(rows: Sequence[Row], *, note: str = "", x: str = "trials") -> Plot:
    """Draw the hypervolume.

    Args:
        rows: dictionaries with ``trials`` (or ``seconds``) and ``hypervolume``, in order.
        note: line under the title.
        x: ``trials`` or ``seconds``.
    """
    figure, axis = new_figure()
    xs, ys = [float(row[x]) for row in rows], [float(row["hypervolume"]) for row in rows]
    axis.step(xs, ys, where="post", color=BLUE, linewidth=1.8)
    if ys:
        axis.axhline(ys[-1], color=GREY, linewidth=0.8, linestyle=":")
        axis.annotate(f"{ys[-1]:.4g}", (xs[-1], ys[-1]), xytext=(-4, -14), textcoords="offset points", ha="right", fontsize=10)
    axis.set_xlabel("Trials" if x == "trials" else "Seconds", fontsize=11)
    axis.set_ylabel("Hypervolume of the open front", fontsize=11)
    axis.set_ylim(bottom=0, top=max(ys, default=1.0) * 1.08)
    axis.set_xlim(left=0)
    title(axis, "What the search has found so far", note)
    return Plot("history", figure, list(rows))


def history_rows(values: Sequence[Sequence[float]], reference: Sequence[float]) -> list[dict[str, Any]]:
    """Hypervolume after each trial.

    Args:
        values: objectives of each trial in order, larger is better; NaN where a trial is not legal.
        reference: the point the volume is measured from.
    """
    import numpy as np

    from ...search.pareto import hypervolume

    points = np.asarray(values, dtype=np.float64)
    corner = np.asarray(reference, dtype=np.float64)
    rows, front, last = [], np.empty((0, points.shape[1])), 0.0
    for index, point in enumerate(points, 1):
        if np.all(np.isfinite(point)) and not np.any(np.all(front >= point, axis=1)):
            front = np.vstack([front[~np.all(front <= point, axis=1)], point])
            last = float(hypervolume(front, corner))
        rows.append({"trials": index, "hypervolume": last})
    return rows
