"""Throughput over the layouts a design may use: what divides no design of a group is not priced for it.

On large replicas a design may use a sixth of the layouts (heads, experts, width and memory each forbid some), and which
ones depends on few dimensions, so designs are grouped by the layouts they may use. A price depends on its own design,
layout and concurrency alone, so that grouping changes no figure (tests hold it bit for bit).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..costmodel import ArchitectureBatch, LayoutBatch
from ..costmodel.serving import RateTable, ServingSetup, throughput_at_rates

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
CALL_POINTS = 8_000  # a pricing call costs as much as so many operating points (measured: some 5 ms against 0.6 us a point)


@lru_cache(maxsize=512)
def some_layouts(layouts: LayoutBatch, mask: bytes) -> LayoutBatch:
    """The layouts of a mask; one object each time, so that the plans made for it are found again."""
    return layouts.take(np.flatnonzero(np.frombuffer(mask, dtype=np.bool_)))


def groups(usable: BoolArray, points: int) -> Iterator[tuple[IntArray, BoolArray]]:
    """Split designs into groups that are priced together, each with the layouts that some member may use.

    Designs of one pattern form a group; then the two groups whose union wastes least are joined, for as long as a call saved
    is worth more than the points it wastes. Designs that may use nothing are in no group.

    Args:
        usable: layouts each design may use, ``(A, P)``.
        points: concurrencies a layout is priced at.
    """
    masks, of = np.unique(usable, axis=0, return_inverse=True)
    count = np.bincount(of.reshape(-1), minlength=len(masks)).astype(np.float64)
    own = np.where(masks.any(axis=1), np.arange(len(masks)), -1)  # group each pattern is in
    alive = np.flatnonzero(own >= 0)
    group = masks.astype(np.float64)
    while len(alive) > 1:
        size, part = group[alive].sum(axis=1), count[alive]
        union = size[:, None] + size[None, :] - group[alive] @ group[alive].T
        waste = (part[:, None] + part[None, :]) * union - (part * size)[:, None] - (part * size)[None, :]
        np.fill_diagonal(waste, np.inf)
        least = int(np.argmin(waste))
        if waste.flat[least] * points >= CALL_POINTS:
            break
        first, second = (int(alive[i]) for i in sorted(divmod(least, len(alive))))
        group[first] = np.maximum(group[first], group[second])
        count[first] += count[second]
        own[own == second] = first
        alive = alive[alive != second]
    of_design = own[of.reshape(-1)]
    for index in alive.tolist():
        yield np.flatnonzero(of_design == index), group[index] > 0


def throughput_at_usable(batch: ArchitectureBatch, setup: ServingSetup, rates: ArrayLike, room: FloatArray) -> RateTable:
    """:func:`~shapefront.costmodel.serving.throughput_at_rates` of designs whose room on each layout is known.

    Args:
        batch: designs, ``(A,)``.
        setup: deployment.
        rates: tokens/s/user, ``(R,)``.
        room: sequences each layout holds, 0 where a design may not use it, ``(A, P)``.
    """
    usable = room >= setup.concurrency[0]
    if setup.mode == "disaggregated":  # the prefill pool chooses among all layouts
        return throughput_at_rates(batch, setup, rates, allowed=room > 0)
    wanted = np.asarray(rates, dtype=np.float64)
    found, load = np.zeros((len(batch), len(wanted))), np.zeros((len(batch), len(wanted)))
    index = np.full(found.shape, -1, dtype=np.intp)
    for rows, mask in groups(usable, len(setup.concurrency)):
        some = np.flatnonzero(mask)
        part = setup if len(some) == len(mask) else setup.with_(layouts=some_layouts(setup.layouts, mask.tobytes()))
        table = throughput_at_rates(batch.take(rows), part, wanted, allowed=usable[rows][:, some])
        found[rows], load[rows] = table.tokens_per_second_per_gpu, table.concurrency
        index[rows] = np.where(table.layout_index >= 0, some[table.layout_index], -1)
    return RateTable(wanted, found, index, load)


def throughput_at_allowed(batch: ArchitectureBatch, setup: ServingSetup, rates: ArrayLike, allowed: BoolArray) -> RateTable:
    """The same where only the layouts each design may use are known, ``(A, P)``."""
    return throughput_at_usable(batch, setup, rates, setup.limits(batch, allowed))
