"""Routed experts of one MoE layer as a grouped GEMM on the slowest expert-parallel rank.

Gate-up and down projections of the touched experts; weights of touched experts only. The router, shared experts
and the all-to-all are priced elsewhere.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Table 1 and guideline 5.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError, check_keys
from .formats import get_format
from .moe_load import Array, experts_touched, imbalance_factor, tokens_per_expert
from .profile import KernelProfile, load_profile

__all__ = [
    "MoeCost",
    "MoeParameters",
    "experts_touched",
    "imbalance_factor",
    "moe_cost",
    "moe_seconds",
    "tokens_per_expert",
]
BOUNDS = ("math", "memory", "launch", "routing")


@dataclass(frozen=True)
class MoeParameters:
    """Fitted numbers of a grouped expert GEMM; the neutral defaults are the pure roofline.

    Attributes:
        launch_seconds: fixed time of the layer's kernels, s.
        expert_seconds: time per expert on the rank, s.
        memory_efficiency: share of the HBM peak, in (0, 1].
        math_efficiency: share of the tensor peak, in (0, 1].
    """

    launch_seconds: float = 0.0
    expert_seconds: float = 0.0
    memory_efficiency: float = 1.0
    math_efficiency: float = 1.0


@dataclass(frozen=True)
class MoeCost:
    """Seconds of the routed experts of one layer and its parts, arrays of one shape.

    Attributes:
        seconds: total, s.
        flop: useful FLOP on the slowest rank.
        read_bytes: weights and activations read, B.
        write_bytes: activations written, B.
        math_seconds: tensor-core time, s.
        memory_seconds: HBM time, s.
        launch_seconds: fixed time, s.
        routing_seconds: permutation, quantisation and reduction of tokens, s.
        experts: touched experts on the slowest rank.
        rows: token-expert pairs on the slowest rank.
    """

    seconds: Array
    flop: Array
    read_bytes: Array
    write_bytes: Array
    math_seconds: Array
    memory_seconds: Array
    launch_seconds: Array
    routing_seconds: Array
    experts: Array
    rows: Array

    @property
    def bound(self) -> NDArray[np.str_]:
        """What rules: ``math``, ``memory``, ``launch`` or ``routing``."""
        parts = (self.math_seconds, self.memory_seconds, self.launch_seconds, self.routing_seconds)
        return np.asarray(np.asarray(BOUNDS)[np.argmax(np.stack(np.broadcast_arrays(*parts)), axis=0)])


@lru_cache(maxsize=256)
def moe_parameters(profile: KernelProfile, format: str, kernel: str | None = None) -> MoeParameters:
    """Parameters of ``format`` (and ``kernel``, stored as ``format:kernel``) in a profile."""
    fits = profile.families.get("moe", {})
    name = f"{format}:{kernel}" if kernel and f"{format}:{kernel}" in fits else format
    return parse_parameters(profile.family("moe", name).parameters, f"{profile.name}: [moe.{name}]")


def parse_parameters(table: Any, where: str) -> MoeParameters:
    """Build :class:`MoeParameters` from a profile's table.

    Raises:
        UnknownKeyError: unknown keys.
    """
    check_keys(table, [f.name for f in fields(MoeParameters)], where)
    return MoeParameters(**{k: float(v) for k, v in table.items()})


def moe_cost(
    tokens: ArrayLike,
    *,
    hidden_size: ArrayLike,
    moe_intermediate_size: ArrayLike,
    num_experts: ArrayLike,
    top_k: ArrayLike,
    ep: ArrayLike = 1,
    tp: ArrayLike = 1,
    format: str,
    gated: bool = True,
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> MoeCost:
    """Cost of the routed experts of one layer on the slowest rank.

    Rows on that rank R = factor · tokens · k / EP; FLOP = 2 · matrices · R · H · I/TP;
    bytes = touched experts · matrices · H · I/TP · weight bytes + activations; with neutral parameters
    T = max(FLOP/peak, bytes/BW) [1].

    Args:
        tokens: tokens of the whole expert-parallel group in the step, shape (...).
        hidden_size: H, shape (...).
        moe_intermediate_size: full width of one expert, shape (...); ``tp`` divides it.
        num_experts: routed experts E, shape (...).
        top_k: experts per token k, shape (...).
        ep: expert-parallel ranks, shape (...).
        tp: tensor-parallel ranks inside an expert, shape (...).
        format: number format of weights and activations.
        gated: three matrices (gate, up, down) instead of two.
        load: ``balanced``, ``power_law_1.01``, ``power_law_1.2``, or max over mean rank load.
        kernel: kernel of the profile; ``None`` takes the stack's default.
        profile: kernel profile or its name.
    """
    profile = load_profile(profile)
    hardware, number = profile.hardware, get_format(format)
    p = moe_parameters(profile, format, kernel)
    names = ("tokens", "hidden_size", "moe_intermediate_size", "num_experts", "top_k", "ep", "tp")
    values = (tokens, hidden_size, moe_intermediate_size, num_experts, top_k, ep, tp)
    t, h, width, e, k, n, split = (_positive(v, name) for v, name in zip(values, names, strict=True))
    inner = width / split
    local = e / n
    factor = imbalance_factor(load, n, e, k)
    rows = np.minimum(t * (k / n * factor), t * np.minimum(k, local))
    share = np.minimum(factor * (k / e), 1.0)  # share of the tokens that one local expert sees
    touched = np.minimum(experts_touched(t, 1.0, share) * local, np.maximum(rows, 1e-300))
    matrices = 3.0 if gated else 2.0
    flop = 2 * matrices * rows * (h * inner)
    weights = touched * (matrices * number.weight_bytes * h * inner)
    read = weights + rows * (number.activation_bytes * (h + inner))
    write = rows * (number.activation_bytes * inner + 2.0 * h)  # down projection writes 16-bit outputs
    math = flop / (hardware.peak_flop_per_second(number.math) * p.math_efficiency)
    memory = (read + write) / (hardware.memory_bytes_per_second * p.memory_efficiency)
    launch = p.launch_seconds + p.expert_seconds * local
    routing = np.zeros(())
    seconds = np.maximum(math, memory) + launch + routing
    return MoeCost(*np.broadcast_arrays(seconds, flop, read, write, math, memory, launch, routing, touched, rows))


def moe_seconds(
    tokens: ArrayLike,
    *,
    hidden_size: ArrayLike,
    moe_intermediate_size: ArrayLike,
    num_experts: ArrayLike,
    top_k: ArrayLike,
    ep: ArrayLike = 1,
    tp: ArrayLike = 1,
    format: str,
    gated: bool = True,
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> Array:
    """Seconds of :func:`moe_cost`."""
    return moe_cost(
        tokens,
        hidden_size=hidden_size,
        moe_intermediate_size=moe_intermediate_size,
        num_experts=num_experts,
        top_k=top_k,
        ep=ep,
        tp=tp,
        format=format,
        gated=gated,
        load=load,
        kernel=kernel,
        profile=profile,
    ).seconds


def _positive(value: ArrayLike, name: str) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.size and not array.min() > 0:
        raise InvalidValueError(f"{name} must be positive, got {array.min()}")
    return array
