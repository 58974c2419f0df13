"""Routed experts of one MoE layer as a grouped GEMM on the slowest expert-parallel rank.

Gate-up and down projections of the touched experts; weights of touched experts only. The router, shared experts
and the all-to-all are priced elsewhere. With neutral parameters the time is max(FLOP/peak, bytes/HBM) [1]; a fitted
profile adds row tiles, the share of math and memory that does not overlap, routing and permutation traffic, and
latency. Every added term is >= 0 and every efficiency <= 1, so no parameters can beat the roofline.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Tables 1 and 2, guideline 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .hardware import Hardware
from .moe_load import Array, RankLoad, experts_touched, imbalance_factor, rank_load, read_experts, tokens_per_expert
from .moe_parameters import MoeParameters, default_kernel, moe_parameters, number_format
from .profile import KernelProfile, load_profile
from .seconds import seconds_of

__all__ = [
    "MoeCost",
    "MoeParameters",
    "default_kernel",
    "experts_touched",
    "imbalance_factor",
    "moe_cost",
    "moe_seconds",
    "tokens_per_expert",
]
BOUNDS = ("math", "memory", "launch", "routing")
_COLUMNS = 128.0  # columns of a weight tile: every public grouped-GEMM kernel's tile (datasheet of the kernels)
_TILE_OVER_MEAN = 1.44  # mean of the power of two above x, over x: 1/ln 2
_WARM_BYTES = (60e6, 120e6)  # weights read from L2 below, from HBM above (measured tables; fitted)
FUSED_TOPK = 10  # largest top-k timed without the extra routing time; 22 has it (measured tables; 11 to 21 inferred)
_WARM_SHARE = 0.4  # time of a byte from L2 over a byte from HBM (fitted)


@dataclass(frozen=True)
class MoeCost:
    """Seconds of the routed experts of one layer and its parts, arrays of one shape.

    Attributes:
        seconds: total, s.
        flop: useful FLOP on the slowest rank.
        read_bytes: weights and activations read, B.
        write_bytes: activations written, B.
        math_seconds: tensor-core time, s; overlaps with memory.
        memory_seconds: HBM time, s.
        launch_seconds: fixed time and latency of single tiles, s.
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
    warm_l2: bool = False,
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
        load: ``balanced``, ``even``, ``power_law_1.01``, ``power_law_1.2``, or max over mean rank load.
        kernel: kernel of the profile; ``None`` takes its plain entry (see :func:`default_kernel`).
        warm_l2: weights as a benchmark loop finds them (to validate); serving reads them from HBM.
        profile: kernel profile or its name.

    Returns:
        seconds and their parts, broadcast shape.

    Raises:
        InvalidValueError: a size is not positive and finite, ``ep`` or ``tp`` below 1, ``top_k`` above ``num_experts``, a
            load factor below 1, or the shapes do not broadcast.
        UnknownKeyError: no such load, format or profile.
    """
    profile = load_profile(profile)
    t, h, width, e, k, n, split = read_experts(
        tokens=tokens,
        hidden_size=hidden_size,
        moe_intermediate_size=moe_intermediate_size,
        num_experts=num_experts,
        top_k=top_k,
        ep=ep,
        tp=tp,
    )
    parameters = moe_parameters(profile, format, kernel)
    shares = rank_load(load, t, n, e, k)
    parts = moe_parts(parameters, profile.hardware, format, t, h, width / split, e, k, n, shares, gated=gated, warm_l2=warm_l2)
    return MoeCost(*np.broadcast_arrays(*parts))


def moe_parts(
    p: MoeParameters,
    hardware: Hardware,
    format: str,
    tokens: Array,
    h: Array,
    inner: Array,
    e: Array,
    k: Array,
    ep: Array,
    load: RankLoad,
    *,
    gated: bool | NDArray[np.bool_] = True,
    warm_l2: bool = False,
) -> tuple[Array, ...]:
    """The fields of :class:`MoeCost`, each in its own shape; ``warm_l2`` is the benchmark loop's cache state."""
    number = number_format(format, p, hardware)
    bandwidth = hardware.memory_bytes_per_second
    up = np.where(gated, 2.0, 1.0)  # matrices before the activation
    rows, touched = load.rows, load.touched
    choices = rows if p.local_tokens else tokens * k
    if p.local_tokens:  # tokens with at least one of k choices on the rank
        tokens = tokens * -np.expm1(k * np.log1p(-np.minimum(rows / (tokens * k), 1 - 1e-12)))

    flop = 2 * rows * ((up + 1) * h * inner)
    peak = hardware.peak_flop_per_second(number.math) * p.math_efficiency
    if p.tile_rows_max > 0:
        columns = np.ceil(up * inner / _COLUMNS) + np.ceil(h / _COLUMNS)
        row_seconds = 2 * h * (_COLUMNS * (np.ceil(up * inner / _COLUMNS) + np.ceil(inner / _COLUMNS))) / peak
        tile_seconds = p.tile_overhead_rows * row_seconds + p.tile_seconds * columns / hardware.sm_count
        tiles, padded = _tiles(load, rows / touched, p)
        math = touched * padded * row_seconds + touched * tiles * tile_seconds
    else:
        math = flop / peak

    weights = touched * ((up + 1) * number.weight_bytes * h * inner)
    read = weights + rows * (number.activation_bytes * (h + inner))
    write = rows * (number.activation_bytes * inner + 2.0 * h)  # down projection writes 16-bit outputs
    moved = read + write
    if warm_l2:
        low, high = _WARM_BYTES
        moved = moved - weights * ((1 - _WARM_SHARE) * np.clip((high - weights) / (high - low), 0.0, 1.0))
    memory = moved / (bandwidth * p.memory_efficiency)

    launch = p.launch_seconds + p.wide_topk_seconds * (k > FUSED_TOPK) + p.expert_seconds * (e / ep)
    launch = launch + p.touched_expert_seconds * touched
    launch = launch + (p.tail_streams * _COLUMNS * number.weight_bytes * hardware.sm_count / bandwidth) * (h + inner)
    launch = launch + p.ramp_seconds * (tokens / (tokens + p.ramp_tokens)) + p.step_seconds * (tokens > p.step_tokens)
    traffic = rows * (p.hidden_traffic * h + p.inner_traffic * inner)
    traffic = traffic + (p.token_traffic * tokens + p.choice_traffic * choices) * h
    routing = traffic / bandwidth + p.row_seconds * rows + p.choice_seconds * choices

    long, short = np.maximum(memory, math), np.minimum(memory, math)
    core = np.sqrt(long * long + p.unhidden * short * short) if p.unhidden > 0 else long
    seconds = launch + routing + core
    return seconds, flop, read, write, math, memory, launch, routing, touched, rows


moe_seconds = seconds_of(moe_cost)
"""Seconds of :func:`moe_cost`; the same arguments."""


def _tiles(load: RankLoad, rows: Array, p: MoeParameters) -> tuple[Array, Array]:
    """Row tiles of one touched expert, and its rows padded to them.

    The tile follows the mean rows per expert (a power of two within the menu). Even counts fill ceil(rows/tile)
    tiles; random counts half a tile more than rows/tile on average, and at least one.
    """
    if load.even:
        power = np.exp2(np.ceil(np.log2(np.maximum(load.mean_rows, 1.0))))
        tile = np.clip(power, p.tile_rows_min, p.tile_rows_max)
        tiles = np.ceil(rows / tile)
    else:
        tile = np.clip(_TILE_OVER_MEAN * load.mean_rows, p.tile_rows_min, p.tile_rows_max)
        tiles = np.maximum(rows / tile + 0.5, 1.0)
    return tiles, tiles * tile
