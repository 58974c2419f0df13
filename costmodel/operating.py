"""Operating points from step times: what a user rate allows, the frontier, its area. Arrays only, no kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import number, numbers, whole
from .errors import InvalidValueError, shown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
_MAX_RATES = 1_000_000


def best_at_rates(
    itl_seconds: FloatArray,
    concurrency: FloatArray,
    limit: FloatArray,
    gpus: FloatArray,
    rates: FloatArray,
    token_seconds: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Best concurrency at which every user still gets each rate, and its tokens/s/GPU, per layout.

    Between grid points the step time is linear in the concurrency, so that the throughput is continuous in the design::

        c* = max {c <= limit : ITL(c) <= 1 / rate},   throughput = max over c <= c* of c / (ITL(c) * GPUs)

    On one linear piece c / ITL(c) has its maximum at an end, so the grid points below c* and c* itself are enough.
    ITL(c) is made non-decreasing first (a small batch may take what a larger one takes); below the first grid point
    nothing is offered.

    Args:
        itl_seconds: step times, ``(A, P, C)``.
        concurrency: rising grid, ``(C,)``.
        limit: sequences that memory holds, ``(A, P)``; below the first grid point the layout is out.
        gpus: GPUs of one replica, ``(P,)``.
        rates: tokens/s/user, ``(R,)``, positive.
        token_seconds: time a sequence holds its place per output token, ``(A, P, C)``, where that is more than ITL
            (its own prefill, aggregated serving); it replaces ITL in the throughput.

    Returns:
        ``(concurrency, tokens/s/GPU)``, each ``(A, P, R)``; 0 where the rate is out of reach.
    """
    itl = np.maximum.accumulate(itl_seconds, axis=2)
    count = len(concurrency)
    top = np.clip(np.searchsorted(concurrency, limit.reshape(-1), side="right").reshape(limit.shape) - 1, 0, count - 1)
    limit = np.minimum(limit, concurrency[-1])
    fits = limit >= concurrency[0]
    at_limit = _interpolate(concurrency, itl, top, limit)
    held = None if token_seconds is None else np.maximum.accumulate(token_seconds, axis=2)
    held_at_limit = at_limit if held is None else _interpolate(concurrency, held, top, limit)
    per_grid = concurrency / (itl if held is None else held)
    running = np.maximum.accumulate(per_grid, axis=2)  # best throughput up to each grid point, and where it is
    where = np.maximum.accumulate(np.where(per_grid >= running, np.arange(count), 0), axis=2)
    shape = (*limit.shape, len(rates))
    best, throughput = np.zeros(shape), np.zeros(shape)
    for index, rate in enumerate(rates):
        bound = 1.0 / rate
        reached = np.count_nonzero(itl <= bound, axis=2)
        low = np.clip(reached - 1, 0, count - 1)
        high = np.minimum(low + 1, count - 1)
        t_low, t_high = _take(itl, low), _take(itl, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(high > low, (bound - t_low) / (t_high - t_low), 0.0)
        found = concurrency[low] + np.clip(np.nan_to_num(share), 0.0, 1.0) * (concurrency[high] - concurrency[low])
        capped = found >= limit
        chosen = np.where(capped, limit, found)
        seconds = np.where(reached < count, bound, t_low) if held is None else _interpolate(concurrency, held, low, found)
        seconds = np.where(capped, held_at_limit, seconds)
        ok = fits & (reached > 0) & (np.where(capped, at_limit, 0.0) <= bound)
        value, below = chosen / seconds, np.minimum(low, top)
        earlier = _take(running, below)
        better = earlier > value * (1.0 + 1e-12)
        chosen = np.where(better, concurrency[_take_index(where, below)], chosen)
        best[:, :, index] = np.where(ok, chosen, 0.0)
        throughput[:, :, index] = np.where(ok, np.where(better, earlier, value) / gpus, 0.0)
    return best, throughput


def _take(values: FloatArray, index: IntArray) -> FloatArray:
    return np.take_along_axis(values, index[:, :, None], axis=2)[:, :, 0]


def _take_index(values: IntArray, index: IntArray) -> IntArray:
    return np.take_along_axis(values, index[:, :, None], axis=2)[:, :, 0]


def _interpolate(grid: FloatArray, values: FloatArray, low: IntArray, at: FloatArray) -> FloatArray:
    """Linear interpolation of ``values`` (A, P, C) at ``at`` (A, P), whose left grid neighbour is ``low``."""
    high = np.minimum(low + 1, len(grid) - 1)
    width = np.where(high > low, grid[high] - grid[low], 1.0)
    share = np.clip((at - grid[low]) / width, 0.0, 1.0)
    return (1.0 - share) * _take(values, low) + share * _take(values, high)


def step_seconds_at(itl_seconds: FloatArray, concurrency: FloatArray, at: FloatArray) -> FloatArray:
    """Step time at ``at`` sequences, ``(A, P)``, linear between the grid points of :func:`best_at_rates`."""
    itl = np.maximum.accumulate(itl_seconds, axis=2)
    low = np.clip(np.searchsorted(concurrency, at.reshape(-1), side="right").reshape(at.shape) - 1, 0, len(concurrency) - 1)
    return _interpolate(concurrency, itl, low, np.minimum(at, concurrency[-1]))


def upper_envelope(throughput: FloatArray, user_rate: FloatArray, usable: BoolArray) -> IntArray:
    """Indices of the non-dominated points, by rising user rate (ties: the first point stays).

    Args:
        throughput: tokens/s/GPU, ``(N,)``.
        user_rate: tokens/s/user, ``(N,)``.
        usable: points that count, ``(N,)``.
    """
    where = np.flatnonzero(usable)
    order = where[np.lexsort((where, -throughput[where], -user_rate[where]))]
    best = np.maximum.accumulate(throughput[order])
    first = np.ones(len(order), dtype=bool)
    first[1:] = throughput[order][1:] > best[:-1]
    return np.asarray(order[first][::-1])


def frontier_area(throughput: ArrayLike, rates: ArrayLike, axis: str = "log") -> FloatArray:
    """Area under tokens/s/GPU against tokens/s/user between the first and the last rate.

    ``log``: integral over ln(rate), so that doubling interactivity counts alike everywhere; ``linear``: integral over
    the rate. Trapezoids; divide by ln(r_max/r_min) or r_max - r_min for the mean throughput.

    Args:
        throughput: tokens/s/GPU, ``(..., R)``.
        rates: rising tokens/s/user, ``(R,)``.
        axis: ``log`` or ``linear``.

    Returns:
        area, shape ``(...)``: tokens/s/GPU (log) or tokens²/s²/GPU/user (linear).

    Raises:
        InvalidValueError: an unknown axis, fewer than two rising rates, or a throughput of another length.
    """
    if axis not in ("log", "linear"):
        raise InvalidValueError(f"axis must be log or linear, got {shown(axis)}")
    y, x = numbers("throughput", throughput, "finite and >= 0"), check_rates(rates)
    if len(x) < 2 or not np.all(np.diff(x) > 0):
        raise InvalidValueError(f"rates must be at least two, rising, got {shown(x.tolist())}")
    if not y.ndim or y.shape[-1] != len(x):
        raise InvalidValueError(f"throughput must have one entry per rate, shape (..., {len(x)}), got {y.shape}")
    return np.asarray(np.trapezoid(y, np.log(x) if axis == "log" else x, axis=-1))


def check_rates(rates: ArrayLike | Sequence[float]) -> FloatArray:
    """User rates as a float array.

    Raises:
        InvalidValueError: one is not positive and finite, or there is none.
    """
    values = np.atleast_1d(numbers("rates", rates, "positive tokens/s/user", above=True))
    if values.ndim != 1 or not values.size:
        raise InvalidValueError(f"rates must be positive tokens/s/user, got {shown(rates)}; give a flat list")
    return values


def log_rates(low: float, high: float, count: int) -> FloatArray:
    """``count`` user rates, evenly spaced in the logarithm, both ends included, tokens/s/user, shape ``(count,)``.

    Raises:
        InvalidValueError: the bounds do not rise from above 0, or ``count`` is below 2.
    """
    low, high = (number(name, x, "a positive rate", above=True) for name, x in (("low", low), ("high", high)))
    if not low < high:
        raise InvalidValueError(f"log_rates needs 0 < low < high, got low={low:g}, high={high:g}; swap them")
    return np.geomspace(low, high, whole("count", count, 2, _MAX_RATES))
