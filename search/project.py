"""From a suggestion to the nearest legal design, and from a design to its neighbours on the lattice.

Distance: Euclidean in normalised log space, each searched dimension mapped to [0, 1] by
(log v − log v_min)/(log v_max − log v_min) over its lattice (by lattice position where a lattice holds 0), so that one
octave weighs alike wherever it lies. A parameter budget couples the dimensions, so a step in one of them alone is
seldom legal: the nearest legal designs change several dimensions at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .space import DesignTable

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(eq=False)
class Projector:
    """Nearest-design queries on a table; one search tree per space, built when first needed.

    Attributes:
        table: the legal designs.
    """

    table: DesignTable
    _trees: dict[int, Any] = field(default_factory=dict, repr=False)

    def _columns(self, space: int) -> list[int]:
        dimensions = self.table.spaces[space].dimensions
        return [j for j, name in enumerate(self.table.names) if name in dimensions and len(dimensions[name]) > 1]

    def coordinates(self, space: int, values: NDArray[Any]) -> FloatArray:
        """Normalised coordinates of named values ``(n, D)`` in one space, shape ``(n, d)``."""
        dimensions = self.table.spaces[space].dimensions
        out = []
        for j in self._columns(space):
            grid = np.array(dimensions[self.table.names[j]], dtype=np.float64)
            column = np.clip(np.asarray(values[:, j], dtype=np.float64), grid[0], grid[-1])
            if grid[0] >= 1:
                out.append((np.log(column) - np.log(grid[0])) / (np.log(grid[-1]) - np.log(grid[0])))
            else:
                out.append(np.interp(column, grid, np.linspace(0, 1, len(grid))))
        return np.stack(out, axis=1) if out else np.zeros((len(values), 1))

    def _tree(self, space: int) -> Any:
        if space not in self._trees:
            from scipy.spatial import cKDTree

            low, high = self.table.starts[space], self.table.starts[space + 1]
            points = self.coordinates(space, self.table.columns[low:high])
            self._trees[space] = cKDTree(points, balanced_tree=False, compact_nodes=False)
        return self._trees[space]

    def _filled(self, space: IntArray) -> IntArray:
        """Move suggestions of a space without designs to the next space that has some."""
        counts = np.diff(self.table.starts)
        if (counts > 0).all():
            return space
        has = np.flatnonzero(counts > 0)
        return np.where(counts[space] > 0, space, has[np.searchsorted(has, space) % len(has)])

    def nearest(self, space: IntArray, values: FloatArray, *, taken: NDArray[np.bool_] | None = None) -> IntArray:
        """The nearest legal design of each suggestion that is neither ``taken`` nor given to an earlier suggestion.

        Args:
            space: space index of each suggestion, ``(n,)``.
            values: named values, ``(n, D)``.
            taken: designs not to be returned, ``(N,)``; ``None`` returns plain nearest designs, repeats included.

        Returns:
            ids, ``(n,)``; −1 where a space has no design left.
        """
        space = self._filled(space)
        result = np.full(len(space), -1, dtype=np.int64)
        used: set[int] = set()
        for index in np.unique(space).tolist():
            where = np.flatnonzero(space == index)
            points = self.coordinates(index, values[where])
            size = int(self.table.starts[index + 1] - self.table.starts[index])
            k = 1 if taken is None else 16
            pending = np.arange(len(where))
            while len(pending):
                found = self._query(index, points[pending], min(k, size))
                left = []
                for at, row in zip(pending.tolist(), found, strict=True):
                    free = row if taken is None else [i for i in row[~taken[row]].tolist() if i not in used]
                    if len(free):
                        result[where[at]] = free[0]
                        used.add(int(free[0]))
                    elif k < size:
                        left.append(at)
                pending = np.array(left, dtype=np.int64)
                k *= 8
        return result

    def _query(self, space: int, points: FloatArray, k: int) -> IntArray:
        """The ``k`` nearest ids of each point, equal distances by id, shape ``(n, k)``."""
        distance, index = self._tree(space).query(points, k=k)
        distance, index = distance.reshape(len(points), k), index.reshape(len(points), k)
        order = np.lexsort((index, np.round(distance, 12)), axis=1)
        return np.asarray(np.take_along_axis(index, order, axis=1) + self.table.starts[space], dtype=np.int64)

    def find(self, space: IntArray, values: IntArray) -> IntArray:
        """Ids of designs given by their exact dimensions; −1 where the design is not in the table."""
        ids = self.nearest(space, values.astype(np.float64))
        exact = (ids >= 0) & (self.table.columns[ids] == values).all(axis=1) & (self.table.space_of(ids) == space)
        return np.where(exact, ids, -1)

    def neighbours(self, ids: Iterable[int], *, nearest: int = 24, per_step: int = 3) -> IntArray:
        """Neighbours of designs on the lattice, without the designs themselves.

        Per design: its ``nearest`` legal designs, and for each dimension one and two lattice steps up and down the
        ``per_step`` legal designs nearest to that stepped point; and the nearest design in each other space.

        Args:
            ids: designs.
            nearest: legal designs around the design itself.
            per_step: legal designs around each stepped point.

        Returns:
            Distinct ids, ascending.
        """
        own = np.unique(np.fromiter(ids, dtype=np.int64))
        found: list[IntArray] = []
        spaces = self.table.space_of(own)
        for index in np.unique(spaces).tolist():
            members = self.table.columns[own[spaces == index]].astype(np.int64)
            size = int(self.table.starts[index + 1] - self.table.starts[index])
            found.append(self._query(index, self.coordinates(index, members), min(nearest + 1, size)).ravel())
            stepped = self._steps(index, members)
            if len(stepped):
                found.append(self._query(index, self.coordinates(index, stepped), min(per_step, size)).ravel())
            for other in range(len(self.table.spaces)):
                if other != index and self.table.starts[other + 1] > self.table.starts[other]:
                    found.append(self._query(other, self.coordinates(other, self._translated(other, members)), 1).ravel())
        return np.setdiff1d(np.concatenate(found), own) if found else own[:0]

    def _steps(self, space: int, members: IntArray) -> IntArray:
        dimensions = self.table.spaces[space].dimensions
        out = []
        for j in self._columns(space):
            grid = np.array(dimensions[self.table.names[j]], dtype=np.int64)
            at = np.searchsorted(grid, members[:, j])
            for step in (-2, -1, 1, 2):
                inside = (at + step >= 0) & (at + step < len(grid))
                moved = members[inside].copy()
                moved[:, j] = grid[at[inside] + step]
                out.append(moved)
        return np.concatenate(out) if out else members[:0]

    def _translated(self, other: int, members: IntArray) -> IntArray:
        """Members with the dimensions they lack set to the middle of the other space's lattice."""
        values = members.copy()
        for name, grid in self.table.spaces[other].dimensions.items():
            j = self.table.names.index(name)
            values[:, j] = np.where(values[:, j] == 0, grid[len(grid) // 2], values[:, j])
        return values
