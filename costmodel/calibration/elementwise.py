"""Element-wise kernels: fixed time and bandwidth share, from the measured quantise kernels.

Two tables of the same shape (M tokens x K values, BF16 in): ``scale_matrix`` reads and writes once, as norms, residuals
and activations do; ``computescale`` finds the largest absolute value, the extra kernel of a dynamic per-tensor scale that
a checkpoint with static scales does not run. Form::

    T = launch + bytes / (bandwidth · efficiency)

SGLang fuses both into one slow kernel (all ``computescale`` rows are zero), so that its norms take the TensorRT-LLM
numbers; no dynamic-scale kernel is subtracted there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..profile import KernelProfile
from ..step_options import elementwise_parameters
from .fit import FitParameter, fit_log_time
from .interface import FamilyResult, ValidationRow
from .report import errors
from .split import held_out
from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
# table → (format name in the profile, bytes per value: BF16 read, FP8 written)
_TABLES = {"scale_matrix": ("default", 3.0), "computescale": ("dynamic_scale", 2.0)}
_BORROWED = {"sglang": "trtllm"}


def _rows(tables: MeasuredTables, name: str) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], str, str] | None:
    """Bytes, seconds, held-out mask, source and status of one table."""
    stack = _BORROWED.get(tables.stack, tables.stack)
    if stack != tables.stack and name == "computescale":
        return None
    frame = tables.read("quantize", name, stack=stack)
    if frame is None:
        return None
    frame = frame[(frame["latency"] > 0) & (frame["quant_dtype"] == "fp8")]
    m, k, latency = (frame[c].to_numpy(dtype=np.float64) for c in ("m", "k", "latency"))
    status = "fitted" if stack == tables.stack else "inferred"
    return m * k * _TABLES[name][1], latency * 1e-3, held_out(k), tables.source("quantize", name, stack=stack), status


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Launch and efficiency of both kernels."""
    found = []
    for name, (format_name, _) in _TABLES.items():
        rows = _rows(tables, name)
        if rows is None:
            continue
        size, seconds, held, source, status = rows
        rate = tables.hardware.memory_bytes_per_second

        def model(p: dict[str, float], size: FloatArray = size, held: NDArray[np.bool_] = held, rate: float = rate) -> FloatArray:
            return np.asarray(p["launch_seconds"] + size[~held] / (rate * p["memory_efficiency"]))

        parameters = (FitParameter("launch_seconds", 2e-6, 1e-7, 1e-4), FitParameter("memory_efficiency", 0.6, 0.05, 1.0))
        done = fit_log_time(model, parameters, seconds[~held])
        predicted = done.values["launch_seconds"] + size / (rate * done.values["memory_efficiency"])
        found.append(
            FamilyResult(
                "elementwise", format_name, done.values, f"fitted to {source}: {int((~held).sum())} rows, whole K held out",
                standard_errors=done.standard_errors, fit=errors(predicted[~held], seconds[~held]),
                held_out=errors(predicted[held], seconds[held]), status=status,
                note="another stack's kernel stands in" if status == "inferred" else "",
            )
        )  # fmt: skip
    return found


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Held-out K of both kernels against the profile."""
    found = []
    for name, (format_name, _) in _TABLES.items():
        rows = _rows(tables, name)
        if rows is None:
            continue
        size, seconds, held, source, status = rows
        rate = tables.hardware.memory_bytes_per_second
        p = elementwise_parameters(profile, format_name)
        predicted = p.launch_seconds + size / (rate * p.memory_efficiency)
        figures, bar = errors(predicted[held], seconds[held]), errors(size[held] / rate, seconds[held])
        found.append(
            ValidationRow(
                "elementwise", format_name, tables.stack, int(figures["rows"]), figures["median"], figures["p90"],
                figures["bias"], figures["spearman"], bar["median"], float("nan"), hardware=tables.hardware.name,
                note=f"{source}" if status == "inferred" else "",
            )
        )  # fmt: skip
    return found
