"""From a search's outcome to ranked architectures: figures, frontiers, twins, model error, waterfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.divisibility import layout_allowed
from ..constraints.equal_quality import gives_up
from ..constraints.quality import delta_loss_shape, predicted_loss
from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError, KernelProfile, TensorFormats, load_profile
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.serving import frontier_area, throughput_at_rates
from ..costmodel.serving_frontier import frontier
from ..search.outcome import SearchOutcome
from ..search.problem import SearchProblem
from .problem import area_rates
from .spec import StudySpec
from .waterfall import waterfall

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
TWIN_SHARE = 0.01  # designs closer than this in every objective, and neighbours on the lattice, are one row
RUNNERS_UP = 10
DIMENSIONS = tuple(name for name in INTEGER_FIELDS if name != "num_sliding_window_layers")


@dataclass(frozen=True)
class Design:
    """One design of a result with everything that is said about it."""

    architecture: Architecture
    formats: TensorFormats
    space: str
    values: FloatArray  # objectives
    equal_quality: bool
    row: dict[str, Any]


def pairwise_error(profile: KernelProfile) -> float | None:
    """Relative error of the profile's predicted ratio of neighbouring shapes, the largest median over its families.

    None where the profile carries none (nothing was fitted, so nothing is known about differences).
    """
    found = [float(fit.pairs["median"]) for fits in profile.families.values() for fit in fits.values() if "median" in fit.pairs]
    return max(found) if found else None


def dimensions(architecture: Architecture) -> dict[str, Any]:
    """Dimensions by their stable names."""
    row: dict[str, Any] = {name: getattr(architecture, name) for name in DIMENSIONS}
    row["num_sliding_window_layers"] = architecture.num_sliding_window_layers
    row["tie_word_embeddings"] = architecture.tie_word_embeddings
    row["attention"] = architecture.attention
    return row


class Describer:
    """Prices and describes single designs in a study's terms."""

    def __init__(self, spec: StudySpec, problem: SearchProblem) -> None:
        self.spec, self.problem = spec, problem
        self.area_rates = area_rates(spec)
        self.rates = tuple(sorted({*spec.rates, *problem.rates}))

    def allowed(self, batch: ArchitectureBatch, *, reference: bool) -> BoolArray:
        """Layouts a design may use; the reference model is held to divisibility alone."""
        if reference:
            return layout_allowed(batch, self.problem.setup.layouts, balanced_pipeline=self.problem.rules.balanced_pipeline)
        return self.problem.rules.layouts_allowed(batch, self.problem.setup.layouts)

    def describe(self, architecture: Architecture, formats: TensorFormats, *, reference: bool = False) -> dict[str, Any]:
        """Dimensions, figures, throughput at the study's rates and the frontier of one design."""
        batch = ArchitectureBatch.from_architectures([architecture])
        setup = self.problem.setup.with_(formats=formats)
        allowed = self.allowed(batch, reference=reference)
        wanted = sorted({*self.rates, *self.area_rates})
        table = throughput_at_rates(batch, setup, wanted, allowed=allowed)
        throughput = dict(zip(wanted, table.tokens_per_second_per_gpu[0].tolist(), strict=True))
        points = []
        for rate in self.rates:
            at = wanted.index(rate)
            layout = int(table.layout_index[0, at])
            place = setup.layouts.layout(layout).to_dict() if layout >= 0 else dict.fromkeys(("tpa", "kvp", "dpa", "tpf", "ep", "pp", "gpus"))
            points.append({"rate": rate, **_point(throughput[rate], float(table.concurrency[0, at]), place["gpus"]), **place})
        area = float(frontier_area([throughput[rate] for rate in self.area_rates], np.array(self.area_rates), self.spec.area.axis))
        first = points[0]
        return {
            **dimensions(architecture),
            "total_params": architecture.total_params,
            "active_params": architecture.active_params,
            "active_params_with_embedding": architecture.active_params_with_embedding,
            "tokens_per_second_per_gpu": first["tokens_per_second_per_gpu"],
            "tokens_per_second_per_user": first["tokens_per_second_per_user"],
            "concurrency": first["concurrency"],
            "itl_seconds": first["itl_seconds"],
            "ttft_seconds": None,
            "delta_loss_shape": float(delta_loss_shape(architecture.hidden_size, architecture.num_hidden_layers)),
            "predicted_loss": float(predicted_loss(batch, self.problem.train_tokens)[0]),
            "kv_bytes_per_token": float(kv_bytes_per_token(batch, formats)[0]),
            "frontier_area": area,
            "at_rates": points,
            "frontier": self._frontier(architecture, formats, allowed),
        }

    def _frontier(self, architecture: Architecture, formats: TensorFormats, allowed: BoolArray) -> list[dict[str, Any]]:
        try:
            return frontier(architecture, self.problem.setup.with_(formats=formats), allowed=allowed).rows()
        except InvalidValueError:
            return []  # no layout serves it


