"""Price every legal design of a suggestion's space: a few layouts for all, every layout for the few that matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..costmodel.memory import kv_bytes_per_token
from ..search.evaluate import Priced, evaluate
from ..search.pareto import non_dominated
from ..search.problem import SearchProblem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SAMPLE = 24  # designs priced on every layout to learn which layouts matter
REFINED = 60  # designs priced on every layout in the end


@dataclass(frozen=True, eq=False)
class Pool:
    """Legal designs with what a choice needs to know.

    Attributes:
        ids: rows of the problem's table, ``(N,)``.
        throughput: tokens/s/GPU at the problem's rates, ``(N, R)``.
        area: frontier area, ``(N,)``.
        loss_gain: Q_reference − Q, nats/token, ``(N,)``; larger is better.
        hidden_size, num_hidden_layers, kv_bytes: for telling designs apart, ``(N,)``.
        equal_quality: at equal quality with the problem's reference, ``(N,)``.
    """

    ids: IntArray
    throughput: FloatArray
    area: FloatArray
    loss_gain: FloatArray
    hidden_size: IntArray
    num_hidden_layers: IntArray
    kv_bytes: FloatArray
    equal_quality: NDArray[np.bool_]

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Pool:
        """The designs at ``index``."""
        return Pool(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def _pool(problem: SearchProblem, ids: IntArray, priced: Priced) -> Pool:
    batch = problem.spaces[0].batch({n: problem.table.candidates(ids).columns[:, j] for j, n in enumerate(problem.table.names)})
    names = [o.name for o in problem.objectives]
    return Pool(
        ids,
        priced.throughput,
        priced.objectives[:, names.index("frontier_area")],
        priced.objectives[:, names.index("quality")],
        batch.hidden_size,
        batch.num_hidden_layers,
        kv_bytes_per_token(batch, problem.setup.formats),
        priced.equal_quality,
    )


def choice_values(pool: Pool, columns: list[int]) -> FloatArray:
    """What a design is chosen by: throughput at the named rates and predicted loss, larger is better, ``(N, K + 1)``."""
    return np.column_stack([pool.throughput[:, columns], pool.loss_gain])


def price_all(problem: SearchProblem, columns: list[int], ids: IntArray | None = None) -> Pool:
    """Every legal design (or those named), priced.

    A sample is priced on all layouts; the layouts that are best for some design at some rate price the rest; the front of that,
    and the best at each rate, are priced again on all layouts. A design whose best layout is not among those of the sample is
    underpriced a little, never overpriced.

    Args:
        problem: one space; objectives with frontier area and quality.
        columns: rates (columns of the throughput table) that the choice is made by.
        ids: rows of the problem's table; None = all.
    """
    table = problem.table
    everything = np.arange(len(table), dtype=np.int64) if ids is None else ids
    count = len(everything)
    if count * len(problem.setup.layouts) <= 60_000:
        return _pool(problem, everything, evaluate(problem, table.candidates(everything)))
    sample = everything[np.unique(np.linspace(0, count - 1, SAMPLE).astype(np.int64))]
    first = evaluate(problem, table.candidates(sample))
    used = np.unique(first.layout_index[first.layout_index >= 0])
    if not used.size:
        used = np.arange(len(problem.setup.layouts))
    narrow = replace(problem, setup=problem.setup.with_(layouts=problem.setup.layouts.take(used)))
    narrow.__dict__["table"] = table
    narrow.__dict__["reference_values"] = problem.reference_values
    pool = _pool(problem, everything, evaluate(narrow, table.candidates(everything)))
    front = non_dominated(choice_values(pool, columns))
    best = [np.argsort(-pool.throughput[:, c], kind="stable")[:5] for c in columns] + [np.argsort(-pool.area, kind="stable")[:5]]
    spread = front[np.unique(np.linspace(0, len(front) - 1, min(len(front), REFINED)).astype(np.int64))]
    again = np.unique(np.concatenate([spread, *best]))
    refined = _pool(problem, everything[again], evaluate(problem, table.candidates(everything[again])))
    for name in ("throughput", "area"):
        getattr(pool, name)[again] = getattr(refined, name)
    return pool
