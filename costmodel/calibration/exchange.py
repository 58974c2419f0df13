"""Calibration of the expert all-to-all (:mod:`..expert_all_to_all`): DeepEP and the NVLink kernels of trtllm.

Which rows are which: trtllm's ``trtllm_alltoall`` table exists for GB200 only (same NVLink, 2 to 64 ranks) and deals
tokens out in turn; DeepEP tables are in microseconds, one node of four GPUs, random routing. DeepEP-LL sends FP8 with
a scale per 128 values and returns BF16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..expert_all_to_all import ExchangeParameters, dispatch_bytes_per_token, exchange_cost, parse_exchange
from ..hardware import load_hardware
from ..links import CollectiveParameters
from .fit import FitParameter, LogFit, fit_log_time
from .interface import FamilyResult, ValidationRow
from .report import errors, three_number_prediction
from .split import held_out

if TYPE_CHECKING:
    import pandas as pd

    from ..hardware import Hardware
    from ..profile import KernelProfile
    from .tables import MeasuredTables

Floats = NDArray[np.float64]
HELD_OUT_SHARE = 0.35
_FORMATS = {"bfloat16": "bf16", "fp8": "fp8_block", "nvfp4": "nvfp4", "fp4": "nvfp4", "default": "bf16"}
_NORMAL_SMS = 20  # DeepEP's own default for its normal kernels
_MANY_SHAPES = 8
_FEW_EXPERTS = 16  # DeepEP-LL tables with so few experts measure something else


@dataclass(frozen=True)
class Exchanges:
    """Measured rows of one dispatch or combine kernel; arrays of one length.

    Attributes:
        name: entry in the profile, ``phase`` or ``phase:kernel``.
        tokens: tokens per GPU.
        ranks: expert-parallel ranks.
        h: hidden size.
        k: experts per token.
        e: routed experts.
        token_bytes: bytes of one copy of a token.
        seconds: measured time, s.
        load: routing of the benchmark.
        source: table in words.
        excluded: rows left out, by reason.
    """

    name: str
    tokens: Floats
    ranks: Floats
    h: Floats
    k: Floats
    e: Floats
    token_bytes: Floats
    seconds: Floats
    load: str
    source: str
    excluded: Mapping[str, int]

    @property
    def held(self) -> NDArray[np.bool_]:
        """Whole (H, k, E) shapes where the table has many, else whole (tokens, ranks) groups."""
        shape = [x.astype(np.int64) for x in (self.h, self.k, self.e)]
        if len(set(zip(*(x.tolist() for x in shape), strict=True))) >= _MANY_SHAPES:
            return held_out(*shape, share=HELD_OUT_SHARE)
        return held_out(self.tokens.astype(np.int64), self.ranks.astype(np.int64), share=HELD_OUT_SHARE)


def read_exchanges(tables: MeasuredTables) -> list[Exchanges]:
    """Every dispatch and combine kernel the stack's tables hold."""
    readers = {"trtllm": (_nvlink, _by_backend), "sglang": (_deepep,), "vllm": (_deepep, _by_backend)}
    return [rows for reader in readers.get(tables.stack, ()) for rows in reader(tables) if rows.seconds.size]


def _nvlink(tables: MeasuredTables) -> list[Exchanges]:
    if tables.root is None:
        return []
    here, gb200 = tables.hardware, load_hardware("gb200")
    if here.scale_up_bytes_per_second != gb200.scale_up_bytes_per_second:
        return _deepep(tables)[:2]  # another NVLink generation: DeepEP's low-latency kernels stand in
    there = replace(tables, root=tables.root.parent / "gb200")
    frame = there.read("comm", "trtllm_alltoall")
    if frame is None:
        return []
    frame = frame[frame["moe_ep_size"] <= here.scale_up_gpus]
    source = there.source("comm", "trtllm_alltoall")
    names = {
        "dispatch": ("NVLinkOneSided", "alltoall_dispatch"),
        "combine": ("NVLinkOneSided", "alltoall_combine"),
        "dispatch:two_sided": ("NVLinkTwoSided", "alltoall_dispatch"),
        "combine:two_sided": ("NVLinkTwoSided", "alltoall_combine"),
    }
    found = []
    for name, (kernel, operation) in names.items():
        d = frame[(frame["kernel_source"] == kernel) & (frame["op_name"] == operation)]
        formats = d["moe_dtype"] if name.startswith("dispatch") else "bfloat16"
        d = d.assign(ranks=d["moe_ep_size"], dtype=formats, microseconds=d["latency"] * 1e3)
        found.append(_rows(name, d, "even", source, {}))
    return found


