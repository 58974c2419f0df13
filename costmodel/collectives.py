"""Collectives between GPUs: all-reduce, all-gather, reduce-scatter, all-to-all, point to point.

The expert all-to-all (dispatch, combine) lives in :mod:`.expert_all_to_all` and is offered here as well.

References:
    [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
        Int. J. High Performance Computing Applications 19 (2005), section 4 (ring and recursive algorithms).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .expert_all_to_all import (
    dispatch_bytes_per_token,
    distinct_remote_ranks,
    moe_combine_cost,
    moe_combine_seconds,
    moe_dispatch_cost,
    moe_dispatch_seconds,
)
from .links import (
    Array,
    CollectiveCost,
    CollectiveParameters,
    Transfer,
    checked,
    collective_parameters,
    domains_of,
)
from .profile import KernelProfile, load_profile

__all__ = [
    "CollectiveCost",
    "CollectiveParameters",
    "all_gather_cost",
    "all_gather_seconds",
    "all_reduce_cost",
    "all_reduce_seconds",
    "all_to_all_cost",
    "all_to_all_seconds",
    "dispatch_bytes_per_token",
    "distinct_remote_ranks",
    "moe_combine_cost",
    "moe_combine_seconds",
    "moe_dispatch_cost",
    "moe_dispatch_seconds",
    "reduce_scatter_cost",
    "reduce_scatter_seconds",
    "send_seconds",
]


def _all_reduce(bytes: ArrayLike, ranks: ArrayLike, profile: KernelProfile) -> Transfer:
    size, n = checked(bytes, ranks, "bytes")
    inside, domains = domains_of(n, profile.hardware)
    ring = 2 * (inside - 1) / inside
    share = np.minimum(np.minimum(ring, inside - 1), 1.0)  # in-switch reduction sends every byte once
    up = np.where(domains > 1, ring, share)
    out = 2 * (domains - 1) / (domains * inside)
    return Transfer(size, n, up, out, collective_parameters(profile, "all_reduce", "default"), profile.hardware)


def _gather(total_bytes: ArrayLike, ranks: ArrayLike, operation: str, profile: KernelProfile) -> Transfer:
    size, n = checked(total_bytes, ranks, "total_bytes")
    inside, domains = domains_of(n, profile.hardware)
    up = (inside - 1) / inside
    out = (domains - 1) / (domains * inside)
    return Transfer(size, n, up, out, collective_parameters(profile, "collective", operation), profile.hardware)


def _all_to_all(bytes_per_gpu: ArrayLike, ranks: ArrayLike, profile: KernelProfile) -> Transfer:
    size, n = checked(bytes_per_gpu, ranks, "bytes_per_gpu")
    inside, _ = domains_of(n, profile.hardware)
    parameters = collective_parameters(profile, "collective", "all_to_all")
    return Transfer(size, n, (inside - 1) / n, (n - inside) / n, parameters, profile.hardware)


def all_reduce_cost(bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> CollectiveCost:
    """Cost of summing ``bytes`` over ``ranks`` GPUs.

    Ideal wire time is the fastest of ring and two-shot 2(n-1)/n S/B, one-shot (n-1) S/B and in-switch reduction
    S/B (each way, both directions at once) [1]. Beyond the scale-up domain: reduce-scatter inside, all-reduce of
    the shard across domains (ring, scale-out link), all-gather inside.

    Args:
        bytes: message size S, B, any shape; both broadcast.
        ranks: GPUs in the group, any shape; 1 costs nothing.
        profile: kernel profile or its name.

    Returns:
        seconds and their parts, broadcast shape.

    Raises:
        InvalidValueError: a negative size, a group below one rank, or shapes that do not broadcast.
        UnknownKeyError: no such profile.
    """
    return _all_reduce(bytes, ranks, load_profile(profile)).cost()


def all_gather_cost(total_bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> CollectiveCost:
    """Cost of an all-gather; ``total_bytes`` is what every GPU holds afterwards: (n-1)/n S/B [1].

    Shapes and errors as :func:`all_reduce_cost`.
    """
    return _gather(total_bytes, ranks, "all_gather", load_profile(profile)).cost()


def reduce_scatter_cost(total_bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> CollectiveCost:
    """Cost of a reduce-scatter; ``total_bytes`` is what every GPU holds before: (n-1)/n S/B [1].

    Shapes and errors as :func:`all_reduce_cost`.
    """
    return _gather(total_bytes, ranks, "reduce_scatter", load_profile(profile)).cost()


def all_to_all_cost(bytes_per_gpu: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> CollectiveCost:
    """Cost of an even all-to-all: (n-1)/n S/B [1]. Shapes and errors as :func:`all_reduce_cost`.

    Args:
        bytes_per_gpu: bytes each GPU holds for the exchange, its own 1/n included, B; (n-1)/n of them travel.
        ranks: GPUs in the group.
        profile: kernel profile or its name.
    """
    return _all_to_all(bytes_per_gpu, ranks, load_profile(profile)).cost()


def all_reduce_seconds(bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> Array:
    """Seconds of :func:`all_reduce_cost`, broadcast shape; the same arguments and errors."""
    return _all_reduce(bytes, ranks, load_profile(profile)).seconds()


def all_gather_seconds(total_bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> Array:
    """Seconds of :func:`all_gather_cost`, broadcast shape; the same arguments and errors."""
    return _gather(total_bytes, ranks, "all_gather", load_profile(profile)).seconds()


def reduce_scatter_seconds(total_bytes: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> Array:
    """Seconds of :func:`reduce_scatter_cost`, broadcast shape; the same arguments and errors."""
    return _gather(total_bytes, ranks, "reduce_scatter", load_profile(profile)).seconds()


def all_to_all_seconds(bytes_per_gpu: ArrayLike, ranks: ArrayLike, *, profile: str | KernelProfile) -> Array:
    """Seconds of :func:`all_to_all_cost`, broadcast shape; the same arguments and errors."""
    return _all_to_all(bytes_per_gpu, ranks, load_profile(profile)).seconds()


def send_seconds(bytes: ArrayLike, *, scale_out: bool = False, profile: str | KernelProfile) -> Array:
    """Seconds to send ``bytes`` from one GPU to another: latency + bytes/link.

    Args:
        bytes: message size, B, any shape.
        scale_out: over the scale-out link instead of the scale-up link.
        profile: kernel profile or its name; the latency of its ``collective.send`` holds on both links, its efficiency
            inside the domain.

    Raises:
        InvalidValueError: a negative size.
        UnknownKeyError: no such profile.
    """
    profile = load_profile(profile)
    size, two = checked(bytes, 2, "bytes")
    near, far = (np.asarray(float(scale_out == out)) for out in (False, True))
    return Transfer(size, two, near, far, collective_parameters(profile, "collective", "send"), profile.hardware).seconds()
