"""How a search went: hypervolume of the open front over trials and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...search.pareto import hypervolume
from .style import BLUE, GREY, Plot, Row, new_figure, title

if TYPE_CHECKING:
    import optuna


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


def history_rows(study: optuna.Study, corner: Sequence[float], scales: Sequence[float]) -> list[dict[str, Any]]:
    """Hypervolume of the legal trials so far, after each trial, with the seconds since the first one.

    Args:
        study: the record of the search.
        corner: the point the volume is measured from, one value an objective.
        scales: unit of each objective.
    """
    origin, unit = np.asarray(corner, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    rows: list[dict[str, Any]] = []
    front, last, begin = np.empty((0, len(origin))), 0.0, None
    for index, trial in enumerate(study.get_trials(deepcopy=False), 1):
        begin = begin or trial.datetime_start
        if trial.values and all(value <= 0 for value in trial.constraints.values()):
            point = (np.asarray(trial.values) - origin) / unit
            if not np.any(np.all(front >= point, axis=1)):
                front = np.vstack([front[~np.all(front <= point, axis=1)], point])
                last = float(hypervolume(front, np.zeros(len(origin))))
        done = trial.datetime_complete
        rows.append({"trials": index, "seconds": (done - begin).total_seconds() if done and begin else 0.0, "hypervolume": last})
    return rows
