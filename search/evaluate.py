"""Pricing of candidates: one array call per space and block of designs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..constraints.equal_quality import equal_quality
from ..costmodel import ArchitectureBatch
from .objectives import Context
from .problem import SearchProblem
from .space import Candidates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
BLOCK = 32  # designs a certificate or an estimate prices at a time
AT_ONCE = 128  # designs grouped by their layouts at a time; bounds the memory, decides no figure


@dataclass(frozen=True, eq=False)
class Priced:
    """What is known of ``n`` priced candidates.

    Attributes:
        objectives: shape ``(n, K)``, larger is better; NaN where a user function failed.
        throughput: best tokens/s/GPU at each of the problem's rates, ``(n, R)``.
        layout_index: layout that gives it, ``(n, R)``; −1 where no layout reaches the rate.
        concurrency: sequences in flight there, ``(n, R)``.
        violations: constraint name → dimensionless value, ``(n,)``; <= 0 is feasible.
        equal_quality: at equal quality with the reference model, ``(n,)``.
        errors: message of a failed user function, ``""`` = none, length n.
    """

    objectives: FloatArray
    throughput: FloatArray
    layout_index: IntArray
    concurrency: FloatArray
    violations: Mapping[str, FloatArray]
    equal_quality: BoolArray
    errors: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.objectives)

    @property
    def legal(self) -> BoolArray:
        """No constraint violated and no function failed, ``(n,)``."""
        ok = np.asarray(~np.isnan(self.objectives).any(axis=1))
        for value in self.violations.values():
            ok = ok & (value <= 0)
        return ok

    def take(self, index: BoolArray | IntArray) -> Priced:
        """The rows at ``index``."""
        rows = np.arange(len(self))[index]
        return Priced(
            self.objectives[rows],
            self.throughput[rows],
            self.layout_index[rows],
            self.concurrency[rows],
            {name: value[rows] for name, value in self.violations.items()},
            self.equal_quality[rows],
            tuple(self.errors[i] for i in rows.tolist()),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Priced]) -> Priced:
        """Join blocks; a constraint that a block does not know counts as met there (−1)."""
        names = dict.fromkeys(name for p in parts for name in p.violations)
        return cls(
            np.concatenate([p.objectives for p in parts]),
            np.concatenate([p.throughput for p in parts]),
            np.concatenate([p.layout_index for p in parts]),
            np.concatenate([p.concurrency for p in parts]),
            {n: np.concatenate([p.violations.get(n, np.full(len(p), -1.0)) for p in parts]) for n in names},
            np.concatenate([p.equal_quality for p in parts]),
            tuple(e for p in parts for e in p.errors),
        )


Evaluator = Callable[[SearchProblem, Candidates], Priced]


def evaluate(problem: SearchProblem, candidates: Candidates) -> Priced:
    """Price candidates in process, :data:`AT_ONCE` designs of one space at a time.

    Args:
        problem: what decides the price.
        candidates: designs, n of them.

    Returns:
        Their figures, in the same order.
    """
    parts: list[Priced] = []
    where: list[IntArray] = []
    for positions, space, batch in candidates.batches(problem.spaces):
        for start in range(0, len(batch), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(batch)))
            block = candidates.take(positions[rows])
            parts.append(_price(problem, space, batch.take(rows), block))
            where.append(positions[rows])
    if not parts:
        return _nothing(problem)
    joined = Priced.concatenate(parts)
    return joined.take(np.argsort(np.concatenate(where), kind="stable"))


def _nothing(problem: SearchProblem) -> Priced:
    rates = len(problem.rates)
    return Priced(
        np.zeros((0, len(problem.objectives))),
        np.zeros((0, rates)),
        np.zeros((0, rates), dtype=np.int64),
        np.zeros((0, rates)),
        {},
        np.zeros(0, dtype=np.bool_),
        (),
    )


def _price(problem: SearchProblem, space: int, batch: ArchitectureBatch, block: Candidates) -> Priced:
    violations = {**problem.budget.violations(batch), **problem.rules.violations(batch)}
    allowed = problem.rules.layouts_allowed(batch, problem.setup.layouts)
    priced = _context(problem, batch, problem.spaces[space].formats, allowed, block)
    context, layout, concurrency, fits = priced
    violations["fits_a_layout"] = np.where(fits, -1.0, 1.0)
    columns, errors = [], [""] * len(batch)
    for objective in problem.objectives:
        values, messages = objective.values(context)
        columns.append(np.asarray(values, dtype=np.float64))
        errors = [a or b for a, b in zip(errors, messages, strict=True)] if messages else errors
    return Priced(
        np.stack(columns, axis=1),
        context.throughput,
        layout,
        concurrency,
        violations,
        np.asarray(equal_quality(batch, problem.reference, train_tokens=problem.train_tokens), dtype=np.bool_),
        tuple(errors),
    )


def _context(
    problem: SearchProblem, batch: ArchitectureBatch, formats: object, allowed: BoolArray, block: Candidates | None
) -> tuple[Context, IntArray, FloatArray, BoolArray]:
    """Throughput table of a batch, the layouts and concurrencies behind it, and which designs fit any layout."""
    from ..constraints.deployable import throughput_at_usable

    setup = problem.setup if formats == problem.setup.formats else problem.setup.with_(formats=formats)
    room = setup.limits(batch, allowed)
    fits = np.asarray(np.any(room >= 1, axis=1))
    empty = np.zeros((len(batch), 0))
    if problem.rates:
        table = throughput_at_usable(batch, setup, np.array(problem.rates), room)
        throughput, layout, concurrency = table.tokens_per_second_per_gpu, table.layout_index.astype(np.int64), table.concurrency
    else:
        throughput, layout, concurrency = empty, empty.astype(np.int64), empty
    point = None
    if block is not None and block.layout is not None and block.concurrency is not None:
        from .points import price_points

        point, ok = price_points(batch, setup, block.layout, block.concurrency, room)
        fits = fits & ok
    context = Context(batch, np.array(problem.rates), throughput, problem.train_tokens, problem.reference, point)
    return context, layout, concurrency, fits


def some_design_fits(problem: SearchProblem) -> bool:
    """Whether any legal design has an allowed layout that holds at least one sequence; stops at the first."""
    total = len(problem.table)
    for start in range(0, total, BLOCK):
        block = problem.table.candidates(np.arange(start, min(start + BLOCK, total)))
        for _, space, batch in block.batches(problem.spaces):
            setup = problem.setup.with_(formats=problem.spaces[space].formats)
            if np.any(setup.limits(batch, problem.rules.layouts_allowed(batch, setup.layouts)) >= 1):
                return True
    return False


def price_reference(problem: SearchProblem) -> FloatArray:
    """Objectives of the reference model with its own best layouts, shape ``(K,)``; NaN where one cannot be priced.

    Layout rules that the reference does not meet (an expert width off the lattice) are dropped to divisibility alone,
    so that the reference is not handicapped by rules made for new designs.
    """
    from ..constraints.divisibility import layout_allowed

    if problem.layout_mode == "suggest":
        return np.full(len(problem.objectives), np.nan)
    batch = ArchitectureBatch.from_architectures([problem.reference])
    allowed = np.asarray(layout_allowed(batch, problem.setup.layouts, balanced_pipeline=problem.rules.balanced_pipeline))
    context, *_ = _context(problem, batch, problem.setup.formats, allowed, None)
    return np.array([float(objective.values(context)[0][0]) for objective in problem.objectives])
