"""Calibration of the collectives (:mod:`..collectives`) on the tables below ``comm/``.

Reading the tables: ``message_size`` counts elements (times 2 for 16-bit, 1 for int8); eager all-reduces, vllm's
DeepEP-LL combine and trtllm's DeepEP-LL dispatch are bound by the host and left out; DeepEP tables are in
microseconds. Whole (message size, ranks) groups are held out by a fixed hash; for the expert all-to-all whole
(tokens, ranks, H, k, E) groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..links import CollectiveParameters, parse_parameters
from .exchange import fit_exchanges, validate_exchanges
from .interface import FamilyResult, ValidationRow
from .report import errors, three_number_prediction
from .segments import fit_segments
from .split import held_out

if TYPE_CHECKING:
    import pandas as pd

    from ..hardware import Hardware
    from ..profile import KernelProfile
    from .tables import MeasuredTables

Floats = NDArray[np.float64]
HELD_OUT_SHARE = 0.35
_NCCL = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "all_reduce": "all_reduce"}


@dataclass(frozen=True)
class Messages:
    """Measured rows of one collective.

    Attributes:
        family: profile family.
        operation: entry in the profile.
        size: message size, B.
        ranks: group size.
        seconds: measured time, s.
        source: table in words.
        excluded: rows left out, by reason.
    """

    family: str
    operation: str
    size: Floats
    ranks: Floats
    seconds: Floats
    source: str
    excluded: Mapping[str, int]

    @property
    def held(self) -> NDArray[np.bool_]:
        """Rows no fit may see: whole (message size, ranks) groups."""
        return held_out(self.size.astype(np.int64), self.ranks.astype(np.int64), share=HELD_OUT_SHARE)


def wire_share(operation: str, ranks: Floats) -> Floats:
    """Bytes on the link per byte of message by the best algorithm, as :mod:`..collectives` prices it."""
    if operation in ("default", "all_reduce"):
        return np.minimum(np.minimum(2 * (ranks - 1) / ranks, ranks - 1), 1.0)
    return (ranks - 1) / ranks


def read_messages(tables: MeasuredTables) -> list[Messages]:
    """All-reduce of the stack and NCCL's four collectives."""
    found = []
    newest = tables.versions("comm", "custom_allreduce")
    if newest:
        frame = tables.read("comm", "custom_allreduce")
        if frame is not None:
            eager = frame["kernel_source"].str.contains("eager")
            source = tables.source("comm", "custom_allreduce")
            excluded = {"eager (bound by the host)": int(eager.sum())}
            found.append(_messages("all_reduce", "default", frame[~eager], 2.0, source, excluded))
    frame = tables.read("comm", "nccl", stack="nccl")
    if frame is not None:
        width = np.where(frame["nccl_dtype"] == "int8", 1.0, 2.0)
        for name, operation in _NCCL.items():
            mine = (frame["op_name"] == name).to_numpy()
            source = tables.source("comm", "nccl", stack="nccl")
            found.append(_messages("collective", operation, frame[mine], width[mine], source, {}))
    return found


def _messages(
    family: str, operation: str, frame: pd.DataFrame, width: float | Floats, source: str, excluded: Mapping[str, int]
) -> Messages:
    size = frame["message_size"].to_numpy(np.float64) * width
    ranks, seconds = frame["num_gpus"].to_numpy(np.float64), frame["latency"].to_numpy(np.float64) * 1e-3
    return Messages(family, operation, size, ranks, seconds, source, excluded)


def fit_messages(rows: Messages, hardware: Hardware) -> CollectiveParameters:
    """Latency, efficiency and knees per group size; every group size gets the same number of regimes."""
    per_rank = []
    ranks = np.unique(rows.ranks)
    for n in ranks:
        at = (rows.ranks == n) & ~rows.held
        ideal = float(wire_share(rows.operation, np.asarray(n))) / hardware.scale_up_bytes_per_second
        per_rank.append(fit_segments(rows.size[at], rows.seconds[at], ideal))
    regimes = max(len(s) for s in per_rank)
    padded = [[*s, *[replace(s[-1], knee=1e30)] * (regimes - len(s))] for s in per_rank]
    return CollectiveParameters(
        ranks=tuple(float(n) for n in ranks),
        latency_seconds=tuple(_short(part.latency) for s in padded for part in s),
        efficiency=tuple(min(_short(part.efficiency), 1.0) for s in padded for part in s),
        knee_bytes=tuple(_short(part.knee) for s in padded for part in s[1:]),
    )


