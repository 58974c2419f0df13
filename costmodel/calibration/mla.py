"""Calibration of MLA prefill and decode kernels: the family module of the registry.

The kernel tables hold DeepSeek-V3's MLA (latent 512, rotary 64, head sizes 128) at 1 to 128 heads a GPU, with the
projections around the kernel left out; whole head counts are held out. A stack without kernel tables inherits the
numbers of one that calls the same kernels and is checked on its own module tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..attention_common import math_of
from ..attention_decode import DecodeParameters, price_decode
from ..attention_prefill import PrefillParameters, causal_scores, price_prefill
from ..hardware import Hardware
from ..mla import mla_decode_cost, mla_decode_shape, mla_prefill_cost, mla_prefill_shape
from .attention import validation_row
from .attention_fit import DECODE, PREFILL, QUERY_TILE, SCALE, bars, fit_decode, fit_prefill, result, rounded
from .attention_rows import MLA_HELD_OUT_SALT, AttentionRows, check_columns, is_held_out, rows_from
from .fit import FitParameter, LogFit, fit_log_time
from .interface import FamilyResult, ValidationRow
from .mla_modules import ModuleRows, module_rows
from .report import errors

if TYPE_CHECKING:
    from ..profile import KernelProfile
    from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
# DeepSeek-V3's config.json (datasheet).
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
BLOCK_TILE, WIDE_HEADS = 16.0, 32.0  # heads of a narrow block; head counts above this run the wide one (a step in the tables)
SAME_KERNEL = {"vllm": "sglang"}  # both call FlashInfer's trtllm-gen MLA kernels; vllm has no kernel table of its own
INHERITED = {"bf16_kv_bf16": ("bf16_kv_bf16", "bf16_kv_fp8"), "bf16_kv_fp8": ("fp8_kv_fp8",)}  # sglang's key -> vllm's keys
FIGURES = {"rows": "n", "median": "median", "p90": "p90", "bias": "bias", "spearman": "spearman"}
PREFILL_SLOPE = (
    FitParameter("math_efficiency", 0.95, 0.2, 1.0),
    FitParameter("exp_efficiency", 3.0, 0.3, 20.0),  # far above 1: exponentials hidden behind the MMA
    FitParameter("droop", 0.05, 1e-3, 0.5),
)
DECODE_SLOPE = (
    "memory_efficiency",
    "key_seconds",
    "split_seconds",
    "partial_seconds",
    "wide_key_factor",
    "l2_bytes",
    "l2_efficiency",
)
SKIPPED = ("kv_factor", "token_exponent", "wide_token_seconds", "wave_share")  # not identifiable with one KV stream and head size
MLA_PREFILL = tuple(p for p in PREFILL if p.name not in SKIPPED)
MLA_DECODE = tuple(FitParameter(p.name, 1.0, 0.5, 5.0) if p.name == "wide_block_factor" else p for p in DECODE)


def read_rows(tables: MeasuredTables, kind: str) -> AttentionRows | None:
    """Rows of ``context`` or ``generation`` MLA kernels; None where there is no table."""
    stack = SAME_KERNEL.get(tables.stack, tables.stack)
    frame = tables.read("mla", f"{kind}_mla", stack=stack)
    if frame is None:
        return None
    source = tables.source("mla", f"{kind}_mla", stack=stack)
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
    widths = (LATENT, NOPE, ROPE, VALUE)
    return mla_prefill_shape(c["batch"], c["new_tokens"], c["context"] - 1.0, c["heads"], *widths, str(rows.format[0]))


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
            tried.append((fit_prefill(part, *prefill_work(part), tables.hardware, fixed, parameters=MLA_PREFILL), fixed))
        found.append(entry(tables, "mla_prefill", name, rows, *min(tried, key=lambda t: t[0].cost)))
    for rows, name in by_format(read_rows(tables, "generation"), prefill=False):
        part = rows.take(~rows.held)
        fixed = {"block_tile": BLOCK_TILE, "wide_group": WIDE_HEADS}
        numbers = fit_decode(part, *decode_work(part), tables.hardware, fixed, parameters=MLA_DECODE)
        found.append(entry(tables, "mla_decode", name, rows, numbers, fixed))
    if tables.stack in SAME_KERNEL:
        return inherited(tables, found)
    return found


def inherited(tables: MeasuredTables, found: list[FamilyResult]) -> list[FamilyResult]:
    """Another stack's kernel numbers under this stack's keys, with their error on this stack's own modules."""
    other = SAME_KERNEL[tables.stack]
    note = f"numbers of {other}'s kernel, which {tables.stack} calls too; held-out error: what the context adds to a module"
    renamed = []
    for old in found:
        names = INHERITED[old.format] if old.family == "mla_prefill" else (old.format,)
        renamed += [replace(old, format=name, status="inferred", note=note, held_out={}) for name in names]
    renamed = [refitted(tables, new) for new in renamed]
    rows = {(row.family, row.format): row.as_dict() for row in validate(tables, family_profile(tables, renamed))}
    checked = []
    for new in renamed:
        row = rows.get((new.family, new.format))
        if row:  # without a module row the stack runs another kernel here: no numbers rather than wrong ones
            checked.append(replace(new, held_out={name: row[source] for name, source in FIGURES.items()}))
    return checked


