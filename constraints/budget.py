"""The parameter budget, solved on the aligned lattice: every legal design of a study in one array pass.

With everything but one width fixed, the total is linear in that width x: N(x) = c0 + c1·x (three-matrix FFNs, the
leading dense layers and the shared experts scale with x too), so the legal widths are the lattice values in
[((1 − t)·N − c0)/c1, ((1 + t)·N − c0)/c1]. The other dimensions are joined one at a time, and a rule is applied as
soon as its dimensions are known, so that the join stays small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..costmodel import ArchitectureBatch, InvalidValueError
from ..costmodel.batch import IntArray
from ..costmodel.checks import number, whole
from . import join
from .rules import Rules
from .space import DesignSpace, sound

MAX_PARAMS = 10**14
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_count(text: str | float) -> float:
    """Read a parameter count: ``"30B"``, ``"1.5T"``, ``30.5e9``.

    Raises:
        InvalidValueError: not such a number, not positive, or beyond 10^14.
    """
    if isinstance(text, bool):
        raise InvalidValueError(f"a parameter count reads like 30B or 30.5e9, got {text!r}")
    if isinstance(text, int | float):
        value = float(text) if abs(text) < 1e300 else math.inf
    else:
        word = str(text).strip().upper()
        scale = word[-1:] if word[-1:] in _SUFFIXES and not word[-1:].isdigit() else ""
        try:
            value = float(word[: len(word) - len(scale)].replace("_", "")) * _SUFFIXES[scale]
        except (ValueError, OverflowError):
            raise InvalidValueError(f"a parameter count reads like 30B or 30.5e9 (K, M, B, T), got {str(text)[:40]!r}") from None
    if math.isnan(value):
        raise InvalidValueError(f"a parameter count must be a number, got {str(text)[:40]!r}; write it like 30B")
    if not 0 < value <= MAX_PARAMS:
        raise InvalidValueError(f"a parameter count must be above 0 and at most {MAX_PARAMS:.0e}, got {str(text)[:40]}")
    return value


@dataclass(frozen=True, slots=True)
class Budget:
    """Parameters a design may have.

    Attributes:
        total_params: every stored weight.
        active_params: matrices that multiply a token, LM head included; None leaves it free.
        tolerance: allowed relative distance, for both; 0.01 is 1 %.
    """

    total_params: float
    active_params: float | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_params", parse_count(self.total_params))
        if self.active_params is not None:
            object.__setattr__(self, "active_params", parse_count(self.active_params))
            if self.active_params > self.total_params:
                raise InvalidValueError(
                    f"active parameters must be at most the total, got active {self.active_params:.4g} of {self.total_params:.4g}"
                )
        number("tolerance", self.tolerance, "above 0 and at most 0.5", above=True, high=0.5)

    def violations(self, batch: ArchitectureBatch) -> dict[str, NDArray[np.float64]]:
        """|N/N_budget − 1|/tolerance − 1 for the total and the active count, ``(A,)`` each; <= 0 is feasible."""
        result = {"total_params": np.abs(batch.total_params / self.total_params - 1) / self.tolerance - 1}
        if self.active_params is not None:
            result["active_params"] = np.abs(batch.active_params / self.active_params - 1) / self.tolerance - 1
        return result

    def feasible(self, batch: ArchitectureBatch) -> NDArray[np.bool_]:
        """Designs inside the budget, ``(A,)``."""
        return np.asarray(np.all([v <= 0 for v in self.violations(batch).values()], axis=0))


def iter_legal(
    space: DesignSpace, budget: Budget, rules: Rules, *, chunk: int = 200_000, max_rows: int = join.MAX_ROWS
) -> Iterator[ArchitectureBatch]:
    """Legal designs of one space in a fixed order, in batches of bounded size.

    Args:
        space: the lattice.
        budget: total and active parameters.
        rules: alignment, quality guard and bands.
        chunk: rows of the join held at a time (memory bound, about 200 B a row).
        max_rows: rows of the join looked at in all (time bound).

    Yields:
        Non-empty batches; concatenated they are the legal set.

    Raises:
        SpaceTooLargeError: the rules leave more rows than that.
    """
    whole("chunk", chunk, 1, 10**9)
    whole("max_rows", max_rows, 1, 10**12)
    build = space.unchecked if sound(space) else space.batch
    first, late = join.order(space)
    meter = join.Meter(space, max_rows)
    start = {} if first else {name: np.array([value], dtype=np.int64) for name, value in space.fixed.items()}
    for columns in join.grow(space, rules, start, first, chunk, meter):
        solved = _solve(space, budget, columns)
        if solved is None:
            continue
        for rows in join.grow(space, rules, solved, late, chunk, meter):
            meter.add(join.DESIGN_COST * int(rows[_COUNT].sum()))
            for part in _portions(rows, chunk):
                batch = build(_expand(space, part))
                keep = np.flatnonzero(budget.feasible(batch))
                batch = batch.take(keep) if keep.size < len(batch) else batch
                keep = np.flatnonzero(rules.feasible(batch))
                if keep.size:
                    yield batch.take(keep)


_FIRST, _COUNT = "first legal width", "legal widths"  # columns of the join that are no dimension


def _solve(space: DesignSpace, budget: Budget, columns: dict[str, IntArray]) -> dict[str, IntArray] | None:
    """The rows that some lattice width takes to the total, with the position of the first such width and their number."""
    values = np.array(space.dimensions[space.solved], dtype=np.int64)
    totals = [space.total_params({**columns, space.solved: np.asarray(x)}) for x in (128, 256)]
    slope = (totals[1] - totals[0]) / 128
    slope = np.where(slope > 0, slope, np.nan)  # no layer holds the solved width: nothing to solve
    base = totals[0] - slope * 128
    low = np.searchsorted(values, (budget.total_params * (1 - budget.tolerance) - base) / slope - 1e-6, side="left")
    high = np.searchsorted(values, (budget.total_params * (1 + budget.tolerance) - base) / slope + 1e-6, side="right")
    rows = np.flatnonzero(high > low)
    if not rows.size:
        return None
    return {name: column[rows] for name, column in columns.items()} | {_FIRST: low[rows], _COUNT: (high - low)[rows]}


def _portions(rows: dict[str, IntArray], chunk: int) -> Iterator[dict[str, IntArray]]:
    """The rows in runs that expand to ``chunk`` designs, or to one row's."""
    portion = (np.cumsum(rows[_COUNT]) - 1) // chunk
    for start, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(portion)) + 1).tolist(), portion.size]):
        yield {name: column[start:end] for name, column in rows.items()}


