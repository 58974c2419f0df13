"""Problems with proven fronts, and a meter that draws hypervolume against evaluations and processor seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shapefront.search.certify import Certificate, certify
from shapefront.search.evaluate import Priced, evaluate
from shapefront.search.objectives import QualityGain
from shapefront.search.optimize import optimize
from shapefront.search.outcome import front_volume
from shapefront.search.pareto import Front
from shapefront.search.problem import SearchProblem
from shapefront.search.space import Candidates
from shapefront.studies.problem import build_problem
from shapefront.studies.spec_file import load_spec

BUILT_IN = ("dense-8b", "dense-70b", "moe-30b-a3b", "moe-120b", "moe-671b-a37b")


@lru_cache(maxsize=8)
def load(name: str, quality: bool = False) -> SearchProblem:
    """A study's search problem, its table built; ``quality`` adds the quality objective."""
    own = Path(__file__).parent / f"{name}.toml"
    problem = build_problem(load_spec(own if own.is_file() else name))
    if quality and not any(isinstance(o, QualityGain) for o in problem.objectives):
        problem = replace(problem, objectives=(*problem.objectives, QualityGain()))
    problem.projector.find(np.zeros(1, dtype=np.int64), problem.table.columns[:1].astype(np.int64))  # builds table and tree
    _ = problem.scales, problem.equal_quality_ids
    return problem


@lru_cache(maxsize=8)
def proven(name: str, quality: bool = False) -> Certificate:
    """The proven front of a study."""
    problem = load(name, quality)
    return certify(problem, optimize(problem, trials=1000, seed=12345))


class Stop(Exception):
    """The budget of evaluations or seconds is spent."""


@dataclass
class Meter:
    """Prices for a contender and notes the hypervolume after each block; its own bookkeeping is not timed.

    Attributes:
        problem: the problem in whose objectives the hypervolume is measured.
        best: proven hypervolume.
        evaluations: budget of evaluations.
        seconds: budget of processor seconds.
        target: share of the proven hypervolume that ends the run.
    """

    problem: SearchProblem
    best: float
    evaluations: int = 10**9
    seconds: float = float("inf")
    target: float = float("inf")
    points: list[tuple[int, float, float]] = field(default_factory=list)
    spent: int = 0
    ended: float = 0.0
    _start: float = field(default_factory=time.process_time)
    _pause: float = 0.0
    _tops: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.front = Front(len(self.problem.objectives))

    @property
    def clock(self) -> float:
        """Processor seconds of the contender."""
        return time.process_time() - self._start - self._pause

    def count(self, number: int) -> None:
        """Evaluations that need no price (a design that breaks a constraint)."""
        self.spent += number
        self._stop()

    def price(self, problem: SearchProblem, candidates: Candidates) -> Priced:
        """Evaluator of a contender."""
        candidates = candidates.take(slice(0, max(self.evaluations - self.spent, 1))) if self.spent else candidates
        priced = evaluate(problem, candidates)
        begin = time.process_time()
        self.spent += len(candidates)
        values = priced.objectives if candidates.layout is None else self._swept(candidates, priced)
        self.front.add(candidates.ids[priced.legal], values[priced.legal])
        share = front_volume(self.problem, self.front.values) / self.best
        self._pause += time.process_time() - begin
        self.points.append((self.spent, self.clock, share))
        self._stop()
        return priced

    def _stop(self) -> None:
        reached = bool(self.points) and self.points[-1][2] >= self.target
        if reached or self.spent >= self.evaluations or self.clock >= self.seconds:
            self.ended = self.clock
            raise Stop

    def _swept(self, candidates: Candidates, priced: Priced) -> NDArray[np.float64]:
        """Operating points as what is known of their architectures: best throughput at each of the problem's rates."""
        rates = np.array(self.problem.rates)
        rows = []
        for design, (throughput, user_rate, *rest) in zip(candidates.ids.tolist(), priced.objectives.tolist(), strict=True):
            now = np.concatenate((np.where(user_rate >= rates, throughput, 0.0), rest))
            self._tops[design] = np.maximum(self._tops.get(design, now), now)
            rows.append(self._tops[design])
        return np.array(rows)

    def at(self, *, evaluations: float = float("inf"), seconds: float = float("inf")) -> float:
        """Share of the proven hypervolume within a budget."""
        return max((v for n, s, v in self.points if n <= evaluations and s <= seconds), default=0.0)
