"""Calibration of the grouped expert GEMM (:mod:`..moe`) on ``moe/<stack>/…/moe_perf.parquet``.

Reading the tables: ``num_tokens`` is the total of the expert-parallel group, ``moe_tp_size`` divides the expert
width, top-k 22 and the shape 2688/1856 have two matrices (unlabelled), "balanced" deals tokens out in turn, and a
benchmark loop finds small weights in L2. Whole (H, width, E, k) groups are held out by a fixed hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..hardware import Hardware
from ..moe import moe_parts
from ..moe_load import RankLoad, rank_load
from ..moe_parameters import MoeParameters, moe_parameters
from .fit import FitParameter, LogFit, fit_log_time
from .interface import FamilyResult, ValidationRow
from .moe_kernels import DATA_PARALLEL, KERNELS, Kernel
from .report import errors, three_number_prediction

if TYPE_CHECKING:
    import pandas as pd

    from ..profile import KernelProfile
    from .tables import MeasuredTables

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
HELD_OUT_SHARE = 0.45
_FIT_ROWS, _SHORT_ROWS = 4000, 1200
_GROUP = ["hidden_size", "inter_size", "num_experts", "topk"]
_KEYS = ["kernel_source", *_GROUP, "moe_tp_size", "moe_ep_size", "distribution"]
# A row slower by this share than one with more work (batch or width): the autotuner picked the wrong kernel.
_NON_MONOTONE = 1.10
# Routing of the "balanced" rows of this shape is degenerate in vllm and sglang: four experts get every token.
_DEGENERATE = (7168, 2048, 256, 8)


# (smallest, largest) row tile of a kernel's menu; the one that fits the fitted rows best is kept
_MENUS = ((8.0, 64.0), (8.0, 128.0), (128.0, 128.0))
_FIT = (
    FitParameter("launch_seconds", 16e-6, 1e-7, 1e-4),
    FitParameter("ungated_launch_seconds", 4e-6, 1e-9, 5e-5),
    FitParameter("ungated_slowdown", 0.05, 1e-5, 1.0),
    FitParameter("expert_seconds", 2e-8, 1e-11, 2e-6),
    FitParameter("touched_expert_seconds", 3e-8, 1e-11, 1e-6),
    FitParameter("memory_efficiency", 0.9, 0.3, 1.0),
    FitParameter("math_efficiency", 0.45, 0.05, 1.0),
    FitParameter("unhidden", 0.6, 1e-4, 3.0),
    FitParameter("tile_overhead_rows", 4.0, 1e-3, 100.0),
    FitParameter("tile_seconds", 4e-7, 1e-10, 2e-5),
    FitParameter("tail_streams", 0.2, 1e-4, 5.0),
    FitParameter("hidden_traffic", 3.0, 1e-3, 100.0),
    FitParameter("inner_traffic", 8.0, 1e-3, 150.0),
    FitParameter("token_traffic", 8.0, 1e-3, 200.0),
    FitParameter("choice_traffic", 1.0, 1e-4, 50.0),
    FitParameter("row_seconds", 5e-10, 1e-13, 2e-8),
    FitParameter("choice_seconds", 2e-10, 1e-13, 1e-8),
    FitParameter("ramp_seconds", 6e-6, 1e-9, 5e-5),
    FitParameter("ramp_tokens", 25.0, 2.0, 100.0),
    FitParameter("step_seconds", 1e-6, 1e-9, 3e-5),
)


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
    """The newest table that holds (at least half as many as any other) rows of ``kernel``, and its version."""
    frames = {version: tables.read("moe", "moe", version=version) for version in tables.versions("moe", "moe")}
    counts = {version: int(_mine(frame, kernel).sum()) for version, frame in frames.items() if frame is not None}
    for version in reversed(list(counts)):
        frame = frames[version]
        if frame is not None and counts[version] and counts[version] >= max(counts.values()) / 2:
            return frame, version
    return None


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
    held = d.groupby(_GROUP)["latency"].transform(lambda x: float(held_out_group(*map(int, x.name)))) > 0
    names = {"tokens": "num_tokens", "h": "hidden_size", "e": "num_experts", "k": "topk", "ep": "moe_ep_size"}
    columns = {ours: d[theirs].to_numpy(np.float64) for ours, theirs in names.items()}
    columns["inner"] = (d["inter_size"] / d["moe_tp_size"]).to_numpy(np.float64)
    two = (d["topk"] == 22) | ((d["hidden_size"] == 2688) & (d["inter_size"] == 1856))
    seconds = d["latency"].to_numpy(np.float64) * 1e-3
    return Rows(columns, ~two.to_numpy(bool), d["distribution"].to_numpy(str), seconds, held.to_numpy(bool), excluded)


@dataclass(frozen=True)
class Prepared:
    """Measured rows split by routing load, with what the parameters do not change worked out once."""

    size: int
    parts: tuple[tuple[NDArray[np.int64], tuple[Floats, ...], RankLoad, Bools], ...]


def _slower(d: pd.DataFrame, keys: list[str], size: str, step: int) -> pd.Series[bool]:
    """Rows well slower than one of the same ``keys`` with more work (larger ``size`` for step -1, smaller for 1)."""
    ordered = d.sort_values(size).iloc[::step]
    return d["latency"] > _NON_MONOTONE * ordered.groupby(keys, sort=False)["latency"].cummin().reindex(d.index)


def prepare(rows: Rows) -> Prepared:
    """Split ``rows`` by load ("balanced" rows of a table are dealt out in turn: ``even``)."""
    parts = []
    for load in np.unique(rows.load):
        at = np.flatnonzero(rows.load == load)
        t, h, inner, e, k, ep = (rows.columns[name][at] for name in ("tokens", "h", "inner", "e", "k", "ep"))
        shares = rank_load("even" if load in ("balanced", "uniform") else str(load), t, ep, e, k)
        parts.append((at, (t, h, inner, e, k, ep), shares, rows.gated[at]))
    return Prepared(rows.seconds.size, tuple(parts))


def predict(
    parameters: MoeParameters, rows: Prepared, format: str, hardware: Hardware, *, warm_l2: bool = True
) -> tuple[Floats, ...]:
    """The fields of :class:`..moe.MoeCost` for measured rows (benchmark loop: warm L2)."""
    out: list[Floats] = []
    for at, arrays, shares, gated in rows.parts:
        t, h, inner, e, k, ep = arrays
        parts = moe_parts(parameters, hardware, format, t, h, inner, e, k, ep, shares, gated=gated, warm_l2=warm_l2)
        if not out:
            out = [np.zeros(rows.size) for _ in parts]
        for whole, part in zip(out, parts, strict=True):
            whole[at] = part
    return tuple(out)


def fit_rows(
    rows: Rows, format: str, hardware: Hardware, *, local_tokens: float = 0.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Fitted parameters and their standard errors; the tile menu is the one that a short fit likes best."""
    fitted = [p for p in _FIT if not (rows.gated.all() and p.name.startswith("ungated"))]
    order = np.random.default_rng(0).permutation(rows.seconds.size)

    def search(count: int, evaluations: int, menu: tuple[float, float], start: Mapping[str, float]) -> LogFit:
        chosen = rows.take(order[:count])
        prepared = prepare(chosen)
        fixed = {"tile_rows_min": menu[0], "tile_rows_max": menu[1], "local_tokens": local_tokens}

        def model(values: dict[str, float]) -> Floats:
            return predict(MoeParameters(**values, **fixed), prepared, format, hardware)[0]

        begin = [replace(p, start=start.get(p.name, p.start)) for p in fitted]
        return fit_log_time(model, begin, chosen.seconds, max_evaluations=evaluations)

    short = {menu: search(_SHORT_ROWS, 30, menu, {}) for menu in _MENUS}
    menu = min(short, key=lambda m: short[m].cost)
    found = search(_FIT_ROWS, 40, menu, short[menu].values)
    fixed = {"tile_rows_min": menu[0], "tile_rows_max": menu[1]}
    return {**found.values, **fixed, **({"local_tokens": 1.0} if local_tokens else {})}, found.standard_errors


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every MoE kernel of the stack."""
    results: list[FamilyResult] = []
    for name, rows, source in every_kernel(tables):
        seen, unseen = rows.take(~rows.held), rows.take(rows.held)
        if seen.seconds.size < 5 * len(_FIT):
            continue
        format, _, variant = name.partition(":")
        local = float(variant in DATA_PARALLEL)
        values, spread = fit_rows(seen, format, tables.hardware, local_tokens=local)
        parameters = MoeParameters(**values)
        figures = [
            errors(predict(parameters, prepare(part), format, tables.hardware)[0], part.seconds) if part.seconds.size else {}
            for part in (seen, unseen)
        ]
        c = seen.columns
        results.append(
            FamilyResult(
                family="moe",
                format=name,
                parameters={key: float(f"{value:.6g}") for key, value in values.items()},
                source=source,
                standard_errors={key: float(f"{value:.3g}") for key, value in spread.items()},
                fit=figures[0],
                held_out=figures[1],
                valid={key: (float(c[key].min()), float(c[key].max())) for key in c},
                note=_note(rows),
            )
        )
    return results


def every_kernel(tables: MeasuredTables) -> list[tuple[str, Rows, str]]:
    """(profile entry, cleaned rows, source) of every kernel the tables hold for the stack."""
    from .moe_data_parallel import read_data_parallel

    found = []
    for kernel in KERNELS.get(tables.stack, ()):
        stack, table = tables.stack, read_table(tables, kernel)
        if table is None and kernel.name.endswith(":fused"):  # the same trtllm-gen kernels, timed under sglang
            stack, kernel = "sglang", replace(kernel, sources=("flashinfer_trtllm",))
            table = read_table(replace(tables, stack=stack), kernel)
        elif table is None and kernel.name.endswith(":grouped"):  # DeepGEMM in all shapes, timed under trtllm
            stack, table = "trtllm", read_table(replace(tables, stack="trtllm"), kernel)
        elif table is None and kernel.older:
            kernel = replace(kernel, sources=kernel.older)
            table = read_table(tables, kernel)
        rows = read_rows(table[0], kernel, stack) if table else None
        if table is not None and rows is not None:
            source = f"aiconfigurator-core moe/{stack}/{table[1]}/moe_perf.parquet, kernel_source containing "
            found.append((kernel.name, rows, source + " or ".join(kernel.sources)))
    return [*found, *read_data_parallel(tables)]


def _note(rows: Rows) -> str:
    return "; ".join(f"{count} rows {reason}" for reason, count in rows.excluded.items() if count)


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on the held-out groups, beside the pure roofline and the three-number fit."""
    lines: list[ValidationRow] = []
    for entry, rows, _ in every_kernel(tables):
        if not rows.held.any() or entry not in profile.families.get("moe", {}):
            continue
        name, _, variant = entry.partition(":")
        prepared = prepare(rows)
        ours = predict(moe_parameters(profile, name, variant or None), prepared, name, profile.hardware)[0]
        ideal = predict(MoeParameters(), prepared, name, profile.hardware, warm_l2=False)
        three = three_number_prediction(ideal[4], ideal[5], rows.seconds, ~rows.held)
        held, measured = rows.held, rows.seconds[rows.held]
        figures = errors(ours[held], measured)
        lines.append(
            ValidationRow(
                family="moe",
                format=entry,
                stack=tables.stack,
                n=int(figures["rows"]),
                median=figures["median"],
                p90=figures["p90"],
                bias=figures["bias"],
                spearman=figures["spearman"],
                roofline_median=errors(ideal[0][held], measured)["median"],
                three_number_median=errors(three[held], measured)["median"],
                excluded=sum(rows.excluded.values()),
                hardware=profile.hardware.name,
                note=_note(rows),
            )
        )
    return lines
