"""Fits of the attention kernels' numbers: start values and physical bounds, one fit a head size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attention_decode import DecodeParameters, DecodeShape, gqa_decode_shape, price_decode
from ..attention_prefill import PrefillParameters, PrefillShape, gqa_shape, price_prefill
from ..errors import InvalidValueError
from ..hardware import Hardware
from .attention_rows import AttentionRows
from .fit import FitParameter, LogFit, fit_log_time
from .interface import FamilyResult
from .report import errors, three_number_prediction

FloatArray = NDArray[np.float64]
SCALE = 0.05  # log residual at which the loss turns linear: the repeat scatter of the tables (0.5 to 1.5 %, tails 5 to 9 %)
MINIMUM_ROWS = 60  # about four a number
QUERY_TILE, WIDE_GROUP, WIDE_TOKEN = 128.0, 16.0, 512.0
# MMA rows; query heads of the narrow decode block; values of a token's row at which appending gets slow: steps in the tables
# Bounds keep the laws: shares of a peak <= 1 (exponentials: up to 3 times the exp2 unit, FMA units help), times > 0.
PREFILL = (
    FitParameter("launch_seconds", 1e-5, 1e-6, 4e-5),
    FitParameter("math_efficiency", 0.8, 0.2, 1.0),
    FitParameter("exp_efficiency", 1.4, 0.3, 3.0),
    FitParameter("query_factor", 3.0, 0.01, 30.0),
    FitParameter("kv_factor", 1.5, 0.01, 30.0),
    FitParameter("token_seconds", 1e-10, 1e-12, 1e-8),
    FitParameter("token_exponent", 0.8, 0.3, 1.0),
    FitParameter("wide_token_seconds", 1e-10, 1e-12, 2e-8),
    FitParameter("tile_seconds", 1.5e-6, 1e-8, 2e-5),
    FitParameter("wave_share", 0.5, 1e-3, 1.0),
    FitParameter("tail", 1.0, 0.01, 5.0),
    FitParameter("wave", 2.0, 0.01, 5.0),
    FitParameter("droop", 0.15, 1e-3, 0.5),
    FitParameter("droop_seconds", 2e-2, 1e-2, 1e-1),
)
DECODE = (
    FitParameter("launch_seconds", 9e-6, 1e-6, 3e-5),
    FitParameter("memory_efficiency", 0.9, 0.3, 0.98),
    FitParameter("block_seconds", 1.3e-6, 1e-8, 2e-5),
    FitParameter("idle_blocks", 0.6, 0.01, 2.0),
    FitParameter("free_keys", 200.0, 1.0, 400.0),
    FitParameter("key_seconds", 1e-9, 1e-11, 1e-7),
    FitParameter("split_seconds", 2e-7, 1e-9, 5e-6),
    FitParameter("partial_seconds", 1e-7, 1e-10, 1e-5),
    FitParameter("activation_factor", 2.0, 0.01, 30.0),
    FitParameter("wide_block_factor", 1.6, 1.0, 5.0),
    FitParameter("wide_key_factor", 1.2, 1.0, 6.0),
    FitParameter("l2_bytes", 8.3e7, 2e7, 1.2e8),
    FitParameter("l2_efficiency", 3.0, 1.0, 20.0),
)


def prefill_shape(rows: AttentionRows) -> tuple[PrefillShape, FloatArray]:
    """Work of the rows of one (format, cache format)."""
    c = rows.columns
    sizes = (c["heads"], c["kv_heads"], c["head_dim"], c["window"])
    return gqa_shape(c["batch"], c["new_tokens"], c["context"] - 1.0, *sizes, str(rows.format[0]), str(rows.kv_format[0]))


def decode_shape(rows: AttentionRows) -> tuple[DecodeShape, FloatArray]:
    """Work of the rows of one cache format."""
    c = rows.columns
    sizes = (c["heads"], c["kv_heads"], c["head_dim"], c["window"])
    return gqa_decode_shape(c["batch"], c["context"], *sizes, str(rows.kv_format[0]), WIDE_GROUP)


def fit_prefill(
    rows: AttentionRows,
    shape: PrefillShape,
    head_dim: FloatArray,
    hardware: Hardware,
    fixed: Mapping[str, Any],
    *,
    parameters: tuple[FitParameter, ...] = PREFILL,
) -> LogFit:
    """Numbers of one head size."""
    number_format = str(rows.format[0])

    def model(values: dict[str, float]) -> FloatArray:
        p = PrefillParameters(**{**fixed, **values})
        return price_prefill(shape, p, hardware, number_format, head_dim, clamp=False).seconds

    return fit_log_time(model, parameters, rows.seconds, scale=SCALE)


def fit_decode(
    rows: AttentionRows,
    shape: DecodeShape,
    head_dim: FloatArray,
    hardware: Hardware,
    fixed: Mapping[str, Any],
    *,
    parameters: tuple[FitParameter, ...] = DECODE,
) -> LogFit:
    """Numbers of one head size with the KV cache warm in L2 where it fits, as measured."""
    kv_format = str(rows.kv_format[0])

    def model(values: dict[str, float]) -> FloatArray:
        return price_decode(shape, DecodeParameters(**{**fixed, **values}), hardware, kv_format, head_dim, warm_l2=True)[0]

    return fit_log_time(model, parameters, rows.seconds, scale=SCALE)


def per_head_size(
    rows: AttentionRows, fit_one: Callable[[AttentionRows, Mapping[str, float]], LogFit], *choices: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit each head size on its fit rows; parameters and standard errors as lists over ``head_sizes``.

    Args:
        rows: rows of one format, held-out ones included.
        fit_one: (fit rows of one head size, fixed numbers) -> fit.
        choices: sets of fixed numbers to try; the one with the lowest loss over all head sizes is kept.

    Raises:
        InvalidValueError: no head size has enough rows.
    """
    size = rows.columns["head_dim"]
    kept = [float(v) for v in np.unique(size) if int(((size == v) & ~rows.held).sum()) >= MINIMUM_ROWS]
    if not kept:
        raise InvalidValueError(f"{rows.source}: a fit needs at least {MINIMUM_ROWS} rows of one head size; measure more shapes")
    tried = []
    for fixed in choices:
        found = [fit_one(rows.take((size == value) & ~rows.held), fixed) for value in kept]
        tried.append((sum(fit.cost for fit in found), found, fixed))
    _, found, fixed = min(tried, key=lambda entry: entry[0])
    parameters: dict[str, Any] = {"head_sizes": kept} if len(kept) > 1 else {}
    spread: dict[str, Any] = {}
    for name in found[0].values:
        for target, numbers in ((parameters, "values"), (spread, "standard_errors")):
            values = [rounded(getattr(fit, numbers)[name]) for fit in found]
            target[name] = values if len(kept) > 1 else values[0]
    return parameters | dict(fixed), spread


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def result(
    family: str,
    name: str,
    rows: AttentionRows,
    predicted: FloatArray,
    parameters: Mapping[str, Any],
    spread: Mapping[str, Any],
    note: str,
) -> FamilyResult:
    """A family's entry: errors on fitted and held-out rows, validity range, what was left out."""
    valid = {key: (float(v[~rows.held].min()), float(v[~rows.held].max())) for key, v in rows.columns.items()}
    return FamilyResult(
        family=family,
        format=name,
        parameters=parameters,
        source=rows.source,
        standard_errors=spread,
        fit=errors(predicted[~rows.held], rows.seconds[~rows.held]),
        held_out=errors(predicted[rows.held], rows.seconds[rows.held]),
        valid=valid,
        note="; ".join(part for part in (note, rows.describe_excluded()) if part),
    )


def bars(
    flop: FloatArray, scores: FloatArray, moved: FloatArray, rows: AttentionRows, hardware: Hardware, peak: float
) -> tuple[FloatArray, FloatArray]:
    """The two bars on the same rows: pure roofline, and three numbers fitted on the fit rows.

    Args:
        flop: floating-point operations.
        scores: exponentials.
        moved: bytes.
        rows: measured rows.
        hardware: datasheet.
        peak: tensor peak of the math, FLOP/s.
    """
    math = np.maximum(flop / peak, scores / hardware.exp2_per_second)
    memory = moved / hardware.memory_bytes_per_second
    return np.maximum(math, memory), three_number_prediction(math, memory, rows.seconds, ~rows.held)
