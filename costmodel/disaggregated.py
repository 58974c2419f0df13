"""Disaggregated serving: a prefill pool feeds a decode pool; rates, splits, KV transfer.

For per-GPU request rates p (prefill) and d = tokens/s/GPU / output (decode), the best split of a large fleet gives::

    requests/s/GPU = 1 / (1/p + 1/d)                                                                   (1)

Within a GPU budget, whole replicas: x prefill replicas of g_p GPUs at r_p requests/s and y decode replicas of g_d at r_d::

    max min(x·r_p, y·r_d) / (x·g_p + y·g_d)   over   x·g_p + y·g_d <= budget                              (2)

TTFT = prefill + KV transfer: each GPU sends its shard of the prompt's cache once, over the scale-up link while both
pools fit one domain, else over the scale-out link. tokens/s/GPU counts output tokens over all GPUs of both pools.

References:
    [1] Beyond the Buzz: A Pragmatic Take on Inference Disaggregation, arXiv 2506.05508 (rate matching of the pools).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .collectives import send_seconds
from .errors import InvalidValueError
from .layout import LayoutBatch
from .memory import kv_bytes_per_sequence_per_gpu, max_concurrency
from .operating import upper_envelope
from .prefill import price_prefill
from .profile import load_profile

if TYPE_CHECKING:
    from .serving import ServingSetup
    from .serving_frontier import Points

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class PrefillPool:
    """What each prefill layout offers; arrays of shape ``(A, P)``.

    Attributes:
        layouts: the pool's layouts, ``(P,)``.
        requests_per_second_per_gpu: 0 where the model does not fit or TTFT misses its goal.
        ttft_seconds: prefill without queueing, KV transfer not included, s.
        kv_bytes: prompt cache on one GPU, B.
    """

    layouts: LayoutBatch
    requests_per_second_per_gpu: FloatArray
    ttft_seconds: FloatArray
    kv_bytes: FloatArray


def prefill_pool(b: ArchitectureBatch, setup: ServingSetup) -> PrefillPool:
    """Price every prefill layout of ``setup``; a layout with more stages than layers is left out."""
    p = setup.prefill_layouts or setup.layouts
    options, work = setup.step_options(prefill=True), setup.workload
    possible = p.pp[None] <= b.num_hidden_layers[:, None]
    rows = [
        price_prefill(b.take(piece), p, float(work.input_tokens), setup.chunk_tokens, work.prefix_cache_share, None, options)
        for piece in _pieces(len(b), len(p))
    ]
    ttft = np.concatenate([row.ttft_seconds for row in rows])
    rate = np.concatenate([row.requests_per_second_per_gpu for row in rows]) * setup.prefill_efficiency
    held = max_concurrency(
        b, p, context=work.input_tokens, formats=options.formats, hardware=options.profile.hardware,
        usable_fraction=setup.usable_fraction,
    )
    fits = held >= rows[0].sequences * p.dpa[None]
    bytes_held = kv_bytes_per_sequence_per_gpu(b, p, work.input_tokens, options.formats)
    # The transfer's time depends on the decode pool; the goal is checked without it here and with it per point.
    good = fits & possible & (ttft <= work.max_ttft_seconds)
    return PrefillPool(p, np.where(good, rate, 0.0), ttft, bytes_held)


def _pieces(count: int, layouts: int) -> list[slice]:
    size = max(1, (1 << 16) // max(layouts, 1))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def with_prefill_pool(b: ArchitectureBatch, setup: ServingSetup, throughput: FloatArray) -> FloatArray:
    """Equation (1): decode tokens/s/GPU ``(A, ...)`` → tokens/s/GPU of both pools at the best split."""
    best = prefill_pool(b, setup).requests_per_second_per_gpu.max(axis=1)
    output = setup.workload.output_tokens
    prefill_rate = best.reshape(-1, *([1] * (throughput.ndim - 1)))
    decode_rate = throughput * (setup.decode_efficiency / output)
    return output * combine_rates(prefill_rate, decode_rate)


def combine_rates(prefill_rate: FloatArray, decode_rate: FloatArray) -> FloatArray:
    """Equation (1); 0 where either pool offers nothing."""
    total = prefill_rate + decode_rate
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(total > 0, prefill_rate * decode_rate / total, 0.0))


def transfer_seconds(setup: ServingSetup, kv_bytes: FloatArray, gpus: FloatArray) -> FloatArray:
    """KV transfer of one prompt: the GPU's shard over its link; ``gpus`` of both pools decide which link."""
    profile = load_profile(setup.profile)
    near, far = (send_seconds(kv_bytes, scale_out=out, profile=profile) for out in (False, True))
    return np.where(gpus > profile.hardware.scale_up_gpus, far, near)


