"""Calibration of prefill and decode attention (MHA, GQA, MQA, sliding window): the family module of the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..attention import attention_decode_cost, attention_prefill_cost
from ..attention_common import math_of
from .attention_fit import (
    QUERY_TILE,
    WIDE_GROUP,
    WIDE_TOKEN,
    bars,
    decode_shape,
    fit_decode,
    fit_prefill,
    per_head_size,
    prefill_shape,
    result,
    rounded,
)
from .attention_rows import AttentionRows, read_rows
from .fit import LogFit
from .interface import FamilyResult, ValidationRow
from .report import errors

if TYPE_CHECKING:
    from ..profile import KernelProfile
    from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
BIG_SECONDS = 30e-6  # decode times below 24 us sit on a 2 us timer grid: rows above this are reported apart


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit prefill per (math, cache) format and decode per cache format, one set of numbers a head size."""
    hardware = tables.hardware

    def prefill(part: AttentionRows, fixed: Mapping[str, float]) -> LogFit:
        return fit_prefill(part, *prefill_shape(part), hardware, fixed)

    def decode(part: AttentionRows, fixed: Mapping[str, float]) -> LogFit:
        return fit_decode(part, *decode_shape(part), hardware, fixed)

    results = []
    for rows, name in by_format(read_rows(tables, "context"), both=True):
        base = {"overlap": 0.0, "tile_rows": QUERY_TILE, "wide_token_values": WIDE_TOKEN}
        choices = [base, base | {"fp8_math": 1.0}] if name == "bf16_kv_fp8" else [base]
        results.append(("attention_prefill", name, rows, *per_head_size(rows, prefill, *choices)))
    for whole, kv_format in by_format(read_rows(tables, "generation"), both=False):
        for rows, name in kernels_of(tables, whole, kv_format):
            results.append(("attention_decode", name, rows, *per_head_size(rows, decode, {"wide_group": WIDE_GROUP})))
    found = [finish(tables, *entry) for entry in results]
    return found + twins(found)


def kernels_of(tables: MeasuredTables, rows: AttentionRows, name: str) -> list[tuple[AttentionRows, str]]:
    """Decode rows by kernel: TensorRT-LLM on Hopper runs one for grouped heads (XQA) and another for MHA."""
    single = rows.columns["heads"] == rows.columns["kv_heads"]
    if tables.stack != "trtllm" or tables.hardware.nvfp4_flop_per_second or not single.any() or single.all():
        return [(rows, name)]
    return [(rows.take(~single), name), (rows.take(single), f"{name}:mha")]


def twins(found: list[FamilyResult]) -> list[FamilyResult]:
    """An FP8 cache read by the other math format, where a stack's table has only one of the two.

    Measured kernels quantise the queries and multiply in FP8 either way; the caller counts queries and outputs as
    2 + 2 or 1 + 2 bytes a value, so the exposed share of them is scaled to the same seconds.
    """
    by_name = {r.format: r for r in found if r.family == "attention_prefill"}
    added = []
    for have, lack in (("fp8_kv_fp8", "bf16_kv_fp8"), ("bf16_kv_fp8", "fp8_kv_fp8")):
        if have not in by_name or lack in by_name:
            continue
        old = by_name[have]
        scale = 3 / 4 if lack.startswith("bf16") else 4 / 3
        factor = old.parameters["query_factor"]
        scaled = [rounded(x * scale) for x in factor] if isinstance(factor, list) else rounded(factor * scale)
        parameters = {**old.parameters, "query_factor": scaled, "fp8_math": 1.0}
        note = f"the numbers of {have}: the kernel multiplies in FP8 either way"
        added.append(replace(old, format=lack, parameters=parameters, status="inferred", fit={}, held_out={}, note=note))
    return added


def finish(
    tables: MeasuredTables, family: str, name: str, rows: AttentionRows, parameters: dict[str, object], spread: dict[str, object]
) -> FamilyResult:
    """Price all rows with the fitted numbers, as measured (warm L2), and report."""
    from ..profile import parse_profile

    entry = {name.partition(":")[0]: {"status": "fitted", "source": rows.source, "parameters": parameters}}
    profile = parse_profile({"name": "calibration", "hardware": tables.hardware.name, family: entry}, "calibration")
    return result(family, name, rows, predict(rows, profile, prefill=family == "attention_prefill"), parameters, spread, "")