def refitted(tables: MeasuredTables, start: FamilyResult) -> FamilyResult:
    """The slope of this stack's own kernel or version, fitted on what the context adds to its modules."""
    prefill = start.family == "mla_prefill"
    slope = PREFILL_SLOPE if prefill else tuple(p for p in MLA_DECODE if p.name in DECODE_SLOPE)
    pairs = module_rows(tables, "context" if prefill else "generation")
    if pairs is None:
        return start
    part = pairs.take((module_keys(pairs, prefill=prefill) == start.format) & ~pairs.longer.held)
    if part.longer.seconds.size < 4 * len(slope):
        return start
    work = prefill_work if prefill else decode_work
    shapes, d = [work(rows)[0] for rows in (part.longer, part.shorter)], work(part.longer)[1]
    hardware, kv_format = tables.hardware, str(part.longer.kv_format[0])

    def model(values: dict[str, float]) -> FloatArray:
        numbers = {**start.parameters, **values}
        if prefill:
            p, math = PrefillParameters(**numbers), str(part.longer.format[0])
            both = [price_prefill(shape, p, hardware, math, d, clamp=False).seconds for shape in shapes]
        else:
            q = DecodeParameters(**numbers)
            both = [price_decode(shape, q, hardware, kv_format, d, warm_l2=True)[0] for shape in shapes]
        return part.shorter.seconds + both[0] - both[1]

    starts = [replace(p, start=float(start.parameters[p.name])) if not prefill else p for p in slope]
    fit = fit_log_time(model, starts, part.longer.seconds, scale=SCALE)
    numbers = {name: rounded(value) for name, value in fit.values.items()}
    note = f"{start.note}; {', '.join(numbers)} fitted on modules of {tables.stack}"
    figures = errors(model(fit.values), part.longer.seconds)
    return replace(start, parameters={**start.parameters, **numbers}, note=note, fit=figures)


def module_keys(pairs: ModuleRows, *, prefill: bool) -> NDArray[Any]:
    """The profile key of each module row."""
    kv = pairs.longer.kv_format
    return np.char.add(np.char.add(pairs.longer.format, "_kv_"), kv) if prefill else kv


def family_profile(tables: MeasuredTables, results: list[FamilyResult]) -> KernelProfile:
    """A profile of these results alone."""
    from ..profile import parse_profile

    table: dict[str, Any] = {"name": "calibration", "hardware": tables.hardware.name}
    for r in results:
        table.setdefault(r.family, {})[r.format] = {"status": r.status, "source": r.source, "parameters": dict(r.parameters)}
    return parse_profile(table, "calibration")


def entry(
    tables: MeasuredTables, family: str, name: str, rows: AttentionRows, found: LogFit, fixed: dict[str, float]
) -> FamilyResult:
    """A family's entry with its errors, priced as measured."""
    parameters = {key: rounded(value) for key, value in found.values.items()} | fixed
    spread = {key: rounded(value) for key, value in found.standard_errors.items()}
    bare = FamilyResult(family, name, parameters, rows.source)
    predicted = predict(rows, family_profile(tables, [bare]), prefill=family == "mla_prefill")
    return result(family, name, rows, predicted, parameters, spread, "")


def predict(rows: AttentionRows, profile: KernelProfile, *, prefill: bool) -> FloatArray:
    """Seconds of the rows of one format, as measured (warm L2)."""
    c, kv_format = rows.columns, str(rows.kv_format[0])
    if not prefill:
        sizes: dict[str, Any] = {"heads": c["heads"], "kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
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


def work_bars(rows: AttentionRows, hardware: Hardware, *, prefill: bool) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """FLOP, exponentials, bytes and tensor peak of the rows of one format."""
    if prefill:
        work, _ = prefill_work(rows)
        scores = work.sequences * work.heads * causal_scores(work.new_tokens, work.past_tokens)
        moved = work.query_bytes + work.new_kv_bytes + work.past_kv_bytes
        return scores * work.flop_per_score, scores, moved, hardware.peak_flop_per_second(math_of(str(rows.format[0])))
    shape, _ = decode_work(rows)
    pairs = shape.sequences * shape.keys
    peak = hardware.peak_flop_per_second(math_of(str(rows.kv_format[0])))
    return pairs * shape.flop, pairs * shape.scores, pairs * shape.kv_bytes, peak


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Error on held-out head counts (or on a stack's modules, where it has no kernel table) beside the two bars."""
    found = []
    for kind, prefill in (("context", True), ("generation", False)):
        family = "mla_prefill" if prefill else "mla_decode"
        if tables.stack in SAME_KERNEL:
            found += validate_modules(tables, profile, kind, family)
            continue
        for rows, name in by_format(read_rows(tables, kind), prefill=prefill):
            flop, scores, moved, peak = work_bars(rows, profile.hardware, prefill=prefill)
            roofline, three = bars(flop, scores, moved, rows, profile.hardware, peak)
            predicted = predict(rows, profile, prefill=prefill)
            row = validation_row(tables, family, name, rows, rows.held, predicted, roofline, three)
            found += [row] if row else []
    return found


def validate_modules(tables: MeasuredTables, profile: KernelProfile, kind: str, family: str) -> list[ValidationRow]:
    """Error of module times predicted as the shorter row plus what the kernel adds, on held-out head counts."""
    found: list[ValidationRow] = []
    pairs = module_rows(tables, kind)
    if pairs is None:
        return found
    prefill, hardware = kind == "context", profile.hardware
    key = module_keys(pairs, prefill=prefill)
    for name in np.unique(key):
        part = pairs.take(key == name)
        longer, base = part.longer, part.shorter.seconds
        added = predict(longer, profile, prefill=prefill) - predict(part.shorter, profile, prefill=prefill)
        (f1, e1, m1, peak), (f0, e0, m0, _) = (work_bars(rows, hardware, prefill=prefill) for rows in (longer, part.shorter))
        bare, three = bars(f1 - f0, e1 - e0, m1 - m0, replace(longer, seconds=longer.seconds - base), hardware, peak)
        row = validation_row(tables, family, str(name), longer, longer.held, base + added, base + bare, base + three)
        found += [replace(row, note=f"modules, {row.note}")] if row else []
    return found
