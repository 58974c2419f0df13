"""Calibration of the grouped expert GEMM (:mod:`..moe`) on ``moe/<stack>/…/moe_perf.parquet``.

Reading the tables: ``num_tokens`` is the total of the expert-parallel group, ``moe_tp_size`` divides the expert
width, top-k 22 and the shape 2688/1856 have two matrices (unlabelled), "balanced" deals tokens out in turn, and a
benchmark loop finds small weights in L2. Whole (H, width, E, k) groups are held out by a fixed hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..hardware import Hardware
from ..moe import FUSED_TOPK, moe_parts
from ..moe_load import RankLoad, rank_load
from ..moe_parameters import MoeParameters, moe_parameters
from .fit import FitParameter, LogFit, fit_log_time
from .interface import FamilyResult, ValidationRow
from .moe_kernels import KERNELS, Kernel
from .moe_rows import Bools, Floats, Rows, held_out_group, note_of, read_rows, read_table
from .report import errors, three_number_prediction

if TYPE_CHECKING:
    from ..profile import KernelProfile
    from .tables import MeasuredTables

__all__ = [
    "KERNELS", "Entry", "Rows", "every_kernel", "fit", "fit_rows", "held_out_group", "predict", "prepare", "read_rows",
    "read_table", "validate",
]  # fmt: skip
_FIT_ROWS, _SHORT_ROWS = 4000, 1200


# (smallest, largest) row tile of a kernel's menu; the one that fits the fitted rows best is kept
_MENUS = ((8.0, 64.0), (8.0, 128.0), (128.0, 128.0))
_WIDE = "wide_topk_seconds"
_FIT = (
    FitParameter("launch_seconds", 16e-6, 1e-7, 1e-4),
    FitParameter("wide_topk_seconds", 4e-6, 1e-9, 5e-5),
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
class Prepared:
    """Measured rows split by routing load, with what the parameters do not change worked out once."""

    size: int
    parts: tuple[tuple[NDArray[np.int64], tuple[Floats, ...], RankLoad, Bools], ...]


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
    rows: Rows, format: str, hardware: Hardware, *, given: Mapping[str, float] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Fitted parameters and their standard errors; the tile menu is the one that a short fit likes best.

    Args:
        rows: measured rows.
        format: number format.
        hardware: datasheet.
        given: numbers that are not fitted.
    """
    known = dict(given or {})
    fitted = [p for p in _FIT if p.name not in known and (p.name != _WIDE or rows.columns["k"].max() > FUSED_TOPK)]
    order = np.random.default_rng(0).permutation(rows.seconds.size)

    def search(count: int, evaluations: int, menu: tuple[float, float], start: Mapping[str, float]) -> LogFit:
        chosen = rows.take(order[:count])
        prepared = prepare(chosen)
        fixed = {**known, "tile_rows_min": menu[0], "tile_rows_max": menu[1]}

        def model(values: dict[str, float]) -> Floats:
            return predict(MoeParameters(**fixed, **values), prepared, format, hardware)[0]

        begin = [replace(p, start=start.get(p.name, p.start)) for p in fitted]
        return fit_log_time(model, begin, chosen.seconds, max_evaluations=evaluations)

    short = {menu: search(_SHORT_ROWS, 30, menu, {}) for menu in _MENUS}
    menu = min(short, key=lambda m: short[m].cost)
    found = search(_FIT_ROWS, 40, menu, short[menu].values)
    return {**found.values, "tile_rows_min": menu[0], "tile_rows_max": menu[1], **known}, found.standard_errors


@dataclass(frozen=True)
class Entry:
    """One entry of the profile and the rows it is fitted to and judged on.

    Attributes:
        name: entry in the profile, ``format`` or ``format:kernel``.
        rows: the stack's rows: judged on, and fitted to where there is no ``lent``.
        source: where they are from.
        given: numbers that no fit touches.
        lent: another stack's rows of the same kernel, fitted to instead.
        lent_source: where those are from.
    """

    name: str
    rows: Rows
    source: str
    given: Mapping[str, float]
    lent: Rows | None = None
    lent_source: str = ""

    def fit(self, hardware: Hardware) -> tuple[dict[str, float], dict[str, float]] | None:
        """Fitted parameters and their standard errors; None with too few rows."""
        format, seen = self.name.partition(":")[0], self.rows.take(~self.rows.held)
        first = seen if self.lent is None else self.lent.take(~self.lent.held)
        if first.seconds.size < 5 * len(_FIT):
            return None
        return fit_rows(first, format, hardware, given=self.given)


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every MoE kernel of the stack."""
    results: list[FamilyResult] = []
    for entry in every_kernel(tables):
        found, rows, format = entry.fit(tables.hardware), entry.rows, entry.name.partition(":")[0]
        if found is None:
            continue
        parameters = MoeParameters(**found[0])
        figures = [
            errors(predict(parameters, prepare(part), format, tables.hardware)[0], part.seconds) if part.seconds.size else {}
            for part in (rows.take(~rows.held), rows.take(rows.held))
        ]
        c = (rows if entry.lent is None else entry.lent).take(~(rows if entry.lent is None else entry.lent).held).columns
        results.append(
            FamilyResult(
                family="moe",
                format=entry.name,
                parameters={key: float(f"{value:.6g}") for key, value in found[0].items()},
                source=f"the same kernel in {entry.lent_source}; judged on {entry.source}" if entry.lent else entry.source,
                standard_errors={key: float(f"{value:.3g}") for key, value in found[1].items()},
                fit=figures[0],
                held_out=figures[1],
                valid={key: (float(c[key].min()), float(c[key].max())) for key in c},
                note=note_of(rows),
                status="inferred" if entry.lent is not None else "fitted",
            )
        )
    return results


def every_kernel(tables: MeasuredTables) -> list[Entry]:
    """What the tables hold for the stack, kernel by kernel."""
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
        if table is None or rows is None:
            continue
        given = {"activation_bits": kernel.activation_bits} if kernel.activation_bits else {}
        entry = Entry(kernel.name, rows, _source(stack, table[1], kernel), given)
        if kernel.lender:
            other = next(k for k in KERNELS[kernel.lender] if k.name == kernel.name)
            theirs = read_table(replace(tables, stack=kernel.lender), other)
            lent = read_rows(theirs[0], other, kernel.lender) if theirs else None
            if theirs and lent:
                entry = replace(entry, lent=lent, lent_source=_source(kernel.lender, theirs[1], other))
        found.append(entry)
    local = [Entry(name, rows, source, {"local_tokens": 1.0}) for name, rows, source in read_data_parallel(tables)]
    return [*found, *local]


def _source(stack: str, version: str, kernel: Kernel) -> str:
    kinds = " or ".join(kernel.sources)
    return f"aiconfigurator-core moe/{stack}/{version}/moe_perf.parquet, kernel_source containing {kinds}"


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on the held-out groups, beside the pure roofline and the three-number fit."""
    lines: list[ValidationRow] = []
    for one in every_kernel(tables):
        entry, rows = one.name, one.rows
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
                note=note_of(rows),
            )
        )
    return lines
