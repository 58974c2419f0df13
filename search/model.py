"""Designs that a cheap model of the objectives expects to widen the front.

What depends on the design alone (predicted loss) is computed, not modelled. Each other objective is kriged over the
searched dimensions (normalised log coordinates, see :mod:`.project`) and two figures that a decode step is mostly made
of, log active parameters and log KV bytes per token::

    f(x) = trend(x) + Z(x),   trend linear (ridge),   Z a Gaussian process with exp(-r/l) covariance

(ordinary regression kriging; Rasmussen and Williams 2006, eqs. 2.23 and 2.38-2.41). The exponential covariance asks for
no smoothness: throughput has steps where a layout stops to divide. A model that is wrong costs little: its share of a
generation follows its success, like the other sources' (:mod:`.polish`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..constraints.equal_quality import equal_quality
from ..costmodel.memory import kv_bytes_per_token
from .modes import Sweep
from .objectives import Context
from .outcome import Run
from .problem import SearchProblem
from .sampler import generation_seed
from .space import Candidates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
POOL = 3000  # unpriced designs looked at for a generation, evenly from the whole table
NEAR, MEMBERS = 40, 24  # and so many around each of so many front members
LEAST = 16  # designs to learn from
MOST = 600  # newest priced designs that are learned from (a solve of MOST^3)
RIDGE, NUGGET, LENGTH = 1e-3, 1e-3, 1.0  # of standardised inputs; the length is in units of the median distance
EQUAL = 4  # one pick in so many is for the equal-quality front


@dataclass(eq=False)
class Model:
    """Picks designs by predicted improvement of the fronts.

    Attributes:
        run: the search so far.
        mode: which designs were given out.
        seed: the run's seed.
    """

    run: Run
    mode: Sweep
    seed: int
    _inputs: dict[int, FloatArray] = field(default_factory=dict, repr=False)  # part of the run -> features

    def take(self, count: int) -> Candidates | None:
        """At most ``count`` designs that are expected on a front; ``None`` where too little is known or nothing is."""
        if count < 1 or len(self._known()[0]) < LEAST:
            return None
        ids = self._pool()
        if not len(ids):
            return None
        candidates = self.run.problem.table.candidates(ids)
        features, own, equal = describe(self.run.problem, candidates)
        expected = self._predict(features, own)
        chosen: list[int] = []
        for front, mask, share in (
            (self.run.equal_front.values, equal, count // EQUAL),
            (self.run.open_front.values, np.ones(len(ids), dtype=np.bool_), count),
        ):
            rows = np.flatnonzero(mask)
            picked = widest(expected[rows], front, share - (len(chosen) if share == count else 0), expected[chosen])
            chosen += [int(r) for r in rows[picked] if int(r) not in chosen]
        return self.mode.place(ids[chosen]) if chosen else None

    def _pool(self) -> IntArray:
        run, problem = self.run, self.run.problem
        rng = np.random.default_rng([generation_seed(self.seed, run.generation), 1])
        count = len(problem.table)
        spread = np.arange(count) if count <= POOL else np.unique(rng.integers(0, count, POOL))
        members = np.concatenate((run.open_front.ids, run.equal_front.ids)).astype(np.int64)
        if len(members) > MEMBERS:
            members = rng.choice(members, MEMBERS, replace=False)
        near = problem.projector.neighbours(np.unique(run.at(np.sort(members)).ids), nearest=NEAR) if len(members) else members
        equal = problem.equal_quality_ids
        if len(equal) > POOL // 8:
            equal = rng.choice(equal, POOL // 8, replace=False)
        ids = np.unique(np.concatenate((spread, near, equal)))
        return ids[~self.mode.taken[ids]]

    def _known(self) -> tuple[FloatArray, FloatArray]:
        """Features and objectives of the newest legal designs."""
        xs, ys, size = [], [], 0
        for index in range(len(self.run.parts) - 1, -1, -1):
            if index not in self._inputs:
                self._inputs[index] = describe(self.run.problem, self.run.parts[index])[0]
            legal = self.run.prices[index].legal & np.isfinite(self.run.prices[index].objectives).all(axis=1)
            xs.append(self._inputs[index][legal])
            ys.append(self.run.prices[index].objectives[legal])
            size += len(ys[-1])
            if size >= MOST:
                break
        return np.concatenate(xs)[:MOST], np.concatenate(ys)[:MOST]

    def _predict(self, features: FloatArray, own: FloatArray) -> FloatArray:
        """Expected objectives, ``(n, K)``; rounded, so that a last bit of the solver decides nothing."""
        x, y = self._known()
        out = own.copy()
        modelled = [k for k, o in enumerate(self.run.problem.objectives) if o.bounded != "design"]
        if modelled:
            logs = [self.run.problem.objectives[k].bounded == "throughput" for k in modelled]
            floors = [1e-3 * max(float(y[:, k].max()), 1e-12) for k in modelled]
            targets = [np.log(np.maximum(y[:, k], f)) if g else y[:, k] for k, f, g in zip(modelled, floors, logs, strict=True)]
            found = krige(x, np.stack(targets, axis=1), features)
            out[:, modelled] = np.where(logs, np.exp(np.minimum(found, 300.0)), found)
        out = np.nan_to_num(out)
        digits = 9 - np.ceil(np.log10(np.maximum(np.abs(out).max(axis=0), 1e-300))).astype(int)
        return np.stack([np.round(out[:, k], int(d)) for k, d in enumerate(digits)], axis=1)


def describe(problem: SearchProblem, candidates: Candidates) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Features ``(n, d)``, objectives that depend on the design alone ``(n, K)`` (0 elsewhere), and equal quality ``(n,)``."""
    names, count = problem.table.names, len(candidates)
    spaces = len(problem.spaces)
    features = np.zeros((count, len(names) + 2 + (spaces if spaces > 1 else 0)))
    own = np.zeros((count, len(problem.objectives)))
    equal = np.zeros(count, dtype=np.bool_)
    for where, index, batch in candidates.batches(problem.spaces):
        space = problem.spaces[index]
        used = [j for j, name in enumerate(names) if name in space.dimensions and len(space.dimensions[name]) > 1]
        if used:
            features[where[:, None], np.array(used)[None, :]] = problem.projector.coordinates(index, candidates.columns[where])
        features[where, len(names)] = np.log(np.maximum(batch.active_params, 1))
        features[where, len(names) + 1] = np.log(np.maximum(kv_bytes_per_token(batch, space.formats), 1e-9))
        if spaces > 1:
            features[where, len(names) + 2 + index] = 1.0
        context = Context(
            batch,
            np.array(problem.rates),
            np.zeros((len(where), len(problem.rates))),
            problem.train_tokens,
            problem.reference,
        )
        for k, objective in enumerate(problem.objectives):
            if objective.bounded == "design":
                own[where, k] = objective.values(context)[0]
        equal[where] = equal_quality(batch, problem.reference, train_tokens=problem.train_tokens)
    return features, own, equal


