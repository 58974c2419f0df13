"""Multi-head latent attention (MLA) on one GPU: prefill with materialised heads, decode on the absorbed latent.

Equations (DeepSeek-V2, arXiv 2405.04434, section 2.1; c = kv_lora_rank, r = qk_rope_head_dim)::

    prefill  T = max(2·(d_qk + d_v)·scores/F, scores/R, bytes/BW), scores = B·h·(S·past + S²/2)      (1)
    decode   T = max((c + r)·b·keys·B/BW, 2·h·(2·c + r)·keys·B/F, h·keys·B/R)                        (2)

The latent is shared by all heads, so a tensor-parallel GPU reads all of it whatever its share of the heads. The
absorbed up-projections around the decode kernel are batched GEMMs and not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .attention_common import Array, AttentionCost, fit_of, make_cost, math_of, parameters_from, positive
from .attention_prefill import causal_scores, tile_scores
from .formats import get_format
from .profile import KernelProfile, load_profile


@dataclass(frozen=True)
class MlaPrefillParameters:
    """Numbers of the MLA prefill kernel; the defaults are equation (1). See ``PrefillParameters`` for each."""

    launch_seconds: float = 0.0
    math_efficiency: float = 1.0
    exp_efficiency: float = 1.0
    overlap: float = 1.0
    query_efficiency: float = 1.0
    kv_efficiency: float = 1.0
    tile_rows: float = 0.0
    tile_seconds: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True)
class MlaDecodeParameters:
    """Numbers of the MLA decode kernel; the defaults are equation (2). See ``DecodeParameters`` for the others.

    Attributes:
        math_efficiency: u, share of the tensor peak.
        small_group_tile: heads of one thread block when the GPU has at most ``small_group_heads``.
        small_group_heads: largest head count that runs with the small tile.
        group_tile: heads of one thread block otherwise; 0 = all heads in one.
    """

    launch_seconds: float = 0.0
    memory_efficiency: float = 1.0
    math_efficiency: float = 1.0
    small_group_tile: float = 0.0
    small_group_heads: float = 0.0
    group_tile: float = 0.0
    key_tile: float = 0.0
    block_seconds: float = 0.0
    tile_seconds: float = 0.0
    reduce_seconds: float = 0.0
    activation_factor: float = 0.0
    l2_bytes: float = 0.0
    l2_efficiency: float = 1.0


@lru_cache(maxsize=256)
def _prefill_parameters(profile: KernelProfile, number_format: str, kv_format: str) -> MlaPrefillParameters:
    math = math_of(number_format)
    names = (f"{math}_kv_{math_of(kv_format)}", number_format, math)
    return parameters_from(MlaPrefillParameters, *fit_of(profile, "mla_prefill", *names))


@lru_cache(maxsize=256)
def _decode_parameters(profile: KernelProfile, kv_format: str) -> MlaDecodeParameters:
    return parameters_from(MlaDecodeParameters, *fit_of(profile, "mla_decode", kv_format, math_of(kv_format)))


def mla_prefill_cost(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike = 0,
    *,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_nope_head_dim: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    v_head_dim: ArrayLike,
    format: str = "bf16",
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> AttentionCost:
    """Time and parts of one MLA prefill call; see :func:`mla_prefill_seconds` for the arguments."""
    profile = load_profile(profile)
    hardware, p = profile.hardware, _prefill_parameters(profile, format, kv_format)
    b, s = positive("batch", batch), positive("new_tokens", new_tokens)
    past = positive("past_tokens", past_tokens, minimum=0.0)
    h, c = positive("heads", heads), positive("kv_lora_rank", kv_lora_rank)
    d_qk = positive("qk_nope_head_dim", qk_nope_head_dim, minimum=0.0)
    d_qk = d_qk + positive("qk_rope_head_dim", qk_rope_head_dim, minimum=0.0)
    d_v = positive("v_head_dim", v_head_dim)
    no_window = np.zeros(())
    sequences = b * h
    exact = causal_scores(s, past, no_window) * sequences
    flop = 2.0 * (d_qk + d_v) * exact
    peak = hardware.peak_flop_per_second(math_of(format))
    rate, bandwidth = hardware.exp2_per_second, hardware.memory_bytes_per_second
    value_bytes = get_format(format).activation_bytes
    query_bytes = sequences * s * (d_qk * value_bytes + d_v * 2.0)
    kv_bytes = sequences * (s + past) * (d_qk + d_v) * value_bytes + 0.0 * c
    ideal = np.maximum(np.maximum(flop / peak, exact / rate), (query_bytes + kv_bytes) / bandwidth)

    launch, scores, exposed = np.asarray(p.launch_seconds), exact, np.zeros(())
    if p.tile_rows:
        padded, largest, tiles = tile_scores(s, past, no_window, np.asarray(p.tile_rows))
        scores, exposed = padded * sequences, largest * (hardware.sm_count * p.tail)
        launch = launch + p.tile_seconds * np.maximum(1.0, tiles * sequences / hardware.sm_count)
    math = (scores + exposed) * (2.0 * (d_qk + d_v) / (peak * p.math_efficiency))
    exp = (scores + exposed) / (rate * p.exp_efficiency)
    memory = query_bytes / (bandwidth * p.query_efficiency) + kv_bytes / (bandwidth * p.kv_efficiency)
    slowest = np.maximum(np.maximum(math, exp), memory)
    seconds = launch + slowest + (1.0 - p.overlap) * (math + exp + memory - slowest)
    return make_cost(seconds if warm_l2 else np.maximum(seconds, ideal), math, exp, memory, launch, flop, kv_bytes)


def mla_prefill_seconds(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike = 0,
    *,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_nope_head_dim: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    v_head_dim: ArrayLike,
    format: str = "bf16",
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> Array:
    """Seconds of one MLA prefill attention call on one GPU (keys and values already up-projected); all broadcasts.

    Args:
        batch: sequences, any shape.
        new_tokens: tokens computed now per sequence, any shape.
        past_tokens: tokens of the sequence already in the cache, any shape.
        heads: heads on this GPU, any shape.
        kv_lora_rank: latent width c, any shape.
        qk_nope_head_dim: query-key width without rotary, any shape.
        qk_rope_head_dim: rotary query-key width r, any shape.
        v_head_dim: value width, any shape.
        format: number format of the attention math.
        kv_format: storage format of the KV cache.
        profile: kernel profile or its name.
        warm_l2: price tensors that fit L2 as already there (comparison with measured tables only).

    Returns:
        seconds, broadcast shape. Equation (1) with neutral parameters.
    """
    return mla_prefill_cost(
        batch, new_tokens, past_tokens, heads=heads, kv_lora_rank=kv_lora_rank, qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim, v_head_dim=v_head_dim, format=format, kv_format=kv_format, profile=profile,
        warm_l2=warm_l2,
    ).seconds


def mla_decode_cost(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> AttentionCost:
    """Time and parts of one MLA decode call; see :func:`mla_decode_seconds` for the arguments."""
    seconds, parts = _decode(batch, context, heads, kv_lora_rank, qk_rope_head_dim, kv_format, load_profile(profile), warm_l2)
    return make_cost(seconds, *parts)


def mla_decode_seconds(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> Array:
    """Seconds of one absorbed MLA decode attention call on one GPU; every argument broadcasts.

    Args:
        batch: sequences, any shape.
        context: KV tokens of a sequence that this GPU reads, the new one included, any shape.
        heads: heads on this GPU, any shape.
        kv_lora_rank: latent width c, any shape.
        qk_rope_head_dim: rotary width r, any shape.
        kv_format: storage format of the KV cache; the math runs at its rate.
        profile: kernel profile or its name.
        warm_l2: price a KV cache that fits L2 as already there (comparison with measured tables only).

    Returns:
        seconds, broadcast shape. Equation (2) with neutral parameters.
    """
    return _decode(batch, context, heads, kv_lora_rank, qk_rope_head_dim, kv_format, load_profile(profile), warm_l2)[0]


def _decode(
    batch: ArrayLike, context: ArrayLike, heads: ArrayLike, kv_lora_rank: ArrayLike, qk_rope_head_dim: ArrayLike,
    kv_format: str, profile: KernelProfile, warm_l2: bool,
) -> tuple[Array, tuple[Any, ...]]:
    hardware, p = profile.hardware, _decode_parameters(profile, kv_format)
    b, keys, h = positive("batch", batch), positive("context", context), positive("heads", heads)
    c, r = positive("kv_lora_rank", kv_lora_rank), positive("qk_rope_head_dim", qk_rope_head_dim, minimum=0.0)
    stored, bandwidth = get_format(kv_format).activation_bytes, hardware.memory_bytes_per_second
    peak = hardware.peak_flop_per_second(math_of(kv_format))
    flop_each, exp_each = 2.0 * h * (2.0 * c + r), h / hardware.exp2_per_second
    kv_each = (c + r) * stored
    pairs = b * keys
    ideal = pairs * np.maximum(np.maximum(flop_each / peak, exp_each), kv_each / bandwidth)
    seconds, memory, math, launch = ideal, pairs * (kv_each / bandwidth), pairs * (flop_each / peak), np.zeros(())
    if p.launch_seconds or p.key_tile or p.memory_efficiency != 1.0:
        small = h <= p.small_group_heads
        tile = np.where(small, p.small_group_tile, p.group_tile)
        groups = np.ceil(h / np.where(tile > 0, tile, h))
        padded = np.where(tile > 0, groups * tile, h)
        math = pairs * (padded * ((2.0 * (2.0 * c + r)) / (peak * p.math_efficiency)))
        rate = p.memory_efficiency * bandwidth
        memory = pairs * (kv_each / rate)
        if warm_l2 and p.l2_bytes > 0:
            memory = np.where(pairs * kv_each <= p.l2_bytes, pairs * (kv_each / (p.l2_efficiency * bandwidth)), memory)
        busy = np.maximum(memory, math)
        launch = np.asarray(p.launch_seconds)
        if p.key_tile:
            blocks = b * groups
            tiles = np.ceil(keys / p.key_tile)
            splits = np.clip(np.floor(hardware.sm_count / blocks), 1.0, tiles)
            waves = np.ceil(blocks * splits / hardware.sm_count)
            pace = waves * (p.block_seconds + np.ceil(tiles / splits) * (p.tile_seconds * stored))
            busy = np.cbrt(memory**3 + math**3 + pace**3)
            launch = launch + np.where(splits > 1, p.reduce_seconds * np.log2(1.0 + splits), 0.0)
        launch = launch + b * (h * (2.0 * c + r) * (2.0 * p.activation_factor / bandwidth))
        seconds = launch + busy
        if not warm_l2:
            seconds = np.maximum(seconds, ideal)
        launch = seconds - np.maximum(memory, math)
    return np.asarray(seconds), (math, pairs * exp_each, memory, launch, pairs * flop_each, pairs * kv_each)
