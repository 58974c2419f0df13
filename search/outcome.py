"""What a search returns, and its running state: fronts, trials, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .evaluate import Evaluator, Priced, evaluate
from .pareto import Front, best_layers, hypervolume
from .problem import SearchProblem
from .record import create_study, make_trials
from .space import Candidates

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
WIDTH = 8  # designs whose neighbourhoods are searched at least, per front
Recorder = Callable[[list["FrozenTrial"]], None]


@dataclass(frozen=True)
class Progress:
    """State of a running search.

    Attributes:
        phase: ``seed``, ``sample``, ``polish``, ``enumerate`` or ``certify``.
        trials: trials recorded.
        priced: designs priced.
        total: designs (or trials) the phase will price at most; 0 = not known.
        front_size: designs on the open front.
        hypervolume: of the open front, see :class:`SearchOutcome`.
    """

    phase: str
    trials: int
    priced: int
    total: int
    front_size: int
    hypervolume: float


Callback = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """Everything priced, and the two fronts.

    Attributes:
        problem: what was searched.
        evaluated: every candidate, in trial order, n of them.
        priced: their figures.
        open_front: positions into ``evaluated`` of the legal designs that no legal design dominates, ascending.
        equal_quality_front: the same among the designs at equal quality with the reference model.
        hypervolume: of the open front, each objective in units of ``problem.scales`` above ``problem.reference_point``
            (throughput: of the reference model's, above 0).
        reference_point: that point.
        trials: trials recorded, failed ones included.
        legal_trials: trials that broke no constraint.
        legal_architectures: distinct legal architectures priced.
        legal_in_study: architectures the constraints leave.
        exhausted: everything was priced before the trials ran out.
        interrupted: stopped by the user.
        polished: whether polishing ended because no neighbour improved.
        study: the Optuna study, in memory.
    """

    problem: SearchProblem
    evaluated: Candidates
    priced: Priced
    open_front: IntArray
    equal_quality_front: IntArray
    hypervolume: float
    reference_point: FloatArray
    trials: int
    legal_trials: int
    legal_architectures: int
    legal_in_study: int
    exhausted: bool
    interrupted: bool
    polished: bool
    study: optuna.Study | None


@dataclass(eq=False)
class Run:
    """Running state shared by the engines: prices blocks, records them, keeps both fronts."""

    problem: SearchProblem
    distributions: dict[str, BaseDistribution]
    evaluator: Evaluator = evaluate
    recorder: Recorder | None = None
    callback: Callback | None = None
    record: bool = True
    name: str = "shapefront"
    generation: int = 0
    exhausted: bool = False
    interrupted: bool = False
    polished: bool = False
    study: Any = None
    parts: list[Candidates] = field(default_factory=list)
    prices: list[Priced] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    count: int = 0
    open_front: Front = field(init=False)
    equal_front: Front = field(init=False)

    def __post_init__(self) -> None:
        self.open_front = Front(len(self.problem.objectives))
        self.equal_front = Front(len(self.problem.objectives))
        if self.record:
            self.study = create_study(self.problem, self.name)

    def price(self, candidates: Candidates, sources: Sequence[str]) -> list[FrozenTrial]:
        """Price one block, record it as one generation, merge it into the fronts; returns its trials."""
        if not len(candidates):
            return []
        priced = self.evaluator(self.problem, candidates)
        trials: list[FrozenTrial] = []
        if self.record:
            trials = make_trials(
                self.problem, candidates, priced, self.distributions, generation=self.generation, sources=sources
            )
            self.study.add_trials(trials)
            if self.recorder is not None:
                self.recorder(trials)
        positions = np.arange(self.count, self.count + len(candidates))
        self.generation += 1
        self.starts.append(self.count)
        self.count += len(candidates)
        self.parts.append(candidates)
        self.prices.append(priced)
        legal = priced.legal
        self.open_front.add(positions[legal], priced.objectives[legal])
        equal = legal & priced.equal_quality
        self.equal_front.add(positions[equal], priced.objectives[equal])
        return trials

    def volume(self) -> float:
        """Hypervolume of the open front in units of the problem's scales."""
        return front_volume(self.problem, self.open_front.values)

    def report(self, phase: str, total: int = 0) -> None:
        """Tell the callback where the search stands."""
        if self.callback is not None:
            self.callback(Progress(phase, self.count, self.count, total, len(self.open_front), self.volume()))

    def members(self, done: set[int]) -> Candidates | None:
        """Members of both fronts that are not in ``done`` (which is extended), or ``None``.

        Where a front holds fewer than :data:`WIDTH` designs, the next non-dominated layers count as well, so that the
        runners-up are found as surely as the best.
        """
        both = np.concatenate((self._layers(self.open_front, False), self._layers(self.equal_front, True)))
        wanted = [i for i in np.unique(both).tolist() if i not in done]
        if not wanted:
            return None
        done.update(wanted)
        return self.at(np.array(wanted, dtype=np.int64))

    def _layers(self, front: Front, equal: bool) -> IntArray:
        if len(front) >= WIDTH or not self.prices:
            return front.ids
        ok = np.concatenate([p.legal & p.equal_quality if equal else p.legal for p in self.prices])
        positions = np.flatnonzero(ok)
        values = np.concatenate([p.objectives for p in self.prices])[positions]
        return np.asarray(positions[best_layers(values, WIDTH)])

    def at(self, positions: IntArray) -> Candidates:
        """Candidates at positions in trial order."""
        part = np.searchsorted(self.starts, positions, side="right") - 1
        rows = [self.parts[p].take([i - self.starts[p]]) for p, i in zip(part.tolist(), positions.tolist(), strict=True)]
        return Candidates.concatenate(rows)

    def outcome(self) -> SearchOutcome:
        """Close the run."""
        evaluated, priced = Candidates.concatenate(self.parts), Priced.concatenate(self.prices)
        legal = priced.legal
        return SearchOutcome(
            problem=self.problem,
            evaluated=evaluated,
            priced=priced,
            open_front=np.sort(self.open_front.ids),
            equal_quality_front=np.sort(self.equal_front.ids),
            hypervolume=self.volume(),
            reference_point=self.problem.reference_point,
            trials=self.count,
            legal_trials=int(np.count_nonzero(legal)),
            legal_architectures=len(np.unique(evaluated.ids[legal])),
            legal_in_study=len(self.problem.table),
            exhausted=self.exhausted,
            interrupted=self.interrupted,
            polished=self.polished,
            study=self.study,
        )


def front_volume(problem: SearchProblem, values: FloatArray) -> float:
    """Hypervolume of objective rows ``(F, K)`` in units of the problem's scales; NaN beyond three objectives."""
    if len(problem.objectives) > 3:
        return float("nan")
    return hypervolume(values / problem.scales, problem.reference_point)
