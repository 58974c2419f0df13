"""Distinct work of a grid of operating points: price each once, gather to the grid.

A step's parts depend on few of a layout's factors each (a QKV projection on TPA and its tokens, an expert on TPF, EP
and its tokens). A grid of layouts x loads therefore holds far fewer distinct GEMMs than points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .layout import LayoutBatch
from .memory import dense_ffn_ranks, shared_expert_ranks

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False, slots=True)
class Keyed:
    """Distinct combinations of some columns and where each grid point finds its own.

    Attributes:
        columns: column name → values of the distinct combinations, shape ``(1, U)``.
        index: grid point → combination, shape ``(P * C,)``.
    """

    columns: Mapping[str, FloatArray]
    index: IntArray

    def __getitem__(self, name: str) -> FloatArray:
        return self.columns[name]

    def gather(self, table: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Spread ``table`` of shape ``(A, U)`` or ``(1, U)`` over the grid: ``(A, P * C)``."""
        return np.take(table, self.index, axis=1, out=out, mode="clip")


def keyed(shape: tuple[int, int], **columns: FloatArray | NDArray[np.int64]) -> Keyed:
    """Distinct combinations of ``columns``, each broadcastable to ``shape`` = (P, C)."""
    code = np.zeros(shape, dtype=np.int64)
    values: list[FloatArray] = []
    for column in columns.values():
        distinct, inverse = np.unique(column, return_inverse=True)
        code *= len(distinct)
        code += inverse.reshape(column.shape)
        values.append(distinct.astype(np.float64))
    flat = code.reshape(-1)
    size = int(np.prod([len(v) for v in values]))
    if size <= 8 * flat.size + 1024:
        present = np.zeros(size, dtype=bool)
        present[flat] = True
        distinct_codes = np.flatnonzero(present)
        position = np.cumsum(present) - 1
        index = position[flat]
    else:
        distinct_codes, index = np.unique(flat, return_inverse=True)
    found: dict[str, FloatArray] = {}
    rest = distinct_codes
    for name, distinct in zip(reversed(list(columns)), reversed(values), strict=True):
        rest, position = np.divmod(rest, len(distinct))
        found[name] = distinct[position][None]
    return Keyed(found, np.ascontiguousarray(index, dtype=np.intp))


@dataclass(frozen=True, eq=False, slots=True)
class StepPlan:
    """The distinct work of one grid of layouts x loads.

    Attributes:
        shape: (P, C).
        attention: columns ``tpa kvp rows load`` (``load``: index of the load, where attention differs by it).
        local: work on the tokens of one attention rank: ``tpa kvp rows head_rows``.
        dense: dense FFN: ``ranks rows``.
        shared: shared experts: ``ranks rows``; the same object as ``dense`` where no layout tells them apart.
        experts: routed experts: ``tpf ep tokens wide`` (wide = 1: attention DP with EP).
        exchange: communication of the FFN: ``mode group tpf ep ranks rows tokens``; modes below.
        rows: tokens of one attention rank, ``(P, C)``.
        turns: microbatches in flight on the pipeline stages, ``(P, C)``.
    """

    shape: tuple[int, int]
    attention: Keyed
    local: Keyed
    dense: Keyed
    shared: Keyed
    experts: Keyed
    exchange: Keyed
    rows: FloatArray
    turns: FloatArray


# How tokens reach the FFN's ranks.
REDUCE = 0  # every rank already has all tokens (no attention DP): partial sums are all-reduced
GATHER = 1  # attention DP, no EP: all-gather before, reduce-scatter after
DISPATCH = 2  # attention DP with EP: expert all-to-all, and back


def build_plan(
    layouts: LayoutBatch,
    rows: FloatArray,
    tokens: FloatArray,
    head_rows: FloatArray,
    *,
    attention_rows: FloatArray | None = None,
    by_load: bool = False,
    turns: FloatArray | float = 1.0,
) -> StepPlan:
    """Plan the grid.

    Args:
        layouts: layouts, ``(P,)``.
        rows: tokens of one attention rank in one pass, ``(P, C)``, >= 1.
        tokens: tokens of all attention ranks together, ``(P, C)``.
        head_rows: rows of the LM head on one rank, ``(P, C)``.
        attention_rows: rows of the decode attention kernel, ``(P, C)``; ``None`` = ``rows``.
        turns: microbatches in flight, broadcast to ``(P, C)``.
        by_load: the attention kernels differ from load to load even at equal rows (prefill chunks).
    """
    shape = (len(layouts), rows.shape[1])
    tpa, kvp, dpa, tpf, ep = (x[:, None] for x in (layouts.tpa, layouts.kvp, layouts.dpa, layouts.tpf, layouts.ep))
    whole = (ep == 1) | (dpa == 1)
    mode = np.where(dpa == 1, REDUCE, np.where(ep == 1, GATHER, DISPATCH))
    load = np.arange(shape[1], dtype=np.int64)[None] if by_load else np.zeros((1, 1), np.int64)
    # Tokens every rank of the group computes: all of them after a gather; without attention DP a rank has them all.
    ranks, group = dense_ffn_ranks(layouts)[:, None], tpa * kvp
    dense = keyed(shape, ranks=ranks, rows=np.where(whole, np.maximum(tokens, rows), rows))
    scattered = (mode == DISPATCH) & (group > 1)  # the group's tokens lie split over its ranks between the exchanges
    apart = np.where(whole, np.maximum(tokens, rows), np.maximum(rows / group, 1.0))
    shared = keyed(shape, ranks=shared_expert_ranks(layouts)[:, None], rows=apart) if np.any(scattered) else dense
    return StepPlan(
        shape,
        attention=keyed(shape, tpa=tpa, kvp=kvp, rows=rows if attention_rows is None else attention_rows, load=load),
        local=keyed(shape, tpa=tpa, kvp=kvp, rows=rows, head_rows=head_rows),
        dense=dense,
        shared=shared,
        experts=keyed(shape, tpf=tpf, ep=ep, tokens=np.maximum(tokens, 1.0), wide=(mode == DISPATCH).astype(np.int64)),
        exchange=keyed(
            shape,
            mode=mode,
            group=group,
            tpf=np.where(mode == DISPATCH, tpf, 1),
            ep=np.where(mode == DISPATCH, ep, 1),
            ranks=tpf * ep,
            rows=rows,
            tokens=np.where(mode == REDUCE, 1.0, np.maximum(tokens, rows)),
        ),
        rows=np.broadcast_to(rows, shape),
        turns=np.broadcast_to(turns, shape),
    )


def decode_plan_of(layouts: LayoutBatch, concurrency: FloatArray) -> StepPlan:
    """Plan of a decode step at ``concurrency`` of shape ``(P, C)`` or ``(1, C)``: sequences take turns on the stages."""
    turns = np.minimum(layouts.pp[:, None], np.maximum(concurrency, 1.0))
    tokens = np.maximum(concurrency / turns, 1.0)
    rows = np.maximum(tokens / layouts.dpa[:, None], 1.0)
    return build_plan(layouts, rows, tokens, rows, turns=turns)


@lru_cache(maxsize=32)
def decode_plan(layouts: LayoutBatch, concurrency: tuple[float, ...]) -> StepPlan:
    """:func:`decode_plan_of` for one grid of concurrencies, ``(C,)``, kept for the next call."""
    return decode_plan_of(layouts, np.asarray(concurrency, dtype=np.float64)[None])
