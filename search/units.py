"""Units of a certificate: the designs of one space with one hidden size and one number of leading dense layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..constraints.deployable import some_layouts
from ..constraints.equal_quality import equal_quality
from ..costmodel import ArchitectureBatch
from .bounds import (
    ATTENTION_FIELDS,
    FFN_FIELDS,
    ROWS,
    LayerTables,
    layer_tables,
    permissive,
    room_bound,
    throughput_bound,
)
from .objectives import Context
from .problem import SearchProblem

if TYPE_CHECKING:
    from ..costmodel.serving import ServingSetup

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_ROWS = 4_000  # designs whose layouts are looked up at a time


@dataclass(frozen=True, eq=False)
class Groups:
    """Bounds of groups of a unit's members.

    Attributes:
        bounds: objectives no member exceeds, ``(G, K)``.
        equal: whether the group's members are at equal quality, ``(G,)``.
        of_member: group of each member asked about, ``(n,)``.
    """

    bounds: FloatArray
    equal: BoolArray
    of_member: IntArray


def distinct(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """``np.unique`` of rows of whole numbers, ``(n, d)``: the rows in lexicographic order, a position of each, each row's place.

    Rows are packed into one integer by their columns' ranges where that fits 62 bits (sorting numbers is many times
    faster than sorting rows).
    """
    low = rows.min(axis=0)
    spans = [int(s) + 1 for s in rows.max(axis=0) - low]
    if math.prod(spans) >= 1 << 62:
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return rows[first], first, inverse.reshape(-1)
    key = np.zeros(len(rows), dtype=np.int64)
    for column, span in zip((rows - low).T, spans, strict=True):
        key = key * span + column
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return rows[first], first, inverse.reshape(-1)


def _codes(batch: ArchitectureBatch, names: tuple[str, ...]) -> tuple[IntArray, IntArray]:
    """A member of each distinct combination of some dimensions, and each design's combination."""
    _, first, place = distinct(np.stack([getattr(batch, name) for name in names], axis=1))
    return first, place


