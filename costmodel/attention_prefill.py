"""Prefill attention (MHA, GQA, MQA; causal, with past tokens, sliding window) on one GPU.

Equations (scores = query-key pairs, d = head size, F = tensor peak, R = exp2 rate, BW = HBM bandwidth)::

    ideal   T = max(4·d·scores/F, scores/R, bytes/BW)                                     (1)
    fitted  T = max(ideal, t0 + bytes_q/(BW·e_q) + bytes_kv/(BW·e_k) + tiles(A)·a + ...)  (2)
            a = 4·d/(F·u) + 1/(R·u_e): MMA and exp add up in measured kernels

Causal scores of one head: ``S·past + S²/2``; a window caps the keys of a query. Equation (1) is the lower bound of
FlashAttention-4 (arXiv 2603.05451, section 2); the additive form (2) is an observation on measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .attention_common import (
    Array,
    AttentionCost,
    Parameter,
    at_head_size,
    fit_of,
    make_cost,
    math_of,
    parameters_from,
    positive,
)
from .formats import get_format
from .profile import KernelProfile, load_profile


@dataclass(frozen=True)
class PrefillParameters:
    """Numbers of the prefill kernel; each may be a list over ``head_sizes``. The defaults are equation (1).

    Attributes:
        head_sizes: head sizes that lists belong to.
        launch_seconds: t0, fixed time of a call.
        math_efficiency: u, share of the tensor peak.
        exp_efficiency: u_e, rate of exponentials over the datasheet exp2 rate (above 1 where part of them is
            computed on FMA units).
        overlap: 0 = MMA, exp and memory add up; 1 = the slowest hides the others.
        query_efficiency: e_q, share of HBM bandwidth that queries and outputs move at.
        kv_efficiency: e_k, the same for keys and values.
        tile_rows: query rows of one tile; 0 = no padding.
        tile_seconds: o, fixed time of one tile on one SM.
        tail: c_t, share of the largest tile's time that is exposed at the end.
    """

    head_sizes: tuple[float, ...] = ()
    launch_seconds: Parameter = 0.0
    math_efficiency: Parameter = 1.0
    exp_efficiency: Parameter = 1.0
    overlap: float = 1.0
    query_efficiency: Parameter = 1.0
    kv_efficiency: Parameter = 1.0
    tile_rows: Parameter = 0.0
    tile_seconds: Parameter = 0.0
    tail: Parameter = 0.0


@lru_cache(maxsize=256)
def _parameters(profile: KernelProfile, number_format: str, kv_format: str) -> PrefillParameters:
    math = math_of(number_format)
    names = (f"{math}_kv_{math_of(kv_format)}", number_format, math)
    return parameters_from(PrefillParameters, *fit_of(profile, "attention_prefill", *names))


def causal_scores(new_tokens: Array, past_tokens: Array, window: Array) -> Array:
    """Query-key pairs of one head of one sequence: ``S·past + S²/2``, each query capped at ``window`` keys.

    Args:
        new_tokens: S, tokens computed now, any shape.
        past_tokens: tokens already in the cache, any shape.
        window: sliding window, 0 = full attention, any shape.
    """
    full = new_tokens * (past_tokens + 0.5 * new_tokens)
    if not np.any(window):
        return np.asarray(full)
    growing = np.clip(window - past_tokens, 0.0, new_tokens)  # queries that see fewer keys than the window
    capped = growing * (past_tokens + 0.5 * growing) + (new_tokens - growing) * window
    return np.where(window > 0, capped, full)


def tile_scores(new_tokens: Array, past_tokens: Array, window: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Scores of one head padded to query tiles of ``rows`` rows, of its largest tile, and the number of tiles.

    Tile j covers keys up to ``past + j·rows``, with a window at most ``window + rows`` of them.
    """
    tiles = np.ceil(new_tokens / rows)
    largest = past_tokens + tiles * rows
    if not np.any(window):
        return rows * tiles * (past_tokens + 0.5 * rows * (tiles + 1.0)), rows * largest, tiles
    cap = np.where(window > 0, window + rows, np.inf)
    growing = np.where(window > 0, np.clip(np.floor((window + rows - past_tokens) / rows), 0.0, tiles), tiles)
    keys = growing * (past_tokens + 0.5 * rows * (growing + 1.0))
    with np.errstate(invalid="ignore"):
        keys = keys + np.where(growing < tiles, (tiles - growing) * np.where(window > 0, cap, 0.0), 0.0)
    return rows * keys, rows * np.minimum(largest, cap), tiles


