"""Robust fits on log time: soft-L1 residuals, bounded positive parameters, standard errors from the Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValueError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitParameter:
    """One positive number to fit, searched in log space.

    Attributes:
        name: name of the number.
        start: starting value.
        low: lower bound, > 0.
        high: upper bound.
    """

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LogFit:
    """Fitted numbers by name, their standard errors, and the final cost (sum of soft-L1 losses over rows)."""

    values: dict[str, float]
    standard_errors: dict[str, float]
    cost: float


def fit_log_time(
    model: Callable[[dict[str, float]], FloatArray],
    parameters: Sequence[FitParameter],
    measured: FloatArray,
    *,
    scale: float = 0.1,
    weights: FloatArray | None = None,
    max_evaluations: int = 60,
) -> LogFit:
    """Minimise sum of soft-L1(log(model/measured)/scale) over bounded positive parameters.

    Args:
        model: parameters by name -> predicted seconds, same shape as ``measured``.
        parameters: what to fit.
        measured: seconds, > 0.
        scale: residual (in log) at which the loss turns from square to linear.
        weights: weight of each row.
        max_evaluations: of residual vectors, Jacobian not counted.

    Raises:
        InvalidValueError: fewer rows than parameters.
    """
    from scipy.optimize import least_squares

    if measured.size < len(parameters):
        raise InvalidValueError(
            f"a fit of {len(parameters)} parameters needs at least as many rows, got {measured.size}; measure more shapes"
        )
    low, high = (np.log([getattr(p, side) for p in parameters]) for side in ("low", "high"))
    start = np.clip(np.log([p.start for p in parameters]), low + 1e-6, high - 1e-6)
    target = np.log(measured)
    root = np.sqrt(weights) if weights is not None else 1.0

    def values(x: FloatArray) -> dict[str, float]:
        return {p.name: float(v) for p, v in zip(parameters, np.exp(x), strict=True)}

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray((np.log(model(values(x))) - target) * root)

    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=scale, diff_step=1e-3, max_nfev=max_evaluations, x_scale=1.0
    )
    fitted = values(found.x)
    spread = np.median(np.abs(residuals(found.x))) * 1.4826  # robust sigma of the log residuals
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * spread**2
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return LogFit(fitted, {p.name: float(e * fitted[p.name]) for p, e in zip(parameters, errors, strict=True)}, float(found.cost))
