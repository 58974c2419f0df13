"""Decode attention (MHA, GQA, MQA; one new token a sequence, sliding window) on one GPU.

Equations (keys = KV tokens read by a sequence, g = query heads of a KV head)::

    ideal   T = max(2·n_kv·d·b·keys·B/BW, 4·n_h·d·keys·B/F, n_h·keys·B/R)                  (1)
    fitted  T = t0 + ((KV/(BW·e_b))³ + (W·(o + tiles·t_k·b))³)^⅓ + t_r·log2(1 + splits)    (2)

(1): the KV cache is read once per query group. (2): W waves of thread blocks, each walking ``tiles`` key tiles of
one (sequence, KV head, split); the cubes are a smooth maximum of the memory bound and of the SMs' own pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .attention_common import (
    Array,
    AttentionCost,
    Parameter,
    at_head_size,
    fit_of,
    keys_read,
    make_cost,
    math_of,
    parameters_from,
    positive,
)
from .formats import get_format
from .profile import KernelProfile, load_profile


@dataclass(frozen=True)
class DecodeParameters:
    """Numbers of the decode kernel; each may be a list over ``head_sizes``. The defaults are equation (1).

    Attributes:
        head_sizes: head sizes that lists belong to.
        launch_seconds: t0, fixed time of a call.
        memory_efficiency: e_b, share of HBM bandwidth.
        group_tile: query heads one thread block serves; 0 = the whole group.
        key_tile: keys of one tile; 0 = no thread-block model.
        block_seconds: o, fixed time of one thread block.
        tile_seconds: t_k, time of one key tile per stored byte a value.
        reduce_seconds: t_r, time of combining splits per doubling.
        activation_factor: c_q, bytes moved for queries and outputs over their size.
        l2_bytes: KV bytes that stay in L2 between calls (warm branch only); 0 = none.
        l2_efficiency: bandwidth of those bytes over HBM bandwidth (warm branch only).
    """

    head_sizes: tuple[float, ...] = ()
    launch_seconds: Parameter = 0.0
    memory_efficiency: Parameter = 1.0
    group_tile: float = 0.0
    key_tile: float = 0.0
    block_seconds: Parameter = 0.0
    tile_seconds: Parameter = 0.0
    reduce_seconds: Parameter = 0.0
    activation_factor: Parameter = 0.0
    l2_bytes: float = 0.0
    l2_efficiency: Parameter = 1.0


@lru_cache(maxsize=256)
def _parameters(profile: KernelProfile, kv_format: str) -> DecodeParameters:
    return parameters_from(DecodeParameters, *fit_of(profile, "attention_decode", kv_format, math_of(kv_format)))


def attention_decode_cost(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> AttentionCost:
    """Time and parts of one decode attention call; see :func:`attention_decode_seconds` for the arguments."""
    profile = load_profile(profile)
    seconds, parts = _decode(batch, context, heads, kv_heads, head_dim, window, kv_format, profile, warm_l2)
    return make_cost(seconds, *parts)


def attention_decode_seconds(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> Array:
    """Seconds of one decode attention call on one GPU; every argument broadcasts (keep small axes small: it is faster).

    Args:
        batch: sequences, any shape.
        context: KV tokens of a sequence that this GPU reads, the new one included, any shape.
        heads: query heads on this GPU, any shape.
        kv_heads: KV heads on this GPU, any shape.
        head_dim: head size, any shape.
        window: sliding window in tokens, 0 = full attention, any shape.
        kv_format: storage format of the KV cache.
        profile: kernel profile or its name.
        warm_l2: price a KV cache that fits L2 as already there (comparison with measured tables only).

    Returns:
        seconds, broadcast shape. Equation (1) with neutral parameters, else (2).
    """
    return _decode(batch, context, heads, kv_heads, head_dim, window, kv_format, load_profile(profile), warm_l2)[0]


def _decode(
    batch: ArrayLike, context: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, head_dim: ArrayLike, window: ArrayLike,
    kv_format: str, profile: KernelProfile, warm_l2: bool,
) -> tuple[Array, tuple[Any, ...]]:
    hardware, p = profile.hardware, _parameters(profile, kv_format)
    b, context = positive("batch", batch), positive("context", context)
    h, kv, d = positive("heads", heads), positive("kv_heads", kv_heads), positive("head_dim", head_dim)
    keys = keys_read(context, positive("window", window, minimum=0.0))
    stored, bandwidth = get_format(kv_format).activation_bytes, hardware.memory_bytes_per_second
    # Decode math runs at the 16-bit rate unless the cache is 8-bit; seconds per (sequence, key) of each resource.
    peak = hardware.peak_flop_per_second(math_of(kv_format))
    math_each, exp_each, read_each = 4.0 * h * d / peak, h / hardware.exp2_per_second, 2.0 * kv * d * stored / bandwidth
    pairs = b * keys
    ideal = pairs * np.maximum(np.maximum(math_each, exp_each), read_each)

    def at(value: Parameter) -> Any:
        return at_head_size(value, p.head_sizes, d)

    seconds, memory, launch = ideal, pairs * read_each, np.zeros(())
    if p.launch_seconds or p.key_tile or p.memory_efficiency != 1.0:
        memory = memory / at(p.memory_efficiency)
        if warm_l2 and p.l2_bytes > 0:
            memory = np.where(pairs * (2.0 * kv * d * stored) <= p.l2_bytes, pairs * read_each / at(p.l2_efficiency), memory)
        busy = memory
        launch = at(p.launch_seconds)
        if p.key_tile:
            groups = kv * (np.ceil(h / kv / p.group_tile) if p.group_tile else 1.0)
            blocks = b * groups
            tiles = np.ceil(keys / p.key_tile)
            splits = np.clip(np.floor(hardware.sm_count / blocks), 1.0, tiles)
            waves = np.ceil(blocks * splits / hardware.sm_count)
            pace = waves * (at(p.block_seconds) + np.ceil(tiles / splits) * (at(p.tile_seconds) * stored))
            busy = np.cbrt(memory * memory * memory + pace * pace * pace)
            launch = launch + np.where(splits > 1, at(p.reduce_seconds) * np.log2(1.0 + splits), 0.0)
        launch = launch + b * (h * d * (4.0 * at(p.activation_factor) / bandwidth))
        seconds = launch + busy
        if not warm_l2:
            seconds = np.maximum(seconds, ideal)
        launch = seconds - memory
    kv_bytes = pairs * (read_each * bandwidth)
    parts = (pairs * math_each, pairs * exp_each, memory, launch, pairs * (4.0 * h * d), kv_bytes)
    return np.asarray(seconds), parts