def krige(x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
    """Regression kriging of several outputs that share their inputs.

    Args:
        x: inputs, ``(n, d)``.
        y: outputs, ``(n, K)``.
        at: where to predict, ``(m, d)``.

    Returns:
        predictions, ``(m, K)``; outputs that are constant stay so.
    """
    middle, spread = x.mean(axis=0), x.std(axis=0)
    scale = np.where(spread > 1e-12, spread, np.inf)
    u, v = (x - middle) / scale, (at - middle) / scale
    level, height = y.mean(axis=0), y.std(axis=0)
    z = (y - level) / np.where(height > 0, height, 1.0)
    slope = np.linalg.solve(u.T @ u + RIDGE * len(x) * np.eye(u.shape[1]), u.T @ z)
    rest = z - u @ slope
    distance = _distances(u, u)
    length = LENGTH * max(float(np.median(distance)), 1e-9)
    weights = np.linalg.solve(np.exp(-distance / length) + NUGGET * np.eye(len(x)), rest)
    return np.asarray(level + height * (v @ slope + np.exp(-_distances(v, u) / length) @ weights))


def _distances(a: FloatArray, b: FloatArray) -> FloatArray:
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))


def widest(expected: FloatArray, front: FloatArray, count: int, also: FloatArray) -> IntArray:
    """Rows that stand farthest beyond the front, each chosen one standing for the front of the next.

    The distance of a row is the least over front members of its largest lead in any objective, objectives in units of the
    front's range (the additive epsilon of Zitzler et al. 2003); rows without a lead are never chosen.

    Args:
        expected: objectives, ``(n, K)``, larger is better.
        front: members, ``(F, K)``.
        count: rows wanted.
        also: rows already chosen, ``(c, K)``.
    """
    if count < 1 or not len(expected) or not len(front):
        return np.zeros(0, dtype=np.int64)
    together = np.concatenate((front, expected)) if len(front) < 3 else front
    span = np.ptp(together, axis=0)
    unit = np.where(span > 0, span, np.maximum(np.abs(front).max(axis=0), 1e-300))
    lead = np.full(len(expected), np.inf)
    for member in np.concatenate((front, also)):
        lead = np.minimum(lead, ((expected - member) / unit).max(axis=1))
    picked: list[int] = []
    while len(picked) < count:
        best = int(np.argmax(lead))
        if not lead[best] > 0:
            break
        picked.append(best)
        lead = np.minimum(lead, ((expected - expected[best]) / unit).max(axis=1))
    return np.array(picked, dtype=np.int64)
