"""Fixed hold-out of whole shapes: a hash of the shape decides, never the row, the seed or the order."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HELD_OUT_SIZES = (3072, 5120, 10240)  # every GEMM site with one of these is held out (issue of the calibration)


def held_out(*keys: ArrayLike, share: float = 0.4) -> NDArray[np.bool_]:
    """True for the shapes the fit must not see.

    Args:
        keys: whole-number arrays that name a shape, e.g. (n, k) or (heads, head size, KV heads); broadcast.
        share: share of shapes held out.

    The hash is splitmix64 (Steele, Lea, Flood 2014) folded over the keys: the same on every machine.
    """
    state = np.uint64(0x9E3779B97F4A7C15)
    arrays = np.broadcast_arrays(*(np.asarray(key, dtype=np.int64) for key in keys))
    mixed = np.full(arrays[0].shape, state, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for array in arrays:
            mixed = _mix(mixed ^ array.astype(np.uint64))
    return np.asarray(mixed >> np.uint64(11), dtype=np.float64) / 2.0**53 < share


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def gemm_held_out(n: ArrayLike, k: ArrayLike) -> NDArray[np.bool_]:
    """Held-out (n, k) sites: 40 % by hash, and every site with n or k in :data:`HELD_OUT_SIZES`."""
    return held_out(n, k) | np.isin(n, HELD_OUT_SIZES) | np.isin(k, HELD_OUT_SIZES)
