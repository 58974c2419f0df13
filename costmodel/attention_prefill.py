"""Prefill attention (MHA, GQA, MQA; causal, with past tokens, sliding window) on one GPU.

Equations (scores = query-key pairs, d = head size, F = tensor peak, R = exp2 rate, BW = HBM bandwidth)::

    ideal   T = max(4·d·scores/F, scores/R, bytes/BW)                                         (1)
    fitted  T = max(ideal, t0 + D(W) + x_q·B_q/BW + x_k·B_new/BW + B_past/BW + B·S·t_a)         (2)
            W = max((A·a + o·n/SMs)·v(n) + c·τ, c1·τ),  τ = A_tile·a·SMs + o
            a = 4·d/(F·u) + 1/(R·u_e),  v(n) = 1 - ρ + ρ·⌈n/SMs⌉/(n/SMs)
            D(W) = W·(1 + δ·W/(W + t_δ)),  t_a = t_t·n_kv^q + t_w·[n_kv·d ≥ n_w]

Causal scores of one head: ``S·past + S²/2``; a window caps the keys of a query. A pads the scores to n query tiles,
A_tile is the largest of them: c·τ is the exposed tail of a full GPU, c1·τ the one wave of a nearly empty one. B_new
are the bytes of the new tokens' keys and values (read, rotated, appended), B_past those already in the cache; t_a is
the time a token's append takes beyond its bytes, with a step where its row outgrows one block's registers. D is
the drop of the clock in kernels of many milliseconds. (1) is the bound of FlashAttention-4 (arXiv 2603.05451,
section 2); that MMA and exp add up (a), and the rest of (2), is inferred from measured kernels.
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
    read_sizes,
)
from .formats import get_format
from .hardware import Hardware
from .profile import KernelProfile, load_profile
from .seconds import seconds_of

NO_WINDOW: Array = np.zeros(())


@dataclass(frozen=True)
class PrefillParameters:
    """Numbers of the prefill kernel; most may be a list over ``head_sizes``. The defaults are equation (1).

    Attributes:
        head_sizes: head sizes that lists belong to.
        fp8_math: 1 where the kernel multiplies in FP8 whatever the call says (queries quantised to an FP8 cache).
        overlap: 1 = the slowest of MMA, exp and memory hides the others; 0 = they add up.
        launch_seconds: t0, fixed time of a call.
        math_efficiency: u, share of the tensor peak.
        exp_efficiency: u_e, exponentials over the datasheet exp2 rate (above 1: part of them run on FMA units).
        query_factor: x_q, exposed time of queries and outputs over their bytes at HBM bandwidth.
        kv_factor: x_k, the same for keys and values of new tokens.
        token_seconds: t_t, time of appending one token to the cache with one KV head.
        token_exponent: q, how that grows with KV heads.
        wide_token_seconds: t_w, added to every token where the row of values is wide.
        wide_token_values: n_w, KV heads times head size from which it is; 0 = never.
        tile_rows: query rows of one tile; 0 = no padding.
        tile_seconds: o, fixed time of one tile on one SM.
        wave_share: ρ, share of the work that waits for whole waves of tiles.
        tail: c, largest tiles exposed at the end of a full GPU.
        wave: c1, largest tiles one wave takes when the GPU is not full.
        droop: δ, largest relative slow-down of long kernels.
        droop_seconds: t_δ, time at which half of it is reached.
    """

    head_sizes: tuple[float, ...] = ()
    fp8_math: float = 0.0
    overlap: float = 1.0
    launch_seconds: Parameter = 0.0
    math_efficiency: Parameter = 1.0
    exp_efficiency: Parameter = 1.0
    query_factor: Parameter = 1.0
    kv_factor: Parameter = 1.0
    token_seconds: Parameter = 0.0
    token_exponent: Parameter = 1.0
    wide_token_seconds: Parameter = 0.0
    wide_token_values: float = 0.0
    tile_rows: float = 0.0
    tile_seconds: Parameter = 0.0
    wave_share: Parameter = 0.0
    tail: Parameter = 0.0
    wave: Parameter = 0.0
    droop: Parameter = 0.0
    droop_seconds: Parameter = 1.0


def prefill_formats(number_format: str, kv_format: str) -> tuple[str, ...]:
    """Profile keys to look for, best first: the pair itself, the same cache format, then the math format."""
    math, kv = math_of(number_format), math_of(kv_format)
    return (f"{math}_kv_{kv}", f"fp8_kv_{kv}", f"bf16_kv_{kv}", number_format, math)


@lru_cache(maxsize=256)
def _parameters(profile: KernelProfile, number_format: str, kv_format: str) -> PrefillParameters:
    names = prefill_formats(number_format, kv_format)
    return parameters_from(PrefillParameters, *fit_of(profile, "attention_prefill", *names))


def causal_scores(new_tokens: Array, past_tokens: Array, window: Array = NO_WINDOW) -> Array:
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


def tile_scores(new_tokens: Array, past_tokens: Array, window: Array, rows: float) -> tuple[Array, Array, Array]:
    """Scores of one head padded to query tiles of ``rows`` rows, of its largest tile, and the number of tiles.

    Tile j covers keys up to ``past + j·rows``, with a window at most ``window + rows`` of them.
    """
    tiles = np.ceil(new_tokens / rows)
    largest = past_tokens + tiles * rows
    if not np.any(window):
        return rows * tiles * (past_tokens + 0.5 * rows * (tiles + 1.0)), rows * largest, tiles
    windowed = window > 0
    cap = window + rows
    growing = np.where(windowed, np.clip(np.floor((cap - past_tokens) / rows), 0.0, tiles), tiles)
    keys = growing * (past_tokens + 0.5 * rows * (growing + 1.0)) + (tiles - growing) * cap
    return rows * keys, rows * np.where(windowed, np.minimum(largest, cap), largest), tiles


@dataclass(frozen=True)
class PrefillShape:
    """What one prefill call computes and moves; arrays that broadcast (shared with MLA).

    Attributes:
        sequences: batch, any shape.
        heads: query heads on the GPU.
        new_tokens: tokens computed per sequence.
        past_tokens: tokens in the cache per sequence.
        window: sliding window, 0 = none.
        flop_per_score: 2·(d_qk + d_v).
        query_bytes: bytes of queries and outputs.
        new_kv_bytes: bytes of the new tokens' keys and values.
        past_kv_bytes: bytes of the past tokens' keys and values that are read.
        kv_heads: KV heads on the GPU.
    """

    sequences: Array
    heads: Array
    new_tokens: Array
    past_tokens: Array
    window: Array
    flop_per_score: Array
    query_bytes: Array
    new_kv_bytes: Array
    past_kv_bytes: Array
    kv_heads: Array


def price_prefill(
    shape: PrefillShape, p: PrefillParameters, hardware: Hardware, number_format: str, head_dim: Array, *, clamp: bool = True
) -> AttentionCost:
    """Equation (2) for any attention kind.

    Args:
        shape: work and bytes.
        p: the kernel's numbers.
        hardware: datasheet.
        number_format: format of the attention math.
        head_dim: head size at which lists of ``p`` are read.
        clamp: never below equation (1); without it, the bare fit (comparison with measured tables).
    """

    def at(value: Parameter) -> Array:
        return at_head_size(value, p.head_sizes, head_dim)  # type: ignore[no-any-return]

    rate, bandwidth, sms = hardware.exp2_per_second, hardware.memory_bytes_per_second, hardware.sm_count
    nominal = hardware.peak_flop_per_second(math_of(number_format))
    peak = hardware.peak_flop_per_second("fp8") if p.fp8_math else nominal
    units = shape.sequences * shape.heads
    exact = causal_scores(shape.new_tokens, shape.past_tokens, shape.window) * units
    flop = shape.flop_per_score * exact
    kv_bytes = shape.new_kv_bytes + shape.past_kv_bytes
    ideal = np.maximum(np.maximum(flop / nominal, exact / rate), (shape.query_bytes + kv_bytes) / bandwidth)

    math_each, exp_each = shape.flop_per_score / (peak * at(p.math_efficiency)), 1.0 / (rate * at(p.exp_efficiency))
    scores, overhead, exposed = exact, NO_WINDOW, NO_WINDOW
    if p.tile_rows:
        padded, largest, tiles = tile_scores(shape.new_tokens, shape.past_tokens, shape.window, p.tile_rows)
        waves = tiles * units / sms
        scores, overhead = padded * units, at(p.tile_seconds) * waves
        slowest = largest * (math_each + exp_each) * sms + at(p.tile_seconds)
        full = scores * (math_each + exp_each) + overhead
        waiting = full * (at(p.wave_share) * (np.ceil(waves) / waves - 1.0))
        exposed = np.maximum(waiting + at(p.tail) * slowest, at(p.wave) * slowest - full)
    math, exp = scores * math_each, scores * exp_each
    memory = (at(p.query_factor) * shape.query_bytes + at(p.kv_factor) * shape.new_kv_bytes + shape.past_kv_bytes) / bandwidth
    append = NO_WINDOW
    if np.any(p.token_seconds):
        each = at(p.token_seconds) * shape.kv_heads ** at(p.token_exponent)
        if p.wide_token_values:
            each = each + at(p.wide_token_seconds) * (shape.kv_heads * head_dim >= p.wide_token_values)
        append = each * (shape.sequences * shape.new_tokens)
    if p.overlap >= 1.0:
        seconds = np.maximum(np.maximum(math, exp), memory) + overhead + exposed + append + at(p.launch_seconds)
    else:
        busy = math + exp + overhead + exposed
        busy = busy * (1.0 + at(p.droop) * (busy / (busy + at(p.droop_seconds))))
        seconds = busy + memory + append + at(p.launch_seconds)
    if clamp:
        seconds = np.maximum(seconds, ideal)
    launch = at(p.launch_seconds) + overhead + exposed + append
    return make_cost(seconds, math, exp, memory, launch, flop, kv_bytes)


def gqa_shape(
    batch: ArrayLike,
    new_tokens: ArrayLike,
    past_tokens: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike,
    number_format: str,
    kv_format: str,
) -> tuple[PrefillShape, Array]:
    """Work and bytes of one GQA prefill call, and the head size as an array."""
    b, s, past, h, kv, d, w = read_sizes(
        batch=batch, new_tokens=new_tokens, past_tokens=past_tokens, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        window=window,
    )
    seen = past if not np.any(w) else np.where(w > 0, np.minimum(past, w), past)
    each = 2.0 * kv * d * get_format(kv_format).activation_bytes
    query = b * h * s * d * (get_format(number_format).activation_bytes + 2.0)  # the output is written in BF16
    return PrefillShape(b, h, s, past, w, 4.0 * d, query, b * s * each, b * seen * each, kv), d


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
    """Time and parts of one prefill attention call on one GPU; every argument broadcasts.

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
        warm_l2: the bare fit, as measured with warm caches (comparison with measured tables only).

    Returns:
        seconds and their parts, broadcast shape. Equation (1) with neutral parameters, else (2).

    Raises:
        InvalidValueError: a size is below 1 (``past_tokens``, ``window``: below 0) or not finite, or the shapes do not
            broadcast.
        UnknownKeyError: no such format or profile.
    """
    profile = load_profile(profile)
    p = _parameters(profile, format, kv_format)
    shape, d = gqa_shape(batch, new_tokens, past_tokens, heads, kv_heads, head_dim, window, format, kv_format)
    return price_prefill(shape, p, profile.hardware, format, d, clamp=not warm_l2)


attention_prefill_seconds = seconds_of(attention_prefill_cost)
"""Seconds of :func:`attention_prefill_cost`; the same arguments."""
