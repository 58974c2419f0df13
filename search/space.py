"""Every legal design of a study as one table, and the designs a search asks to be priced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.budget import Budget, iter_legal
from ..constraints.rules import Rules
from ..constraints.space import DesignSpace
from ..costmodel import ArchitectureBatch, InvalidValueError
from ..costmodel.checks import whole_numbers
from ..costmodel.errors import shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

IntArray = NDArray[np.int64]
FAMILY = "family"  # the study parameter that names the space, where a study has several
_CHUNK = 20_000  # rows of the join held at a time: they fit the cache
_MAX_TABLE = 10_000_000  # ten times the largest built-in study; some 20 s to look through


class NothingLegalError(InvalidValueError):
    """No design meets every constraint; the message names the binding one and what to relax."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Designs to be priced, in order.

    Attributes:
        ids: position in the study's table, shape ``(n,)``.
        space: index of the space each design belongs to, ``(n,)``.
        columns: searched dimensions, shape ``(n, D)``; 0 where a space does not search that dimension.
        names: the D dimensions' names.
        layout: layout index per design, ``(n,)``; ``None`` when all layouts are swept.
        concurrency: sequences in flight per design, ``(n,)``; ``None`` when swept.
    """

    ids: IntArray
    space: IntArray
    columns: IntArray
    names: tuple[str, ...]
    layout: IntArray | None = None
    concurrency: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Any) -> Candidates:
        """The candidates at ``index`` (integers, a slice or a mask)."""
        return Candidates(
            self.ids[index],
            self.space[index],
            self.columns[index],
            self.names,
            None if self.layout is None else self.layout[index],
            None if self.concurrency is None else self.concurrency[index],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Candidates]) -> Candidates:
        """Join candidates of one study.

        Raises:
            InvalidValueError: the list is empty.
        """
        if not parts:
            raise InvalidValueError("at least one block of candidates is needed, got none")
        swept = parts[0].layout is None
        return cls(
            np.concatenate([p.ids for p in parts]),
            np.concatenate([p.space for p in parts]),
            np.concatenate([p.columns for p in parts]),
            parts[0].names,
            None if swept else np.concatenate([p.layout for p in parts if p.layout is not None]),
            None if swept else np.concatenate([p.concurrency for p in parts if p.concurrency is not None]),
        )

    def batches(self, spaces: Sequence[DesignSpace]) -> list[tuple[IntArray, int, ArchitectureBatch]]:
        """Split by space into ``(positions, space index, batch)``, spaces ascending."""
        out: list[tuple[IntArray, int, ArchitectureBatch]] = []
        for index in np.unique(self.space).tolist():
            where = np.flatnonzero(self.space == index)
            space = spaces[index]
            named = {n: np.ascontiguousarray(self.columns[where, j]) for j, n in enumerate(self.names) if n in space.dimensions}
            out.append((where, index, space.batch(named)))
        return out

    def keys(self, spaces: Sequence[DesignSpace]) -> list[tuple[Any, ...]]:
        """A hashable name for each candidate: space name, searched dimensions, and layout and concurrency if set."""
        rows = [(spaces[s].name, *row) for s, row in zip(self.space.tolist(), self.columns.tolist(), strict=True)]
        if self.layout is None or self.concurrency is None:
            return rows
        return [(*row, p, c) for row, p, c in zip(rows, self.layout.tolist(), self.concurrency.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class DesignTable:
    """Every legal design of a study; the id of a design is its row.

    Attributes:
        spaces: the study's spaces.
        names: all searched dimensions, in order of first appearance.
        columns: int32, shape ``(N, D)``; 0 where the row's space does not search the dimension.
        starts: first row of each space and N at the end, shape ``(S + 1,)``.
    """

    spaces: tuple[DesignSpace, ...]
    names: tuple[str, ...]
    columns: NDArray[np.int32]
    starts: IntArray
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def counts(self) -> dict[str, int]:
        """Space name → legal designs."""
        return {s.name: int(n) for s, n in zip(self.spaces, np.diff(self.starts), strict=True)}

    def space_of(self, ids: IntArray) -> IntArray:
        """Index of the space each id belongs to."""
        return np.asarray(np.searchsorted(self.starts, ids, side="right") - 1, dtype=np.int64)

    def candidates(self, ids: Any) -> Candidates:
        """The designs at ``ids``."""
        nothing = isinstance(ids, list | tuple | np.ndarray) and not len(ids)
        rows = np.zeros(0, dtype=np.int64) if nothing else whole_numbers("design ids", ids)
        if rows.ndim != 1 or (rows.size and not -1 < rows.min() <= rows.max() < len(self)):
            raise InvalidValueError(f"design ids must be a list of rows 0 to {len(self) - 1} of the table, got {shown(ids)}")
        return Candidates(rows, self.space_of(rows), self.columns[rows].astype(np.int64), self.names)

    def bounds(self, name: str) -> tuple[int, int]:
        """Smallest and largest lattice value of a dimension over the spaces that search it."""
        values = [v for s in self.spaces if name in s.dimensions for v in (s.dimensions[name][0], s.dimensions[name][-1])]
        return min(values), max(values)

    def lattice(self, name: str) -> tuple[int, ...]:
        """All lattice values of a dimension, over the spaces that search it."""
        return tuple(sorted({v for s in self.spaces for v in s.dimensions.get(name, ())}))


def build_table(spaces: Sequence[DesignSpace], budget: Budget, rules: Rules) -> DesignTable:
    """Enumerate every legal design (budget, alignment, quality guard, bands).

    Raises:
        NothingLegalError: there is none; the message names the nearest design and the relaxations.
        InvalidValueError: two spaces of one name, or more designs than a table holds.
    """
    if len({s.name for s in spaces}) != len(spaces) or not spaces:
        raise InvalidValueError(f"a study needs at least one space, each of its own name, got {[s.name for s in spaces]}")
    names = tuple(dict.fromkeys(name for space in spaces for name in space.dimensions))
    parts: list[NDArray[np.int32]] = []
    starts = [0]
    for space in spaces:
        rows = 0
        for batch in iter_legal(space, budget, rules, chunk=_CHUNK):
            block = np.zeros((len(batch), len(names)), dtype=np.int32)
            for name, values in space.columns(batch).items():
                block[:, names.index(name)] = values
            parts.append(block)
            rows += len(block)
            if starts[-1] + rows > _MAX_TABLE:
                raise InvalidValueError(f"the study has more than {_MAX_TABLE} legal designs; narrow a range or widen a step")
        starts.append(starts[-1] + rows)
    if not parts:
        from ..constraints.relax import explain_empty

        raise NothingLegalError(explain_empty(spaces, budget, rules))
    return DesignTable(tuple(spaces), names, np.concatenate(parts), np.array(starts, dtype=np.int64))


def restrict(table: DesignTable, keep: NDArray[np.bool_]) -> DesignTable:
    """The table with only the rows of a mask."""
    counts = [int(np.count_nonzero(keep[a:b])) for a, b in zip(table.starts[:-1], table.starts[1:], strict=True)]
    return replace(table, columns=table.columns[keep], starts=np.concatenate(([0], np.cumsum(counts))), _cache={})


def distributions(table: DesignTable) -> dict[str, BaseDistribution]:
    """One Optuna distribution per named dimension, with a fixed range that holds every lattice value.

    A lattice with one step becomes an integer range with that step; any other positive lattice a log-uniform integer
    range (a suggestion between lattice values is projected to the nearest legal design like every other).
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {}
    if len(table.spaces) > 1:
        result[FAMILY] = CategoricalDistribution([s.name for s in table.spaces])
    for name in table.names:
        values = table.lattice(name)
        low, high = values[0], values[-1]
        steps = np.diff(values)
        if len(steps) and (steps == steps[0]).all():
            result[name] = IntDistribution(low, high, step=int(steps[0]))
        elif low >= 1 and high > low:
            result[name] = IntDistribution(low, high, log=True)
        else:
            result[name] = IntDistribution(low, high, step=math.gcd(*(int(s) for s in steps)) if len(steps) else 1)
    return result


def suggestions(table: DesignTable, params: Sequence[Mapping[str, Any]]) -> tuple[IntArray, NDArray[np.float64]]:
    """Optuna parameters → space index ``(n,)`` and named values ``(n, D)``, ready for the projection."""
    order = {s.name: i for i, s in enumerate(table.spaces)}
    family = np.array([order[p[FAMILY]] if FAMILY in p else 0 for p in params], dtype=np.int64)
    return family, np.array([[float(p[name]) for name in table.names] for p in params]).reshape(len(params), len(table.names))