def _expand(space: DesignSpace, rows: dict[str, IntArray]) -> dict[str, IntArray]:
    """Each row once for every legal width."""
    values = np.array(space.dimensions[space.solved], dtype=np.int64)
    first, count = rows[_FIRST], rows[_COUNT]
    row = np.repeat(np.arange(count.size), count)
    offset = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
    found = {name: column[row] for name, column in rows.items() if name not in (_FIRST, _COUNT)}
    return found | {space.solved: values[first[row] + offset]}


@dataclass(frozen=True)
class LegalDesigns:
    """The legal set of a study.

    Attributes:
        batches: one batch per space, ``None`` where a space has no legal design.
        per_space: space name → legal designs.
        message: empty, or (when nothing is legal) the binding constraint, the nearest design and what to relax.
    """

    batches: tuple[ArchitectureBatch | None, ...]
    per_space: dict[str, int]
    message: str = ""

    @property
    def count(self) -> int:
        """Legal designs in all spaces."""
        return sum(self.per_space.values())


def concatenate(batches: Sequence[ArchitectureBatch]) -> ArchitectureBatch | None:
    """Join batches of one kind; ``None`` for an empty list."""
    if not batches:
        return None
    names = [name for name in ArchitectureBatch.__slots__ if name != "kind"]
    return ArchitectureBatch(batches[0].kind, **{n: np.concatenate([getattr(b, n) for b in batches]) for n in names})


def legal_designs(spaces: Sequence[DesignSpace], budget: Budget, rules: Rules, *, limit: int = 20_000_000) -> LegalDesigns:
    """Every legal design of every space; when there is none, the message says what binds and what to relax.

    Raises:
        InvalidValueError: more than ``limit`` legal designs (memory bound); stream them with :func:`iter_legal`.
    """
    whole("limit", limit, 1, 10**12)
    batches: list[ArchitectureBatch | None] = []
    per_space: dict[str, int] = {}
    total = 0
    for space in spaces:
        parts: list[ArchitectureBatch] = []
        for part in iter_legal(space, budget, rules):
            parts.append(part)
            total += len(part)
            if total > limit:
                raise InvalidValueError(f"the study has more than {limit} legal designs; narrow a range or widen a step")
        batches.append(concatenate(parts))
        per_space[space.name] = sum(len(p) for p in parts)
    message = ""
    if total == 0:
        from .relax import explain_empty

        message = explain_empty(spaces, budget, rules)
    return LegalDesigns(tuple(batches), per_space, message)
