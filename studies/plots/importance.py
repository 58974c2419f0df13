"""Which dimensions go along with good objectives among the designs a study priced, as Optuna measures it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...costmodel.errors import InvalidValueError
from ..reporting.words import objective_text
from .style import CYCLE, GREY, Plot, Row, new_figure

if TYPE_CHECKING:
    import optuna


def importance_rows(study: optuna.Study, objectives: Sequence[str]) -> list[dict[str, Any]]:
    """How strongly each dimension is associated with each objective among the priced designs (PED-ANOVA), largest first.

    The designs are those a search chose under a budget, where one dimension moves with others (more layers, narrower FFN): an
    association in this sample, no effect of one dimension with the others held.

    Raises:
        InvalidValueError: too few finished trials.
    """
    import optuna

    finished = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    if len(finished) < 4:
        raise InvalidValueError(f"parameter importance needs at least 4 finished trials, the study has {len(finished)}; run more")
    rows = []
    for index, name in enumerate(objectives):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it says that low targets count as good: hence the minus sign
            shares: Mapping[str, float] = optuna.importance.get_param_importances(
                study,
                evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
                target=lambda trial, i=index: -trial.values[i],  # type: ignore[misc]
            )
        rows += [{"objective": name, "dimension": key, "share": float(value)} for key, value in shares.items()]
    return rows


def draw_importance(rows: Sequence[Row], *, note: str = "") -> Plot:
    """Draw one bar chart an objective."""
    objectives = list(dict.fromkeys(row["objective"] for row in rows))
    dimensions = list(dict.fromkeys(row["dimension"] for row in rows))
    figure, axes = new_figure((max(7.0, 5.2 * len(objectives)), 1.8 + 0.38 * len(dimensions)), 1, len(objectives), squeeze=False)
    for index, (axis, name) in enumerate(zip(axes[0], objectives, strict=True)):
        part = sorted((row for row in rows if row["objective"] == name), key=lambda row: float(row["share"]))
        axis.barh([row["dimension"] for row in part], [100 * row["share"] for row in part], color=CYCLE[index % 6], zorder=3)
        axis.grid(False, axis="y")
        axis.set_xlim(0, 100)
        axis.set_xlabel("Share of the association, %", fontsize=11)
        axis.set_title(objective_text(name), loc="left", fontsize=11)
    caption = "association among the designs priced, which share one budget; not the effect of one dimension alone"
    figure.suptitle("Association of each dimension with the objective", x=0.01, ha="left", fontsize=13)
    figure.supxlabel(f"{note}\n{caption}" if note else caption, x=0.01, ha="left", fontsize=9, color=GREY)
    return Plot("importance", figure, list(rows))