def disaggregated_points(
    b: ArchitectureBatch, setup: ServingSetup, points: Points, usable: BoolArray
) -> tuple[Points, BoolArray]:
    """Decode points of one design with their prefill pool: equation (2) within a budget, else (1)."""
    pool = prefill_pool(b, setup)
    rate = pool.requests_per_second_per_gpu[0]
    if not np.any(rate > 0):
        reachable = float(pool.ttft_seconds[0].min())
        raise InvalidValueError(
            f"no prefill layout fits memory and meets TTFT <= {setup.workload.max_ttft_seconds:g} s; the best reachable TTFT is "
            f"{reachable:.4g} s; relax the goal, or allow more GPUs, stages or smaller formats in the prefill pool"
        )
    if setup.gpu_budget:
        return _integer_splits(setup, pool, points, usable)
    best = int(np.argmax(rate))
    gpus_d = setup.layouts.gpus[points.layout_index].astype(np.float64)
    decode_rate = points.tokens_per_second_per_gpu * (setup.decode_efficiency / setup.workload.output_tokens)
    replicas = decode_rate * gpus_d / (rate[best] * pool.layouts.gpus[best])
    requests = combine_rates(np.asarray(rate[best]), decode_rate)
    gpus = gpus_d + replicas * pool.layouts.gpus[best]
    index = np.full(len(points), best, dtype=np.intp)
    return _deployed(setup, pool, points, index, replicas, np.ones(len(points)), requests, gpus), usable


def _deployed(
    setup: ServingSetup, pool: PrefillPool, points: Points, index: IntArray, prefill_workers: FloatArray,
    decode_workers: FloatArray, requests: FloatArray, gpus: FloatArray,
) -> Points:
    work = setup.workload
    cached = 1.0 - work.prefix_cache_share
    ttft = pool.ttft_seconds[0][index] + transfer_seconds(setup, pool.kv_bytes[0][index] * cached, gpus)
    return replace(
        points,
        ttft_seconds=ttft,
        tokens_per_second_per_gpu=requests * work.output_tokens,
        input_output_tokens_per_second_per_gpu=requests * (work.output_tokens + work.input_tokens),
        prefill_layout_index=index,
        prefill_workers=prefill_workers,
        decode_workers=decode_workers,
    )


def _integer_splits(setup: ServingSetup, pool: PrefillPool, points: Points, usable: BoolArray) -> tuple[Points, BoolArray]:
    """Equation (2) for the best points of each decode replica size x the best prefill layout of each size.

    For equal GPUs and user rate only the higher rate can win, so the envelope of each size is enough.
    """
    gpus_p, gpus_d = pool.layouts.gpus, setup.layouts.gpus[points.layout_index]
    rate = pool.requests_per_second_per_gpu[0] * gpus_p
    offers = [int(np.flatnonzero(gpus_p == g)[np.argmax(rate[gpus_p == g])]) for g in np.unique(gpus_p)]
    offers = [i for i in offers if rate[i] > 0]
    user, budget = points.tokens_per_second_per_user, setup.gpu_budget
    kept = [upper_envelope(points.tokens_per_second_per_gpu, user, usable & (gpus_d == g)) for g in np.unique(gpus_d)]
    chosen = np.sort(np.concatenate(kept))
    sub, size = points.take(chosen), gpus_d[chosen].astype(np.float64)
    scale = setup.decode_efficiency / setup.workload.output_tokens
    decode_rate = sub.tokens_per_second_per_gpu * size * scale  # requests/s of one replica
    best = np.zeros(len(sub))
    index, x_best, y_best = np.full(len(sub), -1, dtype=np.intp), np.zeros(len(sub)), np.zeros(len(sub))
    for offer in offers:
        one, each = rate[offer], float(gpus_p[offer])
        for y in range(1, budget // int(size.min()) + 1):
            exact = y * decode_rate / one
            for x in (np.maximum(np.floor(exact), 1.0), np.maximum(np.ceil(exact), 1.0)):
                room = np.floor((budget - y * size) / each)
                x = np.minimum(x, room)
                total = x * each + y * size
                value = np.where(x >= 1, np.minimum(x * one, y * decode_rate) / np.maximum(total, 1.0), 0.0)
                better = value > best
                best = np.where(better, value, best)
                index[better], x_best[better], y_best[better] = offer, x[better], y
    if not np.any(best > 0):
        raise InvalidValueError(
            f"contradictory pools: a prefill replica takes at least {int(gpus_p[offers].min())} GPUs and a decode replica "
            f"{int(size.min())}, together more than gpu_budget={budget}; raise the budget or allow smaller layouts"
        )
    gpus = x_best * gpus_p[index] + y_best * size
    return _deployed(setup, pool, sub, index, x_best, y_best, best, gpus), best > 0
