"""Error figures of predictions against measurements, and the two bars every family is held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .fit import FitParameter, fit_log_time

FloatArray = NDArray[np.float64]


def errors(predicted: FloatArray, measured: FloatArray) -> dict[str, float]:
    """``rows median p90 bias spearman`` of predicted against measured seconds (relative errors as fractions)."""
    from scipy.stats import spearmanr

    relative = predicted / measured - 1.0
    size = np.abs(relative)
    rank = float(spearmanr(predicted, measured).statistic) if measured.size > 2 else float("nan")
    return {
        "rows": int(measured.size),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.median(relative)),
        "spearman": rank,
    }


def three_number_prediction(
    math_seconds: FloatArray, memory_seconds: FloatArray, measured: FloatArray, fit_rows: NDArray[np.bool_]
) -> FloatArray:
    """t0 + max(math/e_c, memory/e_b) with the three numbers fitted on ``fit_rows``, predicted on all rows, s.

    Args:
        math_seconds: at the datasheet peak, s.
        memory_seconds: at the datasheet bandwidth, s.
        measured: s.
        fit_rows: rows the fit may see.
    """

    def model(rows: NDArray[np.bool_] | slice, p: dict[str, float]) -> FloatArray:
        return np.asarray(p["t0"] + np.maximum(math_seconds[rows] / p["compute"], memory_seconds[rows] / p["bandwidth"]))

    parameters = (
        FitParameter("t0", float(np.quantile(measured, 0.05)), 1e-8, 1.0),
        FitParameter("compute", 0.6, 1e-3, 10.0),
        FitParameter("bandwidth", 0.7, 1e-3, 10.0),
    )
    found = fit_log_time(lambda p: model(fit_rows, p), parameters, measured[fit_rows])
    return model(slice(None), found.values)
