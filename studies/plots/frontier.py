"""The frontier: tokens/s/GPU against tokens/s/user, with the reference model, service goals and the area gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...costmodel.errors import InvalidValueError
from .style import BLACK, CYCLE, GREY, LINES, MARKERS, SKY, Plot, new_figure, plain_log_ticks, round_steps, title

if TYPE_CHECKING:
    from ...costmodel.serving_frontier import Frontier

FloatArray = NDArray[np.float64]
ROLES = ("design", "open", "reference", "model")


@dataclass(frozen=True, eq=False)
class Curve:
    """One design's frontier.

    Attributes:
        name: what the legend says.
        tokens_per_second_per_user: ``(N,)``, rising.
        tokens_per_second_per_gpu: ``(N,)``.
        role: ``design`` (equal quality), ``open`` (gives something up), ``reference`` (the study's model) or ``model``.
    """

    name: str
    tokens_per_second_per_user: FloatArray
    tokens_per_second_per_gpu: FloatArray
    role: str = "design"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidValueError(f"role must be one of {', '.join(ROLES)}, got {self.role!r:.40}")
        users, gpus = np.asarray(self.tokens_per_second_per_user, float), np.asarray(self.tokens_per_second_per_gpu, float)
        if users.ndim != 1 or users.shape != gpus.shape or not users.size:
            raise InvalidValueError(
                f"curve '{self.name}': both arrays have the same shape (N,), N >= 1; got {users.shape} and {gpus.shape}"
            )
        if not (np.all(np.isfinite(users) & (users > 0)) and np.all(np.isfinite(gpus) & (gpus >= 0))):
            raise InvalidValueError(
                f"curve '{self.name}': tokens/s/user must be positive and tokens/s/GPU at least 0, both finite"
            )
        order = np.argsort(users, kind="stable")
        object.__setattr__(self, "tokens_per_second_per_user", users[order])
        object.__setattr__(self, "tokens_per_second_per_gpu", gpus[order])

    @classmethod
    def of(cls, frontier: Frontier, name: str, role: str = "design") -> Curve:
        """The curve of a priced frontier."""
        points = frontier.points
        return cls(name, points.tokens_per_second_per_user, points.tokens_per_second_per_gpu, role)

    def at(self, rates: FloatArray) -> FloatArray:
        """tokens/s/GPU of the best point with at least each user rate, 0 beyond the last; shape of ``rates``."""
        best = np.maximum.accumulate(self.tokens_per_second_per_gpu[::-1])[::-1]
        index = np.searchsorted(self.tokens_per_second_per_user, rates, side="left")
        return np.where(index < len(best), best[np.minimum(index, len(best) - 1)], 0.0)

    def between(self, rates: FloatArray) -> FloatArray:
        """tokens/s/GPU along the drawn line (straight on a log user axis), level before it, 0 beyond; shape of ``rates``."""
        x = np.log(self.tokens_per_second_per_user)
        return np.interp(np.log(rates), x, self.tokens_per_second_per_gpu, right=0.0)


def frontier_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The curves' points, one a row."""
    return [
        {
            "name": curve.name,
            "role": curve.role,
            "tokens_per_second_per_user": float(user),
            "tokens_per_second_per_gpu": float(gpu),
        }
        for curve in curves
        for user, gpu in zip(curve.tokens_per_second_per_user, curve.tokens_per_second_per_gpu, strict=True)
    ]


def draw_frontier(
    curves: Sequence[Curve],
    *,
    heading: str = "Throughput against interactivity",
    note: str = "",
    goals: Sequence[float] = (20.0, 100.0),
    area: tuple[float, float] | None = None,
    gain: float | None = None,
) -> Plot:
    """Draw frontiers.

    Args:
        curves: at least one; the first ``design`` is the one whose area is shaded against the ``reference``.
        heading: title.
        note: line under it (profile, workload).
        goals: service goals on tokens/s/user, drawn as lines.
        area: user rates between which the area counts; None shades nothing.
        gain: the area gained over the reference as the cost model integrates it, for the legend.

    Raises:
        InvalidValueError: no curve, or matplotlib is missing.
    """
    if not curves:
        raise InvalidValueError("a frontier plot needs at least one curve, got none")
    figure, axis = new_figure()
    low = min(float(c.tokens_per_second_per_user[0]) for c in curves)
    high = max(float(c.tokens_per_second_per_user[-1]) for c in curves)
    low, high = min([low, *goals]) / 1.1, max([high, *goals]) * 1.1
    top = max(float(c.tokens_per_second_per_gpu.max()) for c in curves)
    if area is not None:
        _shade(axis, curves, area, gain)
    counts = {"model": 0, "design": 0}
    for curve in curves:
        group = "model" if curve.role == "model" else "design"
        style = _style(curve, counts[group])
        counts[group] += curve.role != "reference"
        axis.plot(curve.tokens_per_second_per_user, curve.tokens_per_second_per_gpu, label=_label(curve), **style)
    for goal in goals:
        axis.axvline(goal, color=GREY, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        axis.annotate(
            f"{goal:g}", (goal, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points",
            va="top", ha="left", fontsize=9, color=GREY,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_ylim(0, top * 1.08)
    plain_log_ticks(axis.xaxis, round_steps(low, high))
    axis.set_xlabel("Interactivity, tokens/s/user (log scale; dashed: service goals)", fontsize=11)
    axis.set_ylabel("Throughput, tokens/s/GPU", fontsize=11)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    title(axis, heading, note)
    figure.legend(loc="outside lower center", ncols=2 if len(curves) > 3 else len(curves), fontsize=9, frameon=False)
    return Plot("frontier", figure, frontier_rows(curves))


def plot_frontier(curves: Sequence[Curve], path: str | Path, **options: Any) -> list[Path]:
    """Draw (see :func:`draw_frontier`) and write the picture with its CSV; returns both paths."""
    return draw_frontier(curves, **options).save(path)


def _label(curve: Curve) -> str:
    suffix = {"design": "", "open": " (not at equal quality)", "reference": " (reference)", "model": ""}
    return curve.name + suffix[curve.role]


def _style(curve: Curve, index: int) -> dict[str, Any]:
    marks = max(1, len(curve.tokens_per_second_per_user) // 12)
    if curve.role == "reference":
        return {"color": BLACK, "linewidth": 2.2, "linestyle": (0, (6, 2)), "zorder": 5}
    if curve.role == "model":
        return {"color": GREY, "linewidth": 1.4, "linestyle": LINES[1 + index % (len(LINES) - 1)], "zorder": 2}
    return {
        "color": CYCLE[index % len(CYCLE)],
        "linewidth": 1.8 if curve.role == "design" else 1.3,
        "linestyle": LINES[0] if curve.role == "design" else LINES[1],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "markevery": marks,
        "zorder": 4 if curve.role == "design" else 3,
    }


def _shade(axis: Any, curves: Sequence[Curve], bounds: tuple[float, float], gain: float | None) -> None:
    """Shade the area between the first design and the reference inside ``bounds``."""
    design = next((c for c in curves if c.role == "design"), curves[0])
    reference = next((c for c in curves if c.role == "reference"), None)
    rates = np.geomspace(*bounds, 400)
    upper = design.between(rates)
    lower = reference.between(rates) if reference is not None and reference is not design else np.zeros_like(rates)
    what = "area gained" if reference is not None and reference is not design else "area"
    figure = "" if gain is None else f" {gain:+.1%}".replace("-", "−")
    label = f"{what}{figure}, {bounds[0]:g}–{bounds[1]:g} tokens/s/user"
    axis.fill_between(rates, lower, upper, where=upper >= lower, color=SKY, alpha=0.3, linewidth=0, label=label, zorder=1)