def _point(throughput: float, concurrency: float, gpus: int | None) -> dict[str, float | None]:
    """Figures of one operating point; a layout that memory caps serves each user faster than the rate asked for."""
    itl = concurrency / (throughput * gpus) if gpus and throughput > 0 else None
    return {
        "tokens_per_second_per_gpu": throughput,
        "tokens_per_second_per_user": 1 / itl if itl else 0.0,
        "concurrency": concurrency,
        "itl_seconds": itl,
    }


def front_positions(outcome: SearchOutcome) -> list[int]:
    """Positions of both fronts' designs, one per design, ascending."""
    seen: dict[Any, int] = {}
    keys = outcome.evaluated.keys(outcome.problem.spaces)
    for position in sorted({*outcome.open_front.tolist(), *outcome.equal_quality_front.tolist()}):
        seen.setdefault(keys[position], position)
    return sorted(seen.values())


def rank(spec: StudySpec, outcome: SearchOutcome) -> dict[str, Any]:
    """Describe and order the designs of both fronts.

    Returns:
        ``reference``, ``architectures`` (ranked, equal quality first, near-twins named), ``pareto``, ``runners_up``,
        ``pairwise_error``: plain values, the contents of result.json.
    """
    problem = outcome.problem
    describer = Describer(spec, problem)
    reference = describer.describe(problem.reference, problem.setup.formats, reference=True)
    reference = {"architecture_id": "reference", "name": problem.reference.name or spec.reference, "equal_quality": True, **reference}
    names = [o.name for o in problem.objectives]
    reference["objectives"] = dict(zip(names, problem.reference_values.tolist(), strict=True))
    error = pairwise_error(load_profile(problem.setup.profile))
    equal, opened = set(outcome.equal_quality_front.tolist()), set(outcome.open_front.tolist())
    designs: list[tuple[int, Architecture, dict[str, Any]]] = []
    positions = front_positions(outcome)
    for position in positions:
        [(_, space, batch)] = outcome.evaluated.take(np.array([position])).batches(problem.spaces)
        architecture, formats = batch.architecture(0), problem.spaces[space].formats
        row = describer.describe(architecture, formats)
        ratio = row["frontier_area"] / reference["frontier_area"] if reference["frontier_area"] > 0 else None
        row = {
            "architecture_id": "",
            "rank": 0,
            "equal_quality": bool(outcome.priced.equal_quality[position]),
            "fronts": [name for name, front in (("equal_quality", equal), ("open", opened)) if position in front],
            "gives_up": gives_up(batch, problem.reference, train_tokens=problem.train_tokens)[0],
            "family": problem.spaces[space].name,
            **row,
            "frontier_area_over_reference": ratio,
            "objectives": dict(zip(names, outcome.priced.objectives[position].tolist(), strict=True)),
        }
        row["waterfall"] = waterfall(
            problem, architecture, rates=describer.area_rates, axis=spec.area.axis, formats=formats, error=error or 0.0
        ).to_dict()
        designs.append((position, architecture, row))
    designs.sort(key=lambda d: (not d[2]["equal_quality"], -d[2]["frontier_area"], d[0]))
    for index, (_, _, row) in enumerate(designs, start=1):
        row["architecture_id"] = f"a{index:03d}"
    rows = [row for _, _, row in designs]
    _mark_twins(problem, designs)
    _mark_error(rows, error)
    return {
        "pairwise_error": error,
        "reference": reference,
        "architectures": rows,
        "pareto": envelope(rows),
        "runners_up": _runners_up(outcome, set(positions), names, error),
    }


def _steps(problem: SearchProblem, a: Architecture, b: Architecture) -> bool:
    """Whether two designs are neighbours: no searched dimension more than one lattice step apart."""
    for space in problem.spaces:
        for name, values in space.dimensions.items():
            if not hasattr(a, name):
                continue
            x, y = getattr(a, name), getattr(b, name)
            if name == space.solved or x == y:
                continue  # the solved width follows from the others
            if x not in values or y not in values or abs(values.index(x) - values.index(y)) > 1:
                return False
    return a.kind == b.kind


