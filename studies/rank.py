"""From a search's outcome to ranked architectures: figures, frontiers, twins, model error, waterfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.divisibility import layout_allowed
from ..constraints.equal_quality import gives_up
from ..constraints.quality import delta_loss_shape, predicted_loss
from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError, KernelProfile, TensorFormats, load_profile
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.operating import step_seconds_at
from ..costmodel.serving import ServingSetup, frontier_area, price_points, throughput_at_rates
from ..costmodel.serving_frontier import frontier
from ..search.evaluate import Priced
from ..search.outcome import SearchOutcome
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .problem import area_rates
from .spec import StudySpec
from .waterfall import waterfall

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TWIN_SHARE = 0.01  # designs closer than this in every objective, and neighbours on the lattice, are one row
RUNNERS_UP = 10
SHORTLIST = 60  # designs of each kind whose area is priced to find the runners-up
MAX_REPORTED = 4  # rates of the objectives that are reported beside the study's own (an area has many)
DIMENSIONS = tuple(name for name in INTEGER_FIELDS if name != "num_sliding_window_layers")


def pairwise_error(profile: KernelProfile, formats: TensorFormats) -> float | None:
    """Relative error of the profile's predicted ratio of neighbouring GEMM shapes at the study's formats.

    The largest median among the formats of the linear layers and experts; None where the profile carries none
    (nothing was fitted, so nothing is known about differences).
    """
    used = {formats.qkv, formats.attention_output, formats.ffn, formats.experts}
    fits = profile.families.get("gemm", {})
    found = [float(fits[name].pairs["median"]) for name in sorted(used) if name in fits and "median" in fits[name].pairs]
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
        self.rates = tuple(sorted({*spec.rates, *(problem.rates if len(problem.rates) <= MAX_REPORTED else ())}))

    @cached_property
    def reference(self) -> dict[str, Any]:
        """The reference model, described."""
        return self.describe(self.problem.reference, self.problem.setup.formats, reference=True)

    def areas(self, candidates: Candidates) -> FloatArray:
        """Frontier area of candidates, ``(n,)``."""
        found = np.zeros(len(candidates))
        for where, space, batch in candidates.batches(self.problem.spaces):
            setup = self.problem.setup.with_(formats=self.problem.spaces[space].formats)
            table = throughput_at_rates(batch, setup, list(self.area_rates), allowed=self.allowed(batch, reference=False))
            found[where] = frontier_area(table.tokens_per_second_per_gpu, np.array(self.area_rates), self.spec.area.axis)
        return found

    def allowed(self, batch: ArchitectureBatch, *, reference: bool) -> BoolArray:
        """Layouts a design may use; the reference model is held to divisibility alone."""
        if reference:
            return layout_allowed(batch, self.problem.setup.layouts, balanced_pipeline=self.problem.rules.balanced_pipeline)
        return self.problem.rules.layouts_allowed(batch, self.problem.setup.layouts)

    def describe(
        self, architecture: Architecture, formats: TensorFormats, *, reference: bool = False, curve: bool = True
    ) -> dict[str, Any]:
        """Dimensions, figures, throughput at the study's rates and (``curve``) the frontier of one design."""
        batch = ArchitectureBatch.from_architectures([architecture])
        setup = self.problem.setup.with_(formats=formats)
        allowed = self.allowed(batch, reference=reference)
        wanted = sorted({*self.rates, *self.area_rates})
        table = throughput_at_rates(batch, setup, wanted, allowed=allowed)
        throughput = dict(zip(wanted, table.tokens_per_second_per_gpu[0].tolist(), strict=True))
        points = []
        itl, _ = price_points(batch, setup)
        for rate in self.rates:
            at = wanted.index(rate)
            layout = int(table.layout_index[0, at])
            place = (
                setup.layouts.layout(layout).to_dict()
                if layout >= 0
                else dict.fromkeys(("tpa", "kvp", "dpa", "tpf", "ep", "pp", "gpus"))
            )
            points.append(
                {"rate": rate, **_point(throughput[rate], float(table.concurrency[0, at]), itl[:, [layout]], setup), **place}
            )
        area = float(
            frontier_area([throughput[rate] for rate in self.area_rates], np.array(self.area_rates), self.spec.area.axis)
        )
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
            "frontier": self._frontier(architecture, formats, allowed) if curve else [],
        }

    def _frontier(self, architecture: Architecture, formats: TensorFormats, allowed: BoolArray) -> list[dict[str, Any]]:
        try:
            return frontier(architecture, self.problem.setup.with_(formats=formats), allowed=allowed).rows()
        except InvalidValueError:
            return []  # no layout serves it