def by_format(rows: AttentionRows | None, *, both: bool) -> Iterator[tuple[AttentionRows, str]]:
    """Rows of each (math, cache) format with the profile's key, or of each cache format."""
    if rows is None:
        return
    names = np.char.add(np.char.add(rows.format, "_kv_"), rows.kv_format) if both else rows.kv_format
    for name in np.unique(names):
        yield rows.take(names == name), str(name)


def predict(rows: AttentionRows, profile: KernelProfile, *, prefill: bool) -> FloatArray:
    """Seconds of the rows of one format, as measured (warm L2)."""
    c = rows.columns
    sizes = {name: c[name] for name in ("heads", "kv_heads", "head_dim", "window")}
    kv_format = str(rows.kv_format[0])
    if not prefill:
        return attention_decode_cost(
            c["batch"], c["context"], **sizes, kv_format=kv_format, profile=profile, warm_l2=True
        ).seconds
    return attention_prefill_cost(
        c["batch"],
        c["new_tokens"],
        c["context"] - 1.0,
        **sizes,
        format=str(rows.format[0]),
        kv_format=kv_format,
        profile=profile,
        warm_l2=True,
    ).seconds


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on held-out groups, full attention and windows apart, beside the roofline and the three-number fit."""
    found = []
    for kind, family in (("context", "attention_prefill"), ("generation", "attention_decode")):
        prefill = kind == "context"
        for rows, name in by_format(read_rows(tables, kind), both=prefill):
            predicted = predict(rows, profile, prefill=prefill)
            hardware = profile.hardware
            if prefill:
                shape, _ = prefill_shape(rows)
                cost = attention_prefill_cost(
                    rows.columns["batch"],
                    rows.columns["new_tokens"],
                    rows.columns["context"] - 1.0,
                    heads=rows.columns["heads"],
                    kv_heads=rows.columns["kv_heads"],
                    head_dim=rows.columns["head_dim"],
                    window=rows.columns["window"],
                    format=str(rows.format[0]),
                    kv_format=str(rows.kv_format[0]),
                    profile=profile,
                )
                flop, moved = cost.flop, shape.query_bytes + cost.kv_bytes
                scores = flop / shape.flop_per_score
                peak = hardware.peak_flop_per_second(math_of(str(rows.format[0])))
            else:
                work, _ = decode_shape(rows)
                pairs = work.sequences * work.keys
                flop, scores, moved = pairs * work.flop, pairs * work.scores, pairs * work.kv_bytes
                peak = hardware.peak_flop_per_second(math_of(str(rows.kv_format[0])))
            roofline, three = bars(flop, scores, moved, rows, hardware, peak)
            for variant, chosen in (("", rows.columns["window"] == 0), (" window", rows.columns["window"] > 0)):
                row = validation_row(tables, family, name + variant, rows, rows.held & chosen, predicted, roofline, three)
                found += [row] if row else []
    return found


def validation_row(
    tables: MeasuredTables,
    family: str,
    name: str,
    rows: AttentionRows,
    chosen: NDArray[np.bool_],
    predicted: FloatArray,
    roofline: FloatArray,
    three: FloatArray,
) -> ValidationRow | None:
    """One line of the error table on ``chosen`` rows; None where there are none."""
    if not chosen.any():
        return None
    measured = rows.seconds[chosen]
    e, bar, other = (errors(p[chosen], measured) for p in (predicted, roofline, three))
    note = rows.describe_excluded()
    big = measured > BIG_SECONDS
    if big.sum() > 2:
        above = errors(predicted[chosen][big], measured[big])
        note = f"above 30 us: {above['rows']} rows, {100 * above['median']:.1f} / {100 * above['p90']:.1f} %; {note}"
    figures = (int(e["rows"]), e["median"], e["p90"], e["bias"], e["spearman"], bar["median"], other["median"])
    return ValidationRow(family, name, tables.stack, *figures, sum(rows.excluded.values()), tables.hardware.name, note)
