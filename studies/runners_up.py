"""The fronts' designs, and the best legal designs off the fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.equal_quality import gives_up
from ..search.evaluate import Priced
from ..search.outcome import SearchOutcome
from .describe import Describer
from .ranking import AREA

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RUNNERS_UP = 10
SHORTLIST = 60  # designs of each kind whose area is priced to find the runners-up


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


def runners_up(
    outcome: SearchOutcome,
    describer: Describer,
    ids: Mapping[int, str],
    rows: Sequence[dict[str, Any]],
    error: float | None,
    by: str = AREA,
) -> list[dict[str, Any]]:
    """Best legal designs off the fronts, equal quality first, by frontier area (or by the objective ``by``).

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
    names = [o.name for o in problem.objectives]
    score_of = areas if by == AREA else {i: float(priced.objectives[i, names.index(by)]) for i in shortlist}
    ordered = sorted(shortlist, key=lambda i: (-score_of[i], i))
    equal = [i for i in ordered if priced.equal_quality[i]]
    opened = [i for i in ordered if not priced.equal_quality[i]]
    few = max(RUNNERS_UP // 2, RUNNERS_UP - len(opened))
    chosen = [*equal[:few], *opened[: RUNNERS_UP - len(equal[:few])]]
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
