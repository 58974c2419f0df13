"""Rows of the measured expert tables, ``moe/<stack>/…/moe_perf.parquet``, cleaned and split.

``num_tokens`` is the total of the expert-parallel group, ``moe_tp_size`` divides the expert width, top-k 22 and the
shape 2688/1856 have two matrices (unlabelled). Whole (H, width, E, k) groups are held out by a fixed hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .moe_kernels import KERNELS, Kernel
from .split import held_out

if TYPE_CHECKING:
    import pandas as pd

    from .tables import MeasuredTables

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
HELD_OUT_SHARE = 0.45
_GROUP = ["hidden_size", "inter_size", "num_experts", "topk"]
_KEYS = ["kernel_source", *_GROUP, "moe_tp_size", "moe_ep_size", "distribution"]
# A row slower by this share than one with more work (batch or width): the autotuner picked the wrong kernel.
_NON_MONOTONE = 1.10
# Routing of the "balanced" rows of this shape is degenerate in vllm and sglang: four experts get every token.
_DEGENERATE = (7168, 2048, 256, 8)


@dataclass(frozen=True)
class Rows:
    """Measured rows of one kernel, cleaned; arrays of one length.

    Attributes:
        columns: tokens, h, inner, e, k, ep, tp as floats.
        gated: three matrices.
        load: distribution name per row.
        seconds: measured time, s.
        held: held-out rows.
        excluded: rows left out, by reason.
    """

    columns: Mapping[str, Floats]
    gated: Bools
    load: NDArray[np.str_]
    seconds: Floats
    held: Bools
    excluded: Mapping[str, int]

    def take(self, which: Bools | NDArray[np.int64]) -> Rows:
        """The rows at ``which``."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return Rows(columns, self.gated[which], self.load[which], self.seconds[which], self.held[which], self.excluded)


def held_out_group(hidden_size: int, inter_size: int, num_experts: int, top_k: int) -> bool:
    """True for the 45 % of (H, width, E, k) groups that no fit and no choice of form may see.

    The salt was chosen so that two-matrix shapes and few-expert shapes lie on both sides, before any fit.
    """
    key = f"held-out|{hidden_size}|{inter_size}|{num_experts}|{top_k}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32 < HELD_OUT_SHARE


def read_table(tables: MeasuredTables, kernel: Kernel) -> tuple[pd.DataFrame, str] | None:
    """The newest table with rows of ``kernel`` (half as many as any other, more than half the shapes), and its version."""
    found = []
    for version in tables.versions("moe", "moe"):
        frame = tables.read("moe", "moe", version=version)
        if frame is not None and (mine := frame[_mine(frame, kernel)]).size:
            found.append((frame, version, len(mine), mine.groupby(_GROUP).ngroups))
    most, shapes = (max((f[i] for f in found), default=0) for i in (2, 3))
    return next(((f, v) for f, v, rows, kinds in reversed(found) if 2 * rows >= most and 2 * kinds > shapes), None)


def _mine(frame: pd.DataFrame, kernel: Kernel) -> pd.Series[bool]:
    source = frame["kernel_source"].str.contains("|".join(kernel.sources))
    return source & (frame["moe_dtype"] == kernel.dtype)


def read_rows(frame: pd.DataFrame, kernel: Kernel, stack: str) -> Rows | None:
    """Rows of ``kernel`` in a table, cleaned; None where there are none."""
    d = frame[_mine(frame, kernel)]
    total = len(d)
    if not total:
        return None
    d = d.groupby([*_KEYS, "num_tokens"], as_index=False)["latency"].median()
    excluded = {"repeats merged into their median": total - len(d)}
    others = [k.sources for k in KERNELS.get(stack, ()) if k.dtype == kernel.dtype]
    if ":" not in kernel.name and others:
        known = frame["kernel_source"].str.contains("|".join(s for sources in others for s in sources))
        excluded["of further kernels of the format"] = int(((frame["moe_dtype"] == kernel.dtype) & ~known).sum())
    if stack in ("vllm", "sglang"):
        bad = (d["distribution"] == "balanced") & (d[_GROUP] == list(_DEGENERATE)).all(axis=1)
        excluded["degenerate balanced routing"] = int(bad.sum())
        d = d[~bad]
    point = [k for k in (*_KEYS, "num_tokens") if k != "moe_tp_size"]
    batch, shard = _slower(d, _KEYS, "num_tokens", -1), _slower(d, point, "moe_tp_size", 1)
    excluded["slower than a larger batch"] = int(batch.sum())
    excluded["slower than a wider shard"] = int((shard & ~batch).sum())
    d = d[~(batch | shard)]
    if d.empty:
        return None
    held = (d.groupby(_GROUP)["latency"].transform(lambda x: float(held_out_group(*map(int, x.name)))) > 0).to_numpy(bool)
    if held.all():  # one shape, or none to fit: whole group sizes (EP) are held out in its place
        held = held_out(d["moe_ep_size"].to_numpy(np.int64), share=0.4)
    names = {"tokens": "num_tokens", "h": "hidden_size", "e": "num_experts", "k": "topk", "ep": "moe_ep_size"}
    columns = {ours: d[theirs].to_numpy(np.float64) for ours, theirs in names.items()}
    columns["inner"] = (d["inter_size"] / d["moe_tp_size"]).to_numpy(np.float64)
    two = (d["topk"] == 22) | ((d["hidden_size"] == 2688) & (d["inter_size"] == 1856))
    seconds = d["latency"].to_numpy(np.float64) * 1e-3
    return Rows(columns, ~two.to_numpy(bool), d["distribution"].to_numpy(str), seconds, held, excluded)


def _slower(d: pd.DataFrame, keys: list[str], size: str, step: int) -> pd.Series[bool]:
    """Rows well slower than one of the same ``keys`` with more work (larger ``size`` for step -1, smaller for 1)."""
    ordered = d.sort_values(size).iloc[::step]
    return d["latency"] > _NON_MONOTONE * ordered.groupby(keys, sort=False)["latency"].cummin().reindex(d.index)


def note_of(rows: Rows) -> str:
    """What was left out, in words."""
    return "; ".join(f"{count} rows {reason}" for reason, count in rows.excluded.items() if count)
