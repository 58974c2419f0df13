"""Proof of a front: every legal design is priced, or lies under a bound that a priced design dominates.

Three levels of groups, each split only where its bound is not dominated: (attention side), (attention side, depth),
single design. What survives the third level is priced exactly. A design at equal quality with the reference model is
pruned only by designs at equal quality, so both fronts are proven at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel import InvalidValueError
from ..costmodel.checks import number
from .evaluate import BLOCK, Evaluator, Priced, evaluate
from .exhaustive import merge
from .outcome import Callback, Progress, Recorder, SearchOutcome, front_volume
from .pareto import Front, dominated_by
from .problem import SearchProblem
from .record import make_trials
from .space import Candidates, distributions
from .units import Unit, units

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Certificate:
    """What is proven.

    Attributes:
        status: ``exact`` (both fronts are the true ones) or ``gap``.
        legal: designs of the study.
        priced: of them priced exactly, before or by the certificate.
        pruned: of them shown to be dominated by bounds.
        open: designs neither priced nor pruned when time ran out (0 when exact).
        gap_hypervolume: hypervolume that designs not looked at could add at most, in the outcome's units.
        hypervolume: of the proven front.
        open_front: ids of the open front, ascending.
        equal_quality_front: ids of the equal-quality front, ascending.
        found: front members the search had missed.
        outcome: the search's outcome with the missed members added (trials included); ``None`` without one.
    """

    status: str
    legal: int
    priced: int
    pruned: int
    open: int
    gap_hypervolume: float
    hypervolume: float
    open_front: IntArray
    equal_quality_front: IntArray
    found: int
    outcome: SearchOutcome | None


def certify(
    problem: SearchProblem,
    outcome: SearchOutcome | None = None,
    *,
    evaluator: Evaluator | None = None,
    recorder: Recorder | None = None,
    callback: Callback | None = None,
    max_seconds: float = float("inf"),
) -> Certificate:
    """Prove the fronts of a study.

    Args:
        problem: ``layout_mode="sweep"`` and objectives that have bounds (all built-in ones).
        outcome: a finished search; its front prunes from the start.
        evaluator: prices survivors; default in process.
        recorder: told of the trials of missed front members.
        callback: told of the progress.
        max_seconds: after that the certificate closes with a gap.

    Raises:
        InvalidValueError: suggested layouts, a user objective, or more than three objectives.
    """
    _check(problem)
    number("max_seconds", max_seconds, "at least 0", high=float("inf"))
    proof = _Proof(problem, evaluator or evaluate, callback, time.monotonic() + max_seconds)
    if outcome is not None:
        proof.start(outcome.evaluated, outcome.priced)
    proof.prune()
    return proof.certificate(outcome, recorder)


def _check(problem: SearchProblem) -> None:
    if problem.layout_mode != "sweep":
        raise InvalidValueError('a certificate needs layout_mode="sweep"; suggested layouts are not bounded')
    free = [o.name for o in problem.objectives if not o.bounded]
    if free:
        raise InvalidValueError(f"objective '{free[0]}' has no optimistic bound, so nothing can be proven; leave it out")
    if len(problem.objectives) > 3:
        raise InvalidValueError(f"a certificate states a hypervolume: at most three objectives, got {len(problem.objectives)}")


class _Proof:
    """Running state of a certificate."""

    def __init__(self, problem: SearchProblem, evaluator: Evaluator, callback: Callback | None, deadline: float) -> None:
        self.problem, self.evaluator, self.callback, self.deadline = problem, evaluator, callback, deadline
        size = len(problem.table)
        self.priced = np.zeros(size, dtype=np.bool_)
        self.pruned = np.zeros(size, dtype=np.bool_)
        self.fronts = Front(len(problem.objectives)), Front(len(problem.objectives))
        self.left: list[FloatArray] = []  # bounds of what was not looked at
        self.known: list[tuple[Candidates, Priced]] = []

    def start(self, candidates: Candidates, priced: Priced) -> None:
        """Take over what a search has priced."""
        self.priced[candidates.ids] = True
        merge(self.fronts, candidates, priced)
        self.known.append((candidates, priced))

    def dominated(self, bounds: FloatArray, equal: BoolArray) -> BoolArray:
        """Which bounds a front member dominates; equal-quality designs answer to the equal-quality front."""
        out = np.zeros(len(bounds), dtype=np.bool_)
        for front, mask in ((self.fronts[0], ~equal), (self.fronts[1], equal)):
            if mask.any() and len(front):
                out[mask] = dominated_by(bounds[mask], front.values)
        return out

    def prune(self) -> None:
        """Bound, split and price until nothing is left or time is up."""
        work: list[tuple[float, int, Unit, Any]] = []
        for place, unit in enumerate(units(self.problem)):
            groups = unit.groups()
            best = front_volume(self.problem, groups.bounds)
            work.append((-best, place, unit, groups))
            self._report(len(work))
        for _, _, unit, groups in sorted(work, key=lambda item: item[:2]):
            alive = ~self.dominated(groups.bounds, groups.equal)
            self._drop(unit, np.flatnonzero(~alive[groups.of_member]))
            members = np.flatnonzero(alive[groups.of_member] & ~self.priced[unit.ids])
            if len(members) and time.monotonic() > self.deadline:
                self.left.append(groups.bounds[alive])
            elif len(members):
                self._split(unit, members)
            unit.forget()

    def _split(self, unit: Unit, members: IntArray) -> None:
        """Second and third level of one unit, then exact prices, best bounds first."""
        finer = unit.groups(members, by_depth=True)
        alive = ~self.dominated(finer.bounds, finer.equal)
        self._drop(unit, members[~alive[finer.of_member]])
        members = members[alive[finer.of_member]]
        if not len(members):
            return
        bounds, equal = unit.designs(members), unit.equal[members]
        order = np.argsort(-(bounds / self.problem.scales).sum(axis=1), kind="stable")
        members, bounds, equal = members[order], bounds[order], equal[order]
        while len(members):
            dead = self.dominated(bounds, equal)
            self._drop(unit, members[dead])
            members, bounds, equal = members[~dead], bounds[~dead], equal[~dead]
            if len(members) and time.monotonic() > self.deadline:
                self.left.append(bounds)
                return
            self._price(unit.ids[members[:BLOCK]])
            members, bounds, equal = members[BLOCK:], bounds[BLOCK:], equal[BLOCK:]

    def _price(self, ids: IntArray) -> None:
        if len(ids):
            block = self.problem.table.candidates(np.sort(ids))
            priced = self.evaluator(self.problem, block)
            self.start(block, priced)
            self._report(0)

    def _drop(self, unit: Unit, members: IntArray) -> None:
        ids = unit.ids[members]
        self.pruned[ids[~self.priced[ids]]] = True

    def _report(self, bounded: int) -> None:
        if self.callback is not None:
            done = int(np.count_nonzero(self.priced | self.pruned)) if not bounded else 0
            volume = front_volume(self.problem, self.fronts[0].values)
            self.callback(Progress("certify", 0, done, len(self.priced), len(self.fronts[0]), volume))

    def certificate(self, outcome: SearchOutcome | None, recorder: Recorder | None) -> Certificate:
        """Close the proof."""
        priced, pruned = int(np.count_nonzero(self.priced)), int(np.count_nonzero(self.pruned))
        left = len(self.priced) - priced - pruned
        volume = front_volume(self.problem, self.fronts[0].values)
        gap = front_volume(self.problem, np.concatenate([self.fronts[0].values, *self.left])) - volume if left else 0.0
        members = np.unique(np.concatenate([f.ids for f in self.fronts]))
        missed = members if outcome is None else np.setdiff1d(members, outcome.evaluated.ids)
        return Certificate(
            status="gap" if left else "exact",
            legal=len(self.priced),
            priced=priced,
            pruned=pruned,
            open=left,
            gap_hypervolume=gap,
            hypervolume=volume,
            open_front=np.sort(self.fronts[0].ids),
            equal_quality_front=np.sort(self.fronts[1].ids),
            found=len(missed),
            outcome=None if outcome is None else extend(outcome, missed, self.evaluator, recorder),
        )


def extend(outcome: SearchOutcome, ids: IntArray, evaluator: Evaluator, recorder: Recorder | None) -> SearchOutcome:
    """The outcome with more designs priced, recorded as trials of source ``enumerated``."""
    if not len(ids):
        return outcome
    problem = outcome.problem
    block = problem.table.candidates(np.sort(ids))
    priced = evaluator(problem, block)
    if outcome.study is not None:
        generation = 1 + max((t.user_attrs["generation"] for t in outcome.study.get_trials(deepcopy=False)), default=-1)
        sources = ["enumerated"] * len(block)
        trials = make_trials(problem, block, priced, distributions(problem.table), generation=generation, sources=sources)
        outcome.study.add_trials(trials)
        if recorder is not None:
            recorder(trials)
    evaluated, figures = Candidates.concatenate([outcome.evaluated, block]), Priced.concatenate([outcome.priced, priced])
    fronts = Front(len(problem.objectives)), Front(len(problem.objectives))
    positions = np.arange(len(evaluated))
    for front, mask in zip(fronts, (figures.legal, figures.legal & figures.equal_quality), strict=True):
        front.add(positions[mask], figures.objectives[mask])
    return replace(
        outcome,
        evaluated=evaluated,
        priced=figures,
        open_front=np.sort(fronts[0].ids),
        equal_quality_front=np.sort(fronts[1].ids),
        hypervolume=front_volume(problem, fronts[0].values),
        trials=outcome.trials + len(block),
        legal_trials=int(np.count_nonzero(figures.legal)),
        legal_architectures=len(np.unique(evaluated.ids[figures.legal])),
    )
