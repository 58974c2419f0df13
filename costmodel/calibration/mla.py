"""Calibration of MLA prefill and decode kernels: the family module of the registry.

The kernel tables hold DeepSeek-V3's MLA (latent 512, rotary 64, head sizes 128) at 1 to 128 heads a GPU, with the
projections around the kernel left out; whole head counts are held out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..attention_common import math_of
from ..attention_decode import DecodeParameters
from ..mla import mla_decode_cost, mla_decode_shape, mla_prefill_cost, mla_prefill_shape
from .attention import validation_row
from .attention_fit import DECODE, PREFILL, QUERY_TILE, bars, fit_decode, fit_prefill, result, rounded
from .attention_rows import MLA_HELD_OUT_SALT, AttentionRows, check_columns, is_held_out, rows_from
from .fit import FitParameter, LogFit
from .interface import FamilyResult, ValidationRow

if TYPE_CHECKING:
    from ..profile import KernelProfile
    from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
# DeepSeek-V3's config.json (datasheet).
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
BLOCK_TILE, WIDE_HEADS = 16.0, 32.0  # heads of a narrow block; head counts above this run the wide one (a step in the tables)
SKIPPED = ("kv_factor", "token_exponent", "wide_token_seconds", "wave_share")  # not identifiable with one KV stream and head size
MLA_PREFILL = tuple(p for p in PREFILL if p.name not in SKIPPED)
MLA_DECODE = tuple(FitParameter(p.name, 1.0, 0.5, 5.0) if p.name == "wide_block_factor" else p for p in DECODE)


def read_rows(tables: MeasuredTables, kind: str) -> AttentionRows | None:
    """Rows of ``context`` or ``generation`` MLA kernels; None where there is no table."""
    frame = tables.read("mla", f"{kind}_mla")
    if frame is None:
        return None
    source = tables.source("mla", f"{kind}_mla")
    check_columns(frame, ("num_heads",), source)
    held = np.array([is_held_out(h, salt=MLA_HELD_OUT_SALT) for h in frame["num_heads"]], dtype=bool)
    return rows_from(frame, held, {}, source)


def by_format(rows: AttentionRows | None, *, prefill: bool) -> Iterator[tuple[AttentionRows, str]]:
    """Rows of each cache format with the profile's key."""
    if rows is None:
        return
    for name in np.unique(rows.kv_format):
        chosen = rows.take(rows.kv_format == name)
        yield chosen, f"{chosen.format[0]}_kv_{name}" if prefill else str(name)


def prefill_work(rows: AttentionRows) -> tuple[Any, FloatArray]:
    """Work of the rows of one format."""
    c = rows.columns
    return mla_prefill_shape(c["batch"], c["new_tokens"], c["context"] - 1.0, c["heads"], NOPE, ROPE, VALUE, str(rows.format[0]))


def decode_work(rows: AttentionRows) -> tuple[Any, FloatArray]:
    """Work of the rows of one cache format."""
    c = rows.columns
    p = DecodeParameters(block_tile=BLOCK_TILE, wide_group=WIDE_HEADS)
    return mla_decode_shape(c["batch"], c["context"], c["heads"], LATENT, ROPE, str(rows.kv_format[0]), p)


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit MLA prefill per (math, cache) format and decode per cache format."""
    found = []
    for rows, name in by_format(read_rows(tables, "context"), prefill=True):
        part = rows.take(~rows.held)
        base = {"overlap": 0.0, "tile_rows": QUERY_TILE}
        tried: list[tuple[LogFit, dict[str, float]]] = []
        for fixed in (base, base | {"fp8_math": 1.0}) if name.endswith("fp8") else (base,):
            tried.append((fit_prefill(part, *prefill_work(part), tables.hardware, parameters=MLA_PREFILL, **fixed), fixed))
        found.append(entry(tables, "mla_prefill", name, rows, *min(tried, key=lambda t: t[0].cost)))
    for rows, name in by_format(read_rows(tables, "generation"), prefill=False):
        part = rows.take(~rows.held)
        fixed = {"block_tile": BLOCK_TILE, "wide_group": WIDE_HEADS}
        numbers = fit_decode(part, *decode_work(part), tables.hardware, parameters=MLA_DECODE, **fixed)
        found.append(entry(tables, "mla_decode", name, rows, numbers, fixed))
    return found


def entry(
    tables: MeasuredTables, family: str, name: str, rows: AttentionRows, found: LogFit, fixed: dict[str, float]
) -> FamilyResult:
    """A family's entry with its errors, priced as measured."""
    from ..profile import parse_profile

    parameters = {key: rounded(value) for key, value in found.values.items()} | fixed
    spread = {key: rounded(value) for key, value in found.standard_errors.items()}
    table = {name: {"status": "fitted", "source": rows.source, "parameters": parameters}}
    profile = parse_profile({"name": "calibration", "hardware": tables.hardware.name, family: table}, "calibration")
    return result(family, name, rows, predict(rows, profile, prefill=family == "mla_prefill"), parameters, spread, "")


def predict(rows: AttentionRows, profile: KernelProfile, *, prefill: bool) -> FloatArray:
    """Seconds of the rows of one format, as measured (warm L2)."""
    c, kv_format = rows.columns, str(rows.kv_format[0])
    if not prefill:
        sizes = {"heads": c["heads"], "kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
        return mla_decode_cost(c["batch"], c["context"], **sizes, kv_format=kv_format, profile=profile, warm_l2=True).seconds
    return mla_prefill_cost(
        c["batch"],
        c["new_tokens"],
        c["context"] - 1.0,
        heads=c["heads"],
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        format=str(rows.format[0]),
        kv_format=kv_format,
        profile=profile,
        warm_l2=True,
    ).seconds


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on held-out head counts beside the roofline and the three-number fit."""
    found = []
    hardware = profile.hardware
    for kind in ("context", "generation"):
        prefill = kind == "context"
        for rows, name in by_format(read_rows(tables, kind), prefill=prefill):
            if prefill:
                work, _ = prefill_work(rows)
                scores = work.sequences * work.heads * work.new_tokens * (work.past_tokens + 0.5 * work.new_tokens)
                moved = work.query_bytes + work.new_kv_bytes + work.past_kv_bytes
                flop, peak = scores * work.flop_per_score, hardware.peak_flop_per_second(math_of(str(rows.format[0])))
            else:
                work, _ = decode_work(rows)
                pairs = work.sequences * work.keys
                flop, scores, moved = pairs * work.flop, pairs * work.scores, pairs * work.kv_bytes
                peak = hardware.peak_flop_per_second(math_of(name))
            roofline, three = bars(flop, scores, moved, rows, hardware, peak)
            predicted = predict(rows, profile, prefill=prefill)
            family = "mla_prefill" if prefill else "mla_decode"
            row = validation_row(tables, family, name, rows, rows.held, predicted, roofline, three)
            found += [row] if row else []
    return found
