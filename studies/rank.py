"""From a search's outcome to ranked architectures: figures, frontiers, twins, model error, waterfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..constraints.equal_quality import gives_up
from ..costmodel import Architecture, KernelProfile, TensorFormats, load_profile
from ..search.outcome import SearchOutcome
from ..search.problem import SearchProblem
from .describe import Describer
from .ranking import AREA, ranking_objective
from .runners_up import front_positions, runners_up
from .spec import StudySpec
from .waterfall import waterfall

TWIN_SHARE = 0.01  # designs closer than this in every objective, and neighbours on the lattice, are one row


def pairwise_error(profile: KernelProfile, formats: TensorFormats) -> float | None:
    """Relative error of the profile's predicted ratio of neighbouring GEMM shapes at the study's formats.

    The largest median among the formats of the linear layers and experts; None where the profile carries none
    (nothing was fitted, so nothing is known about differences).
    """
    used = {formats.qkv, formats.attention_output, formats.ffn, formats.experts}
    fits = profile.families.get("gemm", {})
    found = [float(fits[name].pairs["median"]) for name in sorted(used) if name in fits and "median" in fits[name].pairs]
    return max(found) if found else None


def rank(spec: StudySpec, outcome: SearchOutcome) -> dict[str, Any]:
    """Describe and order the designs of both fronts.

    Returns:
        ``ranked_by``, ``reference``, ``architectures`` (ranked, equal quality first, near-twins named), ``pareto``,
        ``runners_up``, ``pairwise_error``: plain values, the contents of result.json.
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
    by = ranking_objective(names, [u.name for u in spec.user if u.role == "objective"])
    score = {p: row["frontier_area"] if by == AREA else row["objectives"][by] for p, _, row in designs}
    designs.sort(key=lambda d: (not d[2]["equal_quality"], -score[d[0]], d[0]))
    told = error if by == AREA else None  # the cost model's error says nothing about a user's figure
    for index, (_, _, row) in enumerate(designs, start=1):
        row["architecture_id"] = f"a{index:03d}"
    rows = [row for _, _, row in designs]
    _mark_twins(problem, designs)
    _mark_error(rows, told)
    return {
        "ranked_by": by,
        "pairwise_error": error,
        "reference": reference,
        "architectures": rows,
        "pareto": operating_points(rows),
        "runners_up": runners_up(outcome, describer, {p: row["architecture_id"] for p, _, row in designs}, rows, told, by),
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


def operating_points(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of pareto.csv: each equal-quality design's own frontier in rank order, then the envelope of all designs.

    ``front`` says which: ``equal_quality`` or ``open`` (the envelope, whose points may be an equal-quality design's, too).
    """
    equal = [row for row in rows if "equal_quality" in row["fronts"] and not row.get("twin_of")]
    own = [
        {"architecture_id": row["architecture_id"], **point, "front": "equal_quality"}
        for row in equal
        for point in row["frontier"]
    ]
    return own + [{**point, "front": "open"} for point in envelope(rows)]


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