def attention_prefill_cost(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike = 0,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    format: str = "bf16",
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> AttentionCost:
    """Time and parts of one prefill attention call; see :func:`attention_prefill_seconds` for the arguments."""
    profile = load_profile(profile)
    hardware, p = profile.hardware, _parameters(profile, format, kv_format)
    b, s, past = positive("batch", batch), positive("new_tokens", new_tokens), positive("past_tokens", past_tokens, minimum=0.0)
    h, kv, d = positive("heads", heads), positive("kv_heads", kv_heads), positive("head_dim", head_dim)
    w = positive("window", window, minimum=0.0)

    def at(value: Parameter) -> Array:
        return at_head_size(value, p.head_sizes, d)  # type: ignore[no-any-return]

    sequences = b * h
    exact = causal_scores(s, past, w) * sequences
    flop = 4.0 * d * exact
    peak = hardware.peak_flop_per_second(math_of(format))
    rate, bandwidth = hardware.exp2_per_second, hardware.memory_bytes_per_second
    seen = past if not np.any(w) else np.where(w > 0, np.minimum(past, w), past)
    query_bytes = sequences * s * d * (get_format(format).activation_bytes + 2.0)
    kv_bytes = 2.0 * b * (s + seen) * kv * d * get_format(kv_format).activation_bytes
    ideal = np.maximum(np.maximum(flop / peak, exact / rate), (query_bytes + kv_bytes) / bandwidth)

    launch = at(p.launch_seconds) + np.zeros(())
    scores, exposed = exact, np.zeros(())
    rows = at(p.tile_rows)
    if np.any(rows):
        padded, largest, tiles = tile_scores(s, past, w, np.maximum(rows, 1.0))
        scores = padded * sequences
        exposed = largest * hardware.sm_count * at(p.tail)
        launch = launch + at(p.tile_seconds) * np.maximum(1.0, tiles * sequences / hardware.sm_count)
    math_per_score, exp_per_score = 4.0 * d / (peak * at(p.math_efficiency)), 1.0 / (rate * at(p.exp_efficiency))
    math, exp = (scores + exposed) * math_per_score, (scores + exposed) * exp_per_score
    memory = query_bytes / (bandwidth * at(p.query_efficiency)) + kv_bytes / (bandwidth * at(p.kv_efficiency))
    slowest = np.maximum(np.maximum(math, exp), memory)
    busy = slowest if p.overlap >= 1.0 else slowest + (1.0 - p.overlap) * (math + exp + memory - slowest)
    seconds = launch + busy
    return make_cost(seconds if warm_l2 else np.maximum(seconds, ideal), math, exp, memory, launch, flop, kv_bytes)


def attention_prefill_seconds(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike = 0,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    format: str = "bf16",
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> Array:
    """Seconds of one prefill attention call on one GPU; every argument broadcasts.

    Args:
        batch: sequences, any shape.
        new_tokens: tokens computed now per sequence (a chunk), any shape.
        past_tokens: tokens of the sequence already in the cache, any shape.
        heads: query heads on this GPU, any shape.
        kv_heads: KV heads on this GPU, any shape.
        head_dim: head size, any shape.
        window: sliding window in tokens, 0 = full attention, any shape.
        format: number format of the attention math.
        kv_format: storage format of the KV cache.
        profile: kernel profile or its name.
        warm_l2: price tensors that fit the L2 cache as already there (comparison with measured tables only).

    Returns:
        seconds, broadcast shape. Equation (1) with neutral parameters, else (2).
    """
    return attention_prefill_cost(
        batch, new_tokens, past_tokens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window,
        format=format, kv_format=kv_format, profile=profile, warm_l2=warm_l2,
    ).seconds
