"""How a search went: hypervolume of the open front over trials and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...search.pareto import hypervolume
from .style import BLUE, GREY, Plot, Row, new_figure

if TYPE_CHECKING:
    import optuna


def draw_history(rows: Sequence[Row], *, note: str = "") -> Plot:
    """Draw the hypervolume over trials and over time.

    Args:
        rows: dictionaries with ``trials``, ``seconds`` and ``hypervolume``, in order (:func:`history_rows`).
        note: line under the title.
    """
    figure, axes = new_figure((11, 4.8), 1, 2, sharey=True)
    ys = [float(row["hypervolume"]) for row in rows]
    for axis, key, label in zip(axes, ("trials", "seconds"), ("Trials", "Seconds since the first trial"), strict=True):
        xs = [float(row[key]) for row in rows]
        axis.step(xs, ys, where="post", color=BLUE, linewidth=1.8)
        if ys:
            axis.axhline(ys[-1], color=GREY, linewidth=0.8, linestyle=":")
        axis.set_xlabel(label, fontsize=11)
        axis.set_xlim(left=0)
    if ys:
        axes[0].annotate(
            f"{ys[-1]:.4g}",
            (float(rows[-1]["trials"]), ys[-1]),
            xytext=(-4, -14),
            textcoords="offset points",
            ha="right",
            fontsize=10,
        )
    axes[0].set_ylabel("Hypervolume of the open front", fontsize=11)
    axes[0].set_ylim(bottom=0, top=max(ys, default=1.0) * 1.08)
    figure.suptitle("What the search has found so far" + (f"\n{note}" if note else ""), x=0.01, ha="left", fontsize=12)
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
