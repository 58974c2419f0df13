"""Multi-head latent attention (MLA) on one GPU: prefill with materialised heads, decode on the absorbed latent.

Equations (DeepSeek-V2, arXiv 2405.04434, section 2.1; c = kv_lora_rank, r = qk_rope_head_dim)::

    prefill  T = max(2·(d_qk + d_v)·scores/F, scores/R, bytes/BW), scores = B·h·(S·past + S²/2)      (1)
    decode   T = max((c + r)·b·keys·B/BW, 2·h·(2·c + r)·keys·B/F, h·keys·B/R)                        (2)

The latent is shared by all heads, so a tensor-parallel GPU reads all of it whatever its share of the heads. The
absorbed up-projections around the decode kernel are batched GEMMs and no part of it, nor is the up-projection of the
latent before prefill. Fitted kernels follow equation (2) of :mod:`.attention_prefill` and :mod:`.attention_decode`;
few heads run in narrow blocks of ``block_tile`` heads, so 32 heads (two narrow blocks, the latent walked twice) can
take longer than 64 (one wide block): a kernel switch at ``wide_group`` heads that the profile names.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .attention_common import Array, AttentionCost, fit_of, math_of, parameters_from, read_sizes
from .attention_decode import BLOCK_HEADS, DecodeCall, DecodeParameters, DecodeShape
from .attention_prefill import NO_WINDOW, PrefillParameters, PrefillShape, prefill_formats, price_prefill
from .formats import get_format
from .profile import KernelProfile, load_profile
from .seconds import seconds_of


@lru_cache(maxsize=256)
def _prefill_parameters(profile: KernelProfile, number_format: str, kv_format: str) -> PrefillParameters:
    names = prefill_formats(number_format, kv_format)
    return parameters_from(PrefillParameters, *fit_of(profile, "mla_prefill", *names))


@lru_cache(maxsize=256)
def _decode_parameters(profile: KernelProfile, kv_format: str) -> DecodeParameters:
    return parameters_from(DecodeParameters, *fit_of(profile, "mla_decode", kv_format, math_of(kv_format)))


def mla_prefill_shape(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_nope_head_dim: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    v_head_dim: ArrayLike,
    number_format: str,
) -> tuple[PrefillShape, Array]:
    """Work and bytes of one MLA prefill call, and the query-key width as an array."""
    b, s, past, h, c, nope, rope, d_v = read_sizes(
        batch=batch, new_tokens=new_tokens, past_tokens=past_tokens, heads=heads, kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim, qk_rope_head_dim=qk_rope_head_dim, v_head_dim=v_head_dim,
    )
    d_qk = nope + rope
    value_bytes = get_format(number_format).activation_bytes
    query = b * h * s * (d_qk * value_bytes + d_v * 2.0) + 0.0 * c  # output in BF16; c only lends its shape
    each = h * (d_qk + d_v) * value_bytes
    return PrefillShape(b, h, s, past, NO_WINDOW, 2.0 * (d_qk + d_v), query, b * s * each, b * past * each, np.ones(())), d_qk


def mla_decode_shape(
    batch: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_lora_rank: ArrayLike,
    qk_rope_head_dim: ArrayLike,
    kv_format: str,
    p: DecodeParameters,
) -> tuple[DecodeShape, Array]:
    """Work and bytes of one absorbed MLA decode call, and the latent width as an array."""
    b, keys, h, c, r = read_sizes(
        batch=batch, context=context, heads=heads, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim
    )
    wide = h > p.wide_group if p.wide_group else np.zeros(h.shape, dtype=bool)
    tile = np.where(wide | (p.block_tile <= 0), BLOCK_HEADS, p.block_tile)
    each = (c + r) * get_format(kv_format).activation_bytes
    in_block = np.where(wide, np.minimum(h, tile), tile)
    values = 2.0 * h * (2.0 * c + r)  # FLOP of one key, and bytes of queries and outputs in BF16
    return DecodeShape(b, keys, np.ceil(h / tile), in_block, wide, each, values, h, values), c


def _decode_call(
    batch: ArrayLike, context: ArrayLike, heads: ArrayLike, kv_lora_rank: ArrayLike, qk_rope_head_dim: ArrayLike,
    kv_format: str, profile: str | KernelProfile,
) -> DecodeCall:
    profile = load_profile(profile)
    p = _decode_parameters(profile, kv_format)
    shape, c = mla_decode_shape(batch, context, heads, kv_lora_rank, qk_rope_head_dim, kv_format, p)
    return DecodeCall(shape, p, profile.hardware, kv_format, c)


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
    """Time and parts of one MLA prefill call on one GPU (keys and values already up-projected); every argument broadcasts.

    Args:
        batch: sequences, any shape.
        new_tokens: tokens computed now per sequence, any shape.
        past_tokens: tokens of the sequence already in the cache, any shape.
        heads: heads on this GPU, any shape.
        kv_lora_rank: latent width c, any shape (no part of the time: the keys and values are materialised).
        qk_nope_head_dim: query-key width without rotary, any shape.
        qk_rope_head_dim: rotary query-key width r, any shape.
        v_head_dim: value width, any shape.
        format: number format of the attention math.
        kv_format: storage format of the KV cache.
        profile: kernel profile or its name.
        warm_l2: the bare fit, as measured with warm caches (comparison with measured tables only).

    Returns:
        seconds and their parts, broadcast shape. Equation (1) with neutral parameters.

    Raises:
        InvalidValueError: a size is below 1 (``past_tokens``, ``qk_*_head_dim``: below 0) or not finite, or the shapes do
            not broadcast.
        UnknownKeyError: no such format or profile.
    """
    profile = load_profile(profile)
    widths = (kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim)
    shape, d = mla_prefill_shape(batch, new_tokens, past_tokens, heads, *widths, format)
    p = _prefill_parameters(profile, format, kv_format)
    return price_prefill(shape, p, profile.hardware, format, d, clamp=not warm_l2)


mla_prefill_seconds = seconds_of(mla_prefill_cost)
"""Seconds of :func:`mla_prefill_cost`; the same arguments."""


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
    return _decode_call(batch, context, heads, kv_lora_rank, qk_rope_head_dim, kv_format, profile).cost(warm_l2)


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

    Raises:
        InvalidValueError: a size is below 1 (``qk_rope_head_dim``: below 0) or not finite, or the shapes do not broadcast.
        UnknownKeyError: no such format or profile.
    """
    return _decode_call(batch, context, heads, kv_lora_rank, qk_rope_head_dim, kv_format, profile).seconds(warm_l2)