def _point(throughput: float, concurrency: float, itl: FloatArray, setup: ServingSetup) -> dict[str, float | None]:
    """Figures of one operating point; a layout that memory caps serves each user faster than the rate asked for."""
    seconds = (
        float(step_seconds_at(itl, np.array(setup.concurrency), np.array([[concurrency]]))[0, 0]) if throughput > 0 else None
    )
    return {
        "tokens_per_second_per_gpu": throughput,
        "tokens_per_second_per_user": 1 / seconds if seconds else 0.0,
        "concurrency": concurrency,
        "itl_seconds": seconds,
    }


def front_positions(outcome: SearchOutcome) -> list[int]:
    """Positions of both fronts' designs, one per architecture, ascending.

    With suggested layouts an architecture may lie on a front with several operating points; the one with the largest
    first objective stands for it.
    """
    best: dict[int, int] = {}
    for position in sorted({*outcome.open_front.tolist(), *outcome.equal_quality_front.tolist()}):
        design = int(outcome.evaluated.ids[position])
        if design not in best or outcome.priced.objectives[position, 0] > outcome.priced.objectives[best[design], 0]:
            best[design] = position
    return sorted(best.values())


def rank(spec: StudySpec, outcome: SearchOutcome) -> dict[str, Any]:
    """Describe and order the designs of both fronts.

    Returns:
        ``reference``, ``architectures`` (ranked, equal quality first, near-twins named), ``pareto``, ``runners_up``,
        ``pairwise_error``: plain values, the contents of result.json.
    """
    problem = outcome.problem
    describer = Describer(spec, problem)
    name = problem.reference.name or spec.reference
    reference = {"architecture_id": "reference", "name": name, "equal_quality": True, **describer.reference}
    names = [o.name for o in problem.objectives]
    reference["objectives"] = dict(zip(names, problem.reference_values.tolist(), strict=True))
    error = pairwise_error(load_profile(problem.setup.profile), problem.setup.formats)
    equal, opened = (set(outcome.evaluated.ids[f].tolist()) for f in (outcome.equal_quality_front, outcome.open_front))
    designs: list[tuple[int, Architecture, dict[str, Any]]] = []
    for position in front_positions(outcome):
        design = int(outcome.evaluated.ids[position])
        [(_, space, batch)] = outcome.evaluated.take(np.array([position])).batches(problem.spaces)
        architecture, formats = batch.architecture(0), problem.spaces[space].formats
        row = describer.describe(architecture, formats)
        ratio = row["frontier_area"] / reference["frontier_area"] if reference["frontier_area"] > 0 else None
        row = {
            "architecture_id": "",
            "rank": 0,
            "equal_quality": bool(outcome.priced.equal_quality[position]),
            "dominated": False,
            "fronts": [name for name, front in (("equal_quality", equal), ("open", opened)) if design in front],
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
        "runners_up": _runners_up(outcome, describer, {p: row["architecture_id"] for p, _, row in designs}, rows, error),
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
    order = sorted(
        range(len(points)), key=lambda i: (-points[i]["tokens_per_second_per_user"], -points[i]["tokens_per_second_per_gpu"], i)
    )
    best, kept = -1.0, []
    for i in order:
        if points[i]["tokens_per_second_per_gpu"] > best:
            best = points[i]["tokens_per_second_per_gpu"]
            kept.append(points[i])
    return kept[::-1]


def _nearness(priced: Priced, heads: IntArray, legal: IntArray) -> tuple[FloatArray, IntArray]:
    """Worst objective of each design over that of the front member it comes nearest to, and that member.

    Returns:
        share and position of the member among the evaluated designs, ``(len(legal),)`` each.
    """
    values = priced.objectives
    found = np.full(len(legal), -np.inf)
    member = np.full(len(legal), heads[0], dtype=np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        for head in heads.tolist():
            comparable = ~(priced.equal_quality[head] & ~priced.equal_quality[legal])  # only an equal is compared with an equal
            share = np.min(np.where(values[head] > 0, values[legal] / values[head], 1.0), axis=1)
            share = np.where(comparable, np.nan_to_num(share, nan=-np.inf), -np.inf)
            member = np.where(share > found, head, member)
            found = np.maximum(found, share)
    return found, member


def _runners_up(
    outcome: SearchOutcome,
    describer: Describer,
    ids: Mapping[int, str],
    rows: Sequence[dict[str, Any]],
    error: float | None,
) -> list[dict[str, Any]]:
    """Best legal designs off the fronts, equal quality first, by frontier area.

    They are dominated, but often by less than the cost model can tell apart. Half of them are at equal quality where
    that many exist. The area is priced for the designs nearest to the fronts only.
    """
    priced, problem = outcome.priced, outcome.problem
    heads = np.array(front_positions(outcome), dtype=np.int64)
    taken = set(outcome.evaluated.ids[heads].tolist())
    legal = np.flatnonzero(priced.legal)
    first = np.unique(outcome.evaluated.ids[legal], return_index=True)[1]
    legal = np.array([i for i in legal[np.sort(first)].tolist() if int(outcome.evaluated.ids[i]) not in taken], dtype=np.int64)
    if not len(legal) or not len(heads):
        return []
    near, member = _nearness(priced, heads, legal)
    order = legal[np.lexsort((legal, -near))]
    score = dict(zip(legal.tolist(), zip(near.tolist(), member.tolist(), strict=True), strict=True))
    shortlist = [i for equal in (True, False) for i in order[priced.equal_quality[order] == equal][:SHORTLIST].tolist()]
    areas = dict(zip(shortlist, describer.areas(outcome.evaluated.take(np.array(shortlist))).tolist(), strict=True))
    by_area = sorted(shortlist, key=lambda i: (-areas[i], i))
    equal = [i for i in by_area if priced.equal_quality[i]]
    opened = [i for i in by_area if not priced.equal_quality[i]]
    few = max(RUNNERS_UP // 2, RUNNERS_UP - len(opened))
    chosen = [*equal[:few], *opened[: RUNNERS_UP - len(equal[:few])]]
    names = [o.name for o in problem.objectives]
    found = []
    for position in chosen:
        [(_, space, batch)] = outcome.evaluated.take(np.array([position])).batches(problem.spaces)
        row = describer.describe(batch.architecture(0), problem.spaces[space].formats, curve=False)
        reference = describer.reference["frontier_area"]
        found.append(
            {
                "architecture_id": "",
                "rank": 0,
                "equal_quality": bool(priced.equal_quality[position]),
                "dominated": True,
                "fronts": [],
                "gives_up": gives_up(batch, problem.reference, train_tokens=problem.train_tokens)[0],
                "family": problem.spaces[space].name,
                **row,
                "frontier_area_over_reference": row["frontier_area"] / reference if reference > 0 else None,
                "objectives": dict(zip(names, priced.objectives[position].tolist(), strict=True)),
                "of_the_front": score[position][0],
                "nearest": ids.get(score[position][1]),
                "twins": 0,
            }
        )
    last = max((row["rank"] for row in rows), default=0)
    for index, row in enumerate(found, start=1):
        row["architecture_id"], row["rank"] = f"r{index:03d}", last + index
        nearest = row.pop("nearest")
        row["within_model_error_of"] = nearest if error is not None and 1 - row["of_the_front"] <= error else None
    return found