def _by_backend(tables: MeasuredTables) -> list[Exchanges]:
    frame = tables.read("comm", "moe_a2a")
    if frame is None:
        return []
    source = tables.source("comm", "moe_a2a")
    frame = frame.assign(ranks=frame["ep_size"], dtype=frame["comm_dtype"], microseconds=frame["latency"])
    frame["backend"] = frame["comm_backend"].str.replace("trtllm_", "")
    host_bound = {("trtllm", "deepep_ll", "dispatch"), ("vllm", "deepep_ll", "combine")}
    found = []
    for (backend, phase), d in frame.groupby(["backend", "phase"]):
        if (tables.stack, backend, phase) in host_bound:
            continue
        excluded = {}
        if (tables.stack, backend) == ("trtllm", "deepep_ll"):
            narrow = (d["dtype"] != "bfloat16") | (d["hidden_size"] == 4096)
            excluded = {"low-precision combine, or H 4096 (four times the other shapes)": int(narrow.sum())}
            d = d[~narrow]
        lost = sum(b == backend for s, b, _ in host_bound if s == tables.stack)
        if lost:
            other = (frame["backend"] == backend) & (frame["phase"] != phase)
            excluded["of the other phase (bound by the host)"] = int(other.sum())
        found.append(_rows(f"{phase}:{backend}", d, "balanced", source, excluded))
    return found


def _deepep(tables: MeasuredTables) -> list[Exchanges]:
    found = []
    for file, kernel, column in (
        ("wideep_deepep_ll", "", "{}_avg_t_us"),
        ("wideep_deepep_normal", ":deepep_normal", "{}_transmit_us"),
    ):
        frame = tables.read("comm", file, stack="sglang")  # vllm runs the same library, eagerly timed in its own table
        if frame is None:
            continue
        few = (frame["num_experts"] <= _FEW_EXPERTS) if kernel == "" else frame["dispatch_sms"] != _NORMAL_SMS
        reason = f"with E <= {_FEW_EXPERTS}" if kernel == "" else f"with other than {_NORMAL_SMS} SMs"
        d = frame[~few]
        for phase, dtype in (("dispatch", "fp8"), ("combine", "bfloat16")):
            part = d.assign(
                ranks=4 * d["node_num"],
                dtype=dtype,
                microseconds=d[column.format(phase)],
                num_tokens=d["num_token"],
                topk=d["num_topk"],
            )
            source = tables.source("comm", file, stack="sglang")
            found.append(_rows(phase + kernel, part, "balanced", source, {reason: int(few.sum())}))
    return found


def _rows(name: str, d: pd.DataFrame, load: str, source: str, excluded: Mapping[str, int]) -> Exchanges:
    columns = {k: d[c].to_numpy(np.float64) for k, c in _COLUMNS.items()}
    seconds = d["microseconds"].to_numpy(np.float64) * 1e-6
    per_value = np.array([float(dispatch_bytes_per_token(1.0, _FORMATS[x])) for x in d["dtype"]])
    return Exchanges(
        name, token_bytes=columns["h"] * per_value, seconds=seconds, load=load, source=source, excluded=excluded, **columns
    )


_COLUMNS = {"tokens": "num_tokens", "ranks": "ranks", "h": "hidden_size", "k": "topk", "e": "num_experts"}


def predict_exchanges(p: ExchangeParameters, rows: Exchanges, hardware: Hardware) -> Floats:
    """Seconds of the measured rows."""
    cost = exchange_cost(
        rows.tokens,
        rows.ranks,
        top_k=rows.k,
        token_bytes=rows.token_bytes,
        num_experts=rows.e,
        load=rows.load,
        parameters=p,
        hardware=hardware,
    )
    return np.asarray(cost.seconds)


