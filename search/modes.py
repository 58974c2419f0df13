"""What a candidate is: an architecture with its layouts swept, or an operating point. Each mode remembers what it gave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import points
from .space import Candidates, distributions, suggestions

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from .problem import SearchProblem

IntArray = NDArray[np.int64]


class Mode(Protocol):
    """How suggestions become candidates that were never priced before."""

    def distributions(self) -> dict[str, BaseDistribution]:
        """Named parameters of the study."""
        ...

    def project(self, params: Sequence[Mapping[str, Any]]) -> Candidates:
        """The nearest legal, unpriced candidate of each suggestion (fewer, when none is left near)."""
        ...

    def place(self, ids: IntArray) -> Candidates:
        """Candidates for seed architectures, none of them priced yet."""
        ...

    def neighbours(self, members: Candidates, *, wide: bool, count: int = 0) -> Candidates:
        """Legal, unpriced neighbours of candidates, at most ``count`` of them if given; they count as given out."""
        ...

    @property
    def left(self) -> int:
        """Candidates not yet given out."""
        ...


@dataclass(eq=False)
class Sweep:
    """A candidate is an architecture; its layouts and concurrencies are swept when it is priced."""

    problem: SearchProblem
    taken: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = np.zeros(len(self.problem.table), dtype=np.bool_)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Named parameters of the study."""
        return distributions(self.problem.table)

    def project(self, params: Sequence[Mapping[str, Any]]) -> Candidates:
        """Nearest legal candidates that were never given out."""
        ids = self.problem.projector.nearest(*suggestions(self.problem.table, params), taken=self.taken)
        return self._give(ids[ids >= 0])

    def place(self, ids: IntArray) -> Candidates:
        """Seed candidates that were never given out."""
        return self._give(ids[~self.taken[ids]])

    def neighbours(self, members: Candidates, *, wide: bool, count: int = 0) -> Candidates:
        """Legal neighbours that were never given out."""
        size = {} if wide else {"nearest": 8, "per_step": 1}
        found = self.problem.projector.neighbours(members.ids, **size) if len(members) else members.ids
        fresh = found[~self.taken[found]]
        return self._give(fresh[spread(len(fresh), count)])

    def _give(self, ids: IntArray) -> Candidates:
        self.taken[ids] = True
        return self.problem.table.candidates(ids)

    @property
    def left(self) -> int:
        """Candidates not yet given out."""
        return int(len(self.taken) - np.count_nonzero(self.taken))


@dataclass(eq=False)
class Suggest:
    """A candidate is one operating point: architecture, layout and concurrency are all suggested."""

    problem: SearchProblem
    seen: set[tuple[int, int, float]] = field(default_factory=set)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Named parameters of the study."""
        return {**distributions(self.problem.table), **points.layout_distributions(self.problem.setup)}

    def project(self, params: Sequence[Mapping[str, Any]]) -> Candidates:
        """Nearest legal candidates that were never given out."""
        ids = self.problem.projector.nearest(*suggestions(self.problem.table, params))
        return points.project_points(self.problem, ids, params, self.seen)

    def place(self, ids: IntArray) -> Candidates:
        """Seed candidates that were never given out."""
        room = points.layout_room(self.problem, ids)
        grid, gpus = np.array(self.problem.setup.concurrency), self.problem.setup.layouts.gpus
        found = []
        for row, design in enumerate(ids.tolist()):
            usable = np.flatnonzero(room[row] >= grid[0])
            for layout in (usable[np.argmin(gpus[usable])], usable[np.argmax(gpus[usable])]) if len(usable) else ():
                fitting = grid[grid <= room[row, layout]]
                found.append((design, int(layout), float(fitting[len(fitting) // 2])))
        fresh = [p for p in dict.fromkeys(found) if p not in self.seen]
        self.seen.update(fresh)
        return points.make_points(self.problem, fresh)

    def neighbours(self, members: Candidates, *, wide: bool, count: int = 0) -> Candidates:
        """Legal neighbours that were never given out."""
        found = points.neighbour_points(self.problem, members, self.seen)
        found = found.take(spread(len(found), count))
        self.seen.update(zip(found.ids.tolist(), *points.layout_and_load(found), strict=True))
        return found

    @property
    def left(self) -> int:
        """An upper bound: every layout and concurrency of every architecture."""
        setup = self.problem.setup
        return len(self.problem.table) * len(setup.layouts) * len(setup.concurrency) - len(self.seen)


def spread(size: int, count: int) -> IntArray:
    """Positions of at most ``count`` of ``size`` things, evenly spread; all of them where ``count`` is 0."""
    if not count or size <= count:
        return np.arange(size)
    return np.unique(np.linspace(0, size - 1, count).astype(np.int64))


def make_mode(problem: SearchProblem) -> Mode:
    """The mode of a problem."""
    return Suggest(problem) if problem.layout_mode == "suggest" else Sweep(problem)
