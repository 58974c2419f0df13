"""``layout_mode="suggest"``: layout and concurrency are parameters of the search beside the architecture's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel import ArchitectureBatch
from .space import Candidates

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from ..costmodel.serving import ServingSetup
    from .problem import SearchProblem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Point = tuple[int, int, float]  # design id, layout index, sequences in flight
FACTORS = ("gpus", "tpa", "kvp", "ep", "pp")  # named layout parameters; dpa and tpf follow from them
CONCURRENCY = "concurrency"


def layout_distributions(setup: ServingSetup) -> dict[str, BaseDistribution]:
    """Log-uniform integer ranges of the layout factors, and the concurrency grid's range."""
    from optuna.distributions import FloatDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {}
    for name in FACTORS:
        values = getattr(setup.layouts, name)
        result[name] = IntDistribution(int(values.min()), int(values.max()), log=True)
    result[CONCURRENCY] = FloatDistribution(setup.concurrency[0], setup.concurrency[-1], log=True)
    return result


def price_points(
    batch: ArchitectureBatch, setup: ServingSetup, layout: IntArray, concurrency: FloatArray, room: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """tokens/s/GPU and tokens/s/user of each design at its own layout and concurrency.

    Args:
        batch: designs, ``(A,)``.
        setup: deployment.
        layout: layout index per design, ``(A,)``.
        concurrency: sequences in flight per design, ``(A,)``.
        room: sequences each layout holds, 0 where it is not allowed, ``(A, P)``.

    Returns:
        figures ``(A, 2)``, 0 where the point does not fit, and whether it fits, ``(A,)``.
    """
    from ..costmodel.serving import deployed
    from ..costmodel.serving import price_points as price

    fits = (room[np.arange(len(batch)), layout] >= concurrency) & (concurrency > 0)
    out = np.zeros((len(batch), 2))
    for index in np.unique(layout[fits]).tolist():
        where = np.flatnonzero(fits & (layout == index))
        loads, column = np.unique(concurrency[where], return_inverse=True)
        one = replace(setup, layouts=setup.layouts.take([index]), concurrency=tuple(loads.tolist()))
        part = batch.take(where)
        itl, held = price(part, one)
        at = np.arange(len(where)), 0, column
        seconds = (itl if held is None else held)[at]  # a place is held longer than a token takes where prefill shares steps
        gpus = float(setup.layouts.gpus[index])
        out[where, 0] = deployed(part, one, (concurrency[where] / (seconds * gpus))[:, None])[:, 0]
        out[where, 1] = 1.0 / itl[at]
    return out, fits


def _layout_coordinates(values: Mapping[str, Any]) -> FloatArray:
    """Log2 of the layout factors, ``(n, 5)``: one octave of any factor is one unit of distance."""
    return np.stack([np.log2(np.asarray(values[name], dtype=np.float64)) for name in FACTORS], axis=1)


def project_points(
    problem: SearchProblem, ids: IntArray, params: Sequence[Mapping[str, Any]], seen: set[Point]
) -> Candidates:
    """The nearest allowed layout and grid concurrency of each suggestion that has not been priced before.

    Args:
        problem: the search problem.
        ids: legal architectures the suggestions were projected to; −1 drops the suggestion.
        params: suggestions with the layout factors and the concurrency.
        seen: (id, layout, concurrency) already priced; extended with what is returned.
    """
    setup = problem.setup
    grid = np.array(setup.concurrency)
    own = _layout_coordinates({name: getattr(setup.layouts, name) for name in FACTORS})
    rows = [i for i, design in enumerate(ids.tolist()) if design >= 0]
    room = layout_room(problem, ids[rows])
    wanted = _layout_coordinates({name: [params[i][name] for i in rows] for name in FACTORS}) if rows else own[:0]
    loads = np.array([params[i][CONCURRENCY] for i in rows])
    found: list[Point] = []
    for k, i in enumerate(rows):
        order = np.lexsort((np.arange(len(own)), np.round(((own - wanted[k]) ** 2).sum(axis=1), 9)))
        order = order[room[k, order] >= grid[0]][:8]
        for layout in order.tolist():
            fitting = grid[grid <= room[k, layout]]
            nearest = fitting[np.argsort(np.abs(np.log(fitting / loads[k])), kind="stable")][:4].tolist()
            keys = [(int(ids[i]), layout, c) for c in nearest if (int(ids[i]), layout, c) not in seen]
            if keys:
                found.append(keys[0])
                seen.add(keys[0])
                break
    return make_points(problem, found)


def make_points(problem: SearchProblem, points: Sequence[Point]) -> Candidates:
    """Candidates of (id, layout, concurrency) points."""
    base = problem.table.candidates(np.array([p[0] for p in points], dtype=np.int64))
    return replace(
        base,
        layout=np.array([p[1] for p in points], dtype=np.int64),
        concurrency=np.array([p[2] for p in points], dtype=np.float64),
    )


def layout_room(problem: SearchProblem, ids: IntArray) -> FloatArray:
    """Sequences each layout holds of each design, 0 where it is not allowed, ``(n, P)``."""
    room = np.zeros((len(ids), len(problem.setup.layouts)))
    for where, space, batch in problem.table.candidates(ids).batches(problem.spaces):
        setup = problem.setup.with_(formats=problem.spaces[space].formats)
        room[where] = setup.limits(batch, problem.rules.layouts_allowed(batch, setup.layouts))
    return room


def neighbour_points(problem: SearchProblem, members: Candidates, seen: set[Point]) -> Candidates:
    """Unpriced neighbours of operating points: every layout at the member's load and one grid step beside it, and the
    nearest architectures at the member's own layout and load.
    """
    if members.layout is None or members.concurrency is None or not len(members):
        return make_points(problem, [])
    grid = list(problem.setup.concurrency)
    room = layout_room(problem, members.ids)
    points: list[Point] = []
    rows = zip(members.ids.tolist(), members.layout.tolist(), members.concurrency.tolist(), strict=True)
    for k, (design, own, load) in enumerate(rows):
        at = grid.index(load)
        loads = grid[max(0, at - 1) : at + 2]
        points += [(design, p, c) for p in range(room.shape[1]) for c in loads if room[k, p] >= c]
        near = problem.projector.neighbours([design], nearest=8, per_step=1)
        fits = layout_room(problem, near)[:, own] >= load
        points += [(int(i), own, load) for i in near[fits].tolist()]
    return make_points(problem, [p for p in dict.fromkeys(points) if p not in seen])


def layout_and_load(candidates: Candidates) -> tuple[list[int], list[float]]:
    """Layout indices and concurrencies of operating points."""
    if candidates.layout is None or candidates.concurrency is None:
        return [], []
    return candidates.layout.tolist(), candidates.concurrency.tolist()