def _mark_twins(problem: SearchProblem, designs: Sequence[tuple[int, Architecture, dict[str, Any]]]) -> None:
    """Name the better-ranked twin of each near-twin; number the rows that are left."""
    kept: list[tuple[Architecture, dict[str, Any]]] = []
    for _, architecture, row in designs:
        row["twin_of"], row["twins"] = None, 0
        for other, head in kept:
            if row["equal_quality"] != head["equal_quality"] or row["family"] != head["family"]:
                continue
            pairs = zip(row["objectives"].values(), head["objectives"].values(), strict=True)
            close = all(abs(x - y) <= TWIN_SHARE * max(abs(x), abs(y)) for x, y in pairs)
            if close and _steps(problem, architecture, other):
                row["twin_of"] = head["architecture_id"]
                head["twins"] += 1
                break
        else:
            kept.append((architecture, row))
            row["rank"] = len(kept)
            continue
        row["rank"] = next(head["rank"] for _, head in kept if head["architecture_id"] == row["twin_of"])


def _mark_error(rows: Sequence[dict[str, Any]], error: float | None) -> None:
    """Mark rows whose area is closer to the row ranked before them than the cost model's pairwise error."""
    before: dict[str, Any] | None = None
    for row in rows:
        row["within_model_error_of"] = None
        if before is not None and error is not None and before["equal_quality"] == row["equal_quality"]:
            if before["frontier_area"] > 0 and 1 - row["frontier_area"] / before["frontier_area"] <= error:
                row["within_model_error_of"] = before["architecture_id"]
        before = row


def envelope(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Upper envelope of all designs' operating points, by rising tokens/s/user, each naming its design."""
    points = [{"architecture_id": row["architecture_id"], **point} for row in rows for point in row["frontier"]]
    order = sorted(range(len(points)), key=lambda i: (-points[i]["tokens_per_second_per_user"], -points[i]["tokens_per_second_per_gpu"], i))
    best, kept = -1.0, []
    for i in order:
        if points[i]["tokens_per_second_per_gpu"] > best:
            best = points[i]["tokens_per_second_per_gpu"]
            kept.append(points[i])
    return kept[::-1]


def _runners_up(outcome: SearchOutcome, front: set[int], names: Sequence[str], error: float | None) -> list[dict[str, Any]]:
    """Legal designs off the fronts that come nearest to them: their worst objective over the nearest front member's.

    They are dominated, but often by less than the cost model can tell apart.
    """
    priced, problem = outcome.priced, outcome.problem
    values = priced.objectives
    heads = np.array(sorted(front), dtype=np.int64)
    legal = np.flatnonzero(priced.legal)
    legal = legal[~np.isin(legal, heads)]
    if not len(legal) or not len(heads):
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        nearness = np.full(len(legal), -np.inf)
        for head in heads.tolist():
            same = ~(priced.equal_quality[head] & ~priced.equal_quality[legal])  # an equal-quality design is not missed by one that is not
            share = np.min(np.where(values[head] > 0, values[legal] / values[head], 1.0), axis=1)
            nearness = np.maximum(nearness, np.where(same, np.nan_to_num(share, nan=-np.inf), -np.inf))
    order = legal[np.lexsort((legal, -nearness))]
    score = dict(zip(legal.tolist(), nearness.tolist(), strict=True))
    rows: list[dict[str, Any]] = []
    seen = set()
    for position in order.tolist():
        key = int(outcome.evaluated.ids[position])
        if key in seen or len(rows) == RUNNERS_UP:
            continue
        seen.add(key)
        [(_, space, batch)] = outcome.evaluated.take(np.array([position])).batches(problem.spaces)
        architecture = batch.architecture(0)
        rows.append(
            {
                "equal_quality": bool(priced.equal_quality[position]),
                "family": problem.spaces[space].name,
                **dimensions(architecture),
                "total_params": architecture.total_params,
                "active_params": architecture.active_params,
                "objectives": dict(zip(names, values[position].tolist(), strict=True)),
                "of_the_front": score[position],
                "within_model_error": None if error is None else bool(1 - score[position] <= error),
            }
        )
    return rows
