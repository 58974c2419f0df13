"""Expert all-to-all: tokens travel to the ranks of their experts (dispatch) and back (combine).

A token is sent once per *distinct* remote rank that holds one of its experts. Under uniform routing the expected
number of copies is [1]

    (EP - 1) (1 - (1 - 1/EP)^k)                                                                        (1)

References:
    [1] DeepSeek-V3 technical report (arXiv 2412.19437), section 3.2.2: one copy per node or rank, counted here by
        the occupancy of EP ranks by k independent choices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .errors import InvalidValueError
from .formats import get_format
from .links import Array, CollectiveCost, collective_parameters, price
from .moe_load import imbalance_factor
from .profile import KernelProfile, load_profile


def distinct_remote_ranks(ep: ArrayLike, top_k: ArrayLike) -> Array:
    """Expected distinct remote ranks per token, equation (1): EP8, k=8 4.59; EP64, k=8 7.46."""
    ep, k = np.asarray(ep, dtype=np.float64), np.asarray(top_k, dtype=np.float64)
    if ep.size and not ep.min() >= 1:
        raise InvalidValueError(f"ep must be >= 1, got {ep.min()}")
    return np.asarray((ep - 1) * (1 - (1 - 1 / ep) ** k))


def dispatch_bytes_per_token(hidden_size: ArrayLike, format: str) -> Array:
    """Bytes of one token's activations on the wire, scales included (NVFP4, H = 7168: 4032 B)."""
    return np.asarray(np.asarray(hidden_size, dtype=np.float64) * get_format(format).activation_bytes)


def _exchange_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    top_k: ArrayLike,
    token_bytes: Array,
    load: str | float | Array,
    num_experts: ArrayLike,
    phase: str,
    kernel: str | None,
    profile: KernelProfile,
) -> CollectiveCost:
    tokens, n = np.asarray(tokens_per_gpu, dtype=np.float64), np.asarray(ep, dtype=np.float64)
    if tokens.size and not tokens.min() >= 0:
        raise InvalidValueError(f"tokens_per_gpu must be >= 0, got {tokens.min()}")
    factor = imbalance_factor(load, n, num_experts, top_k)
    hardware = profile.hardware
    inside = np.minimum(n, hardware.scale_up_gpus)
    copies = distinct_remote_ranks(n, top_k)
    with np.errstate(invalid="ignore", divide="ignore"):
        local = np.where(n > 1, (inside - 1) / (n - 1), 0.0)  # share of remote ranks inside the domain
    total = tokens * token_bytes * copies * factor
    operation = f"{phase}:{kernel}" if kernel else phase
    parameters = collective_parameters(profile, "all_to_all", operation)
    return price(total, n, total * local, total * (1 - local), parameters, hardware)


def moe_dispatch_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str,
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> CollectiveCost:
    """Cost of sending tokens to their experts' ranks.

    Args:
        tokens_per_gpu: tokens each GPU starts with, shape (...).
        ep: ranks of the expert-parallel group, shape (...); 1 costs nothing.
        hidden_size: H, shape (...).
        top_k: experts per token, shape (...).
        num_experts: routed experts, shape (...).
        format: activation format on the wire (``nvfp4``, ``fp8_block``, ``bf16``, ...).
        load: routing load, see :func:`~.moe_load.imbalance_factor`; the most loaded rank receives the most.
        kernel: all-to-all kernel of the profile (``deepep_ll``, ...); ``None`` takes the stack's default.
        profile: kernel profile or its name.
    """
    profile = load_profile(profile)
    token_bytes = dispatch_bytes_per_token(hidden_size, format)
    return _exchange_cost(tokens_per_gpu, ep, top_k, token_bytes, load, num_experts, "dispatch", kernel, profile)


def moe_combine_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str = "bf16",
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> CollectiveCost:
    """Cost of returning the experts' outputs (BF16 by default); arguments as :func:`moe_dispatch_cost`."""
    profile = load_profile(profile)
    token_bytes = dispatch_bytes_per_token(hidden_size, format)
    return _exchange_cost(tokens_per_gpu, ep, top_k, token_bytes, load, num_experts, "combine", kernel, profile)


def moe_dispatch_seconds(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str,
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> Array:
    """Seconds of :func:`moe_dispatch_cost`."""
    return moe_dispatch_cost(
        tokens_per_gpu,
        ep,
        hidden_size=hidden_size,
        top_k=top_k,
        num_experts=num_experts,
        format=format,
        load=load,
        kernel=kernel,
        profile=profile,
    ).seconds


def moe_combine_seconds(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str = "bf16",
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> Array:
    """Seconds of :func:`moe_combine_cost`."""
    return moe_combine_cost(
        tokens_per_gpu,
        ep,
        hidden_size=hidden_size,
        top_k=top_k,
        num_experts=num_experts,
        format=format,
        load=load,
        kernel=kernel,
        profile=profile,
    ).seconds