def _take(rows: Exchanges, which: NDArray[np.bool_]) -> Exchanges:
    names = (*_COLUMNS, "token_bytes", "seconds")
    return replace(rows, **{name: getattr(rows, name)[which] for name in names})


def fit_exchange(rows: Exchanges, hardware: Hardware) -> tuple[dict[str, Any], dict[str, float]]:
    """Profile table of one kernel and the standard errors; copies per choice or per rank, whichever fits."""
    seen = _take(rows, ~rows.held)
    ranks = [float(n) for n in np.unique(seen.ranks)]
    floor = float(np.quantile(seen.seconds, 0.05))
    fitted = [FitParameter(f"latency_{n:g}", floor, 1e-6, 1e-3) for n in ranks]
    fitted += [FitParameter(f"efficiency_{n:g}", 0.6, 0.01, 1.0) for n in ranks]
    fitted += [FitParameter("copy_seconds", 1e-9, 1e-12, 1e-6), FitParameter("overlap", 0.3, 1e-3, 1.0)]
    if np.unique(seen.e).size > 1:
        fitted += [FitParameter("expert_seconds", 2e-8, 1e-12, 1e-6), FitParameter("expert_limit", 300.0, 16.0, 1000.0)]

    def table(values: Mapping[str, float], every_choice: float) -> dict[str, Any]:
        scalars = {name: values[name] for name in ("copy_seconds", "overlap", "expert_seconds", "expert_limit") if name in values}
        return {
            "ranks": ranks,
            "latency_seconds": [values[f"latency_{n:g}"] for n in ranks],
            "efficiency": [values[f"efficiency_{n:g}"] for n in ranks],
            **scalars,
            "every_choice": every_choice,
        }

    def search(every_choice: float) -> LogFit:
        def model(values: dict[str, float]) -> Floats:
            return predict_exchanges(parse_exchange(table(values, every_choice), rows.name), seen, hardware)

        return fit_log_time(model, fitted, seen.seconds)

    tries = {choice: search(choice) for choice in (0.0, 1.0)}
    choice = min(tries, key=lambda c: tries[c].cost)
    best = tries[choice]
    rounded = {name: float(f"{value:.5g}") for name, value in best.values.items()}
    return table(rounded, choice), {name: float(f"{value:.3g}") for name, value in best.standard_errors.items()}


def fit_exchanges(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every dispatch and combine kernel of the stack."""
    results = []
    for rows in read_exchanges(tables):
        parameters, spread = fit_exchange(rows, tables.hardware)
        ours = predict_exchanges(parse_exchange(parameters, rows.name), rows, tables.hardware)
        held = rows.held
        seen = {name: getattr(rows, name)[~held] for name in _COLUMNS}
        results.append(
            FamilyResult(
                family="all_to_all",
                format=rows.name,
                parameters=parameters,
                source=rows.source,
                standard_errors=spread,
                fit=errors(ours[~held], rows.seconds[~held]),
                held_out=errors(ours[held], rows.seconds[held]) if held.any() else {},
                valid={name: (float(x.min()), float(x.max())) for name, x in seen.items()},
                note="; ".join(f"{count} rows {reason}" for reason, count in rows.excluded.items() if count),
            )
        )
    return results


def validate_exchanges(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on the held-out groups, beside the pure roofline and the three-number fit."""
    from .collectives import validation_row

    lines = []
    for rows in read_exchanges(tables):
        entry = profile.families.get("all_to_all", {}).get(rows.name)
        held = rows.held
        if entry is None or not held.any():
            continue
        ours = predict_exchanges(parse_exchange(entry.parameters, profile.name), rows, profile.hardware)
        ideal = predict_exchanges(ExchangeParameters(CollectiveParameters()), rows, profile.hardware)
        three = three_number_prediction(np.zeros_like(ideal), ideal, rows.seconds, ~held)
        lines.append(validation_row("all_to_all", rows.name, tables, rows.seconds, held, (ours, ideal, three), rows.excluded))
    return lines