@dataclass(eq=False)
class Unit:
    """One unit.

    Attributes:
        problem: the search problem.
        setup: deployment with the space's formats.
        ids: table rows, ``(n,)``.
        batch: the designs, ``(n,)``.
    """

    problem: SearchProblem
    setup: ServingSetup
    ids: IntArray
    batch: ArchitectureBatch
    _tables: LayerTables | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # a windowed layer's size matters where there are windows; without, it is 0 and one configuration more
        self.a_first, self.a = _codes(self.batch, ATTENTION_FIELDS)
        self.f_first, self.f = _codes(self.batch, FFN_FIELDS)

    @cached_property
    def equal(self) -> BoolArray:
        """At equal quality with the reference model, ``(n,)``."""
        return np.asarray(equal_quality(self.batch, self.problem.reference, train_tokens=self.problem.train_tokens))

    @cached_property
    def own(self) -> FloatArray:
        """Objectives that depend on the design alone, ``(n, K)``; −inf for the others."""
        out = np.full((len(self.ids), len(self.problem.objectives)), -np.inf)
        context = self._context(np.zeros((len(self.ids), len(self.problem.rates))), self.batch)
        for index, objective in enumerate(self.problem.objectives):
            if objective.bounded == "design":
                out[:, index] = objective.values(context)[0]
        return out

    @property
    def tables(self) -> LayerTables:
        """Equation (1) of :mod:`.bounds` for this unit."""
        if self._tables is None:
            self._tables = layer_tables(self.batch, self.a_first, self.f_first, self.setup)
        return self._tables

    def forget(self) -> None:
        """Release the tables."""
        self._tables = None

    def _context(self, throughput: FloatArray, batch: ArchitectureBatch) -> Context:
        p = self.problem
        return Context(batch, np.array(p.rates), throughput, p.train_tokens, p.reference)

    def _objectives(self, throughput: FloatArray, own: FloatArray) -> FloatArray:
        """Bounds of all objectives from bounds of the throughput and the largest own values, ``(G, K)``."""
        out = own.copy()
        context = self._context(throughput, self.batch)
        for index, objective in enumerate(self.problem.objectives):
            if objective.bounded == "throughput":
                out[:, index] = objective.values(context)[0]
        return out

    def groups(self, members: IntArray | None = None, *, by_depth: bool = False) -> Groups:
        """Group members by attention side and equal quality, and by depth if asked; bound each group.

        Args:
            members: positions in the unit; ``None`` = all.
            by_depth: also by layers and windowed layers (tighter, more groups).
        """
        who = np.arange(len(self.ids)) if members is None else members
        depth = self.batch.num_hidden_layers[who], self.batch.num_sliding_window_layers[who]
        fine_rows = np.stack([self.a[who], self.equal[who].astype(np.int64), *depth], axis=1)
        fine, _, of_fine = distinct(fine_rows)
        least_ffn, depth_of = self._least_ffn(who, fine[:, 2])
        if by_depth:
            throughput = self._bound_fine(fine, least_ffn, depth_of)
            keys, of_group = fine, of_fine
        else:
            keys, _, coarse_of = distinct(fine[:, :2])
            throughput = self._bound_coarse(fine, coarse_of, len(keys), least_ffn, depth_of)
            of_group = coarse_of[of_fine]
        own = np.full((len(keys), self.own.shape[1]), -np.inf)
        np.maximum.at(own, of_group, self.own[who])
        return Groups(self._objectives(throughput, own), keys[:, 1] > 0, of_group)

    def _least_ffn(self, who: IntArray, layers: IntArray) -> tuple[FloatArray, IntArray]:
        """Smallest FFN side over the members of each depth, ``(D, P·C)``, and each fine group's depth."""
        pairs, _, _ = distinct(np.stack([self.batch.num_hidden_layers[who], self.f[who]], axis=1))
        depths, start = np.unique(pairs[:, 0], return_index=True)
        ends = [*start[1:].tolist(), len(pairs)]
        rows = [self.tables.ffn(pairs[a:b, 1], pairs[a:b, 0]).min(axis=0) for a, b in zip(start.tolist(), ends, strict=True)]
        return np.stack(rows), np.searchsorted(depths, layers)

    def _bound_fine(self, fine: IntArray, least_ffn: FloatArray, depth_of: IntArray) -> FloatArray:
        out = np.zeros((len(fine), len(self.problem.rates)))
        room = self._room(fine, any_depth=False)
        for start in range(0, len(fine), ROWS):
            rows = slice(start, start + ROWS)
            seconds = self.tables.attention(fine[rows, 0], fine[rows, 2], fine[rows, 3]) + least_ffn[depth_of[rows]]
            out[rows] = throughput_bound(seconds, room[rows], self.setup, self.problem.rates, self.batch.kind.attention)
        return out

    def _bound_coarse(self, fine: IntArray, group: IntArray, count: int, least_ffn: FloatArray, depth_of: IntArray) -> FloatArray:
        """Least time and most room over the depths of each group; rows of one group follow each other."""
        width = least_ffn.shape[1]
        seconds = np.full((count, width), np.inf)
        room = np.zeros((count, len(self.setup.layouts)))
        own_room = self._room(fine, any_depth=True)
        for start in range(0, len(fine), ROWS):
            rows = slice(start, start + ROWS)
            part = self.tables.attention(fine[rows, 0], fine[rows, 2], fine[rows, 3]) + least_ffn[depth_of[rows]]
            first = np.flatnonzero(np.diff(group[rows], prepend=-1))
            here = group[rows][first]
            seconds[here] = np.minimum(seconds[here], np.minimum.reduceat(part, first, axis=0))
            room[here] = np.maximum(room[here], np.maximum.reduceat(own_room[rows], first, axis=0))
        return throughput_bound(seconds, room, self.setup, self.problem.rates, self.batch.kind.attention)

    def _room(self, fine: IntArray, *, any_depth: bool) -> FloatArray:
        """Sequences of each (attention side, depth), 0 where no FFN makes the layout allowed, ``(n, P)``."""
        size = len(fine)
        members = self.a_first[fine[:, 0]]
        batch = replace(self.batch.take(members), num_hidden_layers=fine[:, 2], num_sliding_window_layers=fine[:, 3])
        if np.any(fine[:, 3]):
            window = np.where(batch.sliding_window > 0, batch.sliding_window, self.batch.sliding_window.max())
            batch = replace(batch, sliding_window=np.where(fine[:, 3] > 0, window, 0))
        rules, layouts = self.problem.rules, self.setup.layouts
        allowed = rules.layouts_allowed(permissive(batch, layouts, rules, any_depth=any_depth), layouts)
        room = room_bound(batch, float(self.batch.total_params.min()), self.setup)
        return np.where(allowed, room, 0.0).reshape(size, -1)

    def designs(self, members: IntArray) -> FloatArray:
        """Bounds of single members, ``(n, K)``: their own FFN, layouts and memory."""
        throughput = np.zeros((len(members), len(self.problem.rates)))
        for start in range(0, len(members), ROWS):
            rows = members[start : start + ROWS]
            part = self.batch.take(rows)
            seconds = self.tables.attention(self.a[rows], part.num_hidden_layers, part.num_sliding_window_layers)
            seconds = seconds + self.tables.ffn(self.f[rows], part.num_hidden_layers)
            room = self.setup.limits(part, self.problem.rules.layouts_allowed(part, self.setup.layouts))
            kind = self.batch.kind.attention
            throughput[start : start + ROWS] = throughput_bound(seconds, room, self.setup, self.problem.rates, kind)
        return self._objectives(throughput, self.own[members])


def units(problem: SearchProblem) -> Iterator[Unit]:
    """All units of a study, in table order."""
    table = problem.table
    for index, space in enumerate(problem.spaces):
        start, stop = int(table.starts[index]), int(table.starts[index + 1])
        if stop == start:
            continue
        formats = space.formats
        setup = problem.setup if formats == problem.setup.formats else problem.setup.with_(formats=formats)
        rows = table.columns[start:stop]
        names = [n for n in ("hidden_size", "first_k_dense_replace") if n in table.names and n in space.dimensions]
        key = rows[:, [table.names.index(n) for n in names]]
        _, of = np.unique(key, axis=0, return_inverse=True)
        order = np.argsort(of.reshape(-1), kind="stable")
        cuts = np.flatnonzero(np.diff(of.reshape(-1)[order])) + 1
        for part in np.split(order, cuts):
            ids = start + part
            _, _, batch = table.candidates(ids).batches(problem.spaces)[0]
            yield Unit(problem, _narrowed(problem, setup, batch), ids.astype(np.int64), batch)


def _narrowed(problem: SearchProblem, setup: ServingSetup, batch: ArchitectureBatch) -> ServingSetup:
    """The deployment with the layouts that some design may use: the others bound nothing and need no tables."""
    usable = np.zeros(len(setup.layouts), dtype=np.bool_)
    for start in range(0, len(batch), _ROWS):
        part = batch.take(slice(start, start + _ROWS))
        usable |= problem.rules.layouts_allowed(part, setup.layouts).any(axis=0)
    if setup.mode == "disaggregated" or usable.all() or not usable.any():  # a prefill pool chooses among all layouts
        return setup
    return setup.with_(layouts=some_layouts(setup.layouts, usable.tobytes()))