def predict_messages(p: CollectiveParameters, rows: Messages, hardware: Hardware) -> Floats:
    """Seconds of the measured rows."""
    from ..links import price

    share = wire_share(rows.operation, rows.ranks)
    return np.asarray(price(rows.size, rows.ranks, share, np.zeros(1), p, hardware).seconds)


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit all-reduce, NCCL and the expert all-to-all of the stack."""
    results = []
    for rows in read_messages(tables):
        p = fit_messages(rows, tables.hardware)
        ours, held = predict_messages(p, rows, tables.hardware), rows.held
        results.append(
            FamilyResult(
                family=rows.family,
                format=rows.operation,
                parameters=_as_table(p),
                source=rows.source,
                fit=errors(ours[~held], rows.seconds[~held]),
                held_out=errors(ours[held], rows.seconds[held]),
                valid={"bytes": (float(rows.size.min()), float(rows.size.max())), "ranks": (p.ranks[0], p.ranks[-1])},
                note="; ".join([*(f"{count} rows {reason}" for reason, count in rows.excluded.items() if count), beyond(p)]),
            )
        )
    exchanges = [r for r in results if r.format == "all_to_all"]
    return [*results, *(send_of(r) for r in exchanges), *fit_exchanges(tables)]


def beyond(p: CollectiveParameters) -> str:
    """What a reader must know of group sizes that no table holds."""
    return f"beyond {p.ranks[-1]:g} ranks: inferred, latency per doubling as a tree's hops, efficiency as at {p.ranks[-1]:g}"


def send_of(exchange: FamilyResult) -> FamilyResult:
    """Point to point, which no table holds: NCCL's all-to-all of two GPUs, whose half of the bytes travels."""
    p = parse_parameters(exchange.parameters, exchange.source)
    first = CollectiveParameters(
        (2.0,), p.latency_seconds[: p.regimes], p.efficiency[: p.regimes], tuple(k / 2 for k in p.knee_bytes[: p.regimes - 1])
    )
    source = f"taken as the all-to-all of {p.ranks[0]:g} GPUs: {exchange.source}"
    return FamilyResult("collective", "send", _as_table(first), source, note="no table times it", status="inferred")


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on the held-out groups, beside the pure roofline and the three-number fit."""
    lines = []
    for rows in read_messages(tables):
        entry = profile.families.get(rows.family, {}).get(rows.operation)
        if entry is None:
            continue
        p = parse_parameters(entry.parameters, profile.name)
        ours, held = predict_messages(p, rows, profile.hardware), rows.held
        ideal = predict_messages(CollectiveParameters(), rows, profile.hardware)
        three = three_number_prediction(np.zeros_like(ideal), ideal, rows.seconds, ~held)
        lines.append(validation_row(rows.family, rows.operation, tables, rows.seconds, held, (ours, ideal, three), rows.excluded))
    return [*lines, *validate_exchanges(tables, profile)]


def validation_row(
    family: str,
    name: str,
    tables: MeasuredTables,
    seconds: Floats,
    held: NDArray[np.bool_],
    predictions: Sequence[Floats],
    excluded: Mapping[str, int],
) -> ValidationRow:
    """One line of the error table from (ours, roofline, three numbers) on the held-out rows."""
    ours, ideal, three = (errors(p[held], seconds[held]) for p in predictions)
    return ValidationRow(
        family=family,
        format=name,
        stack=tables.stack,
        n=int(ours["rows"]),
        median=ours["median"],
        p90=ours["p90"],
        bias=ours["bias"],
        spearman=ours["spearman"],
        roofline_median=ideal["median"],
        three_number_median=three["median"],
        excluded=sum(excluded.values()),
        hardware=tables.hardware.name,
        note="; ".join(f"{count} rows {reason}" for reason, count in excluded.items() if count),
    )


def _as_table(p: CollectiveParameters) -> dict[str, Any]:
    table: dict[str, Any] = {
        "ranks": list(p.ranks),
        "latency_seconds": list(p.latency_seconds),
        "efficiency": list(p.efficiency),
    }
    if p.knee_bytes:
        table["knee_bytes"] = list(p.knee_bytes)
    return table


def _short(value: float) -> float:
    return float(f"{value:.5g}")
