"""Aggregated serving: prefill chunks share the decode steps (in-flight batching with chunked prefill), steady state.

With B sequences on an attention rank, each answer of ``osl`` tokens sees the prompts of the other B - 1 pass by::

    TPOT = T_dec(B) + (B - 1)/osl · sum_c [T_mixed(B, chunk c) - T_dec(B)]                              (1)
    TTFT = sum_c T_mixed(B, chunk c)                                                                    (2)
    tokens/s/GPU = C·osl / (TTFT + (osl - 1)·TPOT) / GPUs                                                 (3)

T_mixed: a step with B decode tokens and one prefill chunk on every attention DP rank. Chunks are made equal and priced
at the mean prefix, which is exact where a chunk's time is linear in its prefix. With pipeline stages a chunk delays a
step by its time on the fullest stage. No queueing: C is what runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .decode import price_decode
from .layout import LayoutBatch
from .pipeline import stage_imbalance
from .step_attention import decode_attention, mixed_attention, prefill_attention
from .step_forward import price_pass
from .step_plan import StepPlan, build_plan, decode_plan, decode_plan_of

if TYPE_CHECKING:
    from .serving import ServingSetup
    from .serving_frontier import Points

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def mixed_plan(layouts: LayoutBatch, decode: StepPlan, prompt_rows: float, prompts: float) -> StepPlan:
    """Plan of a step with the decode plan's rows and ``prompt_rows`` prompt tokens on every attention rank."""
    rows = decode.rows + prompt_rows
    return build_plan(layouts, rows, rows * layouts.dpa[:, None], decode.rows + prompts, attention_rows=decode.rows)


@lru_cache(maxsize=16)
def _cached_plan(layouts: LayoutBatch, concurrency: tuple[float, ...], prompt_rows: float, prompts: float) -> StepPlan:
    return mixed_plan(layouts, decode_plan(layouts, concurrency), prompt_rows, prompts)


def mean_chunk(setup: ServingSetup) -> tuple[int, float, float, float]:
    """Chunks of a prompt, tokens of each, mean tokens before it, and prompts that share one pass."""
    work = setup.workload
    cached = np.floor(work.input_tokens * work.prefix_cache_share)
    new = work.input_tokens - cached
    count = max(1, int(np.ceil(new / setup.chunk_tokens)))
    size = new / count
    return count, size, float(cached + (new - size) / 2), 1.0


def _price(
    b: ArchitectureBatch, setup: ServingSetup, decode: StepPlan, mixed: StepPlan
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """TPOT (1) and TTFT (2), each ``(A, P, C)``, and the decode step's categories ``(4, A, P, C)``."""
    options, layouts = setup.step_options(), setup.layouts
    context, host = setup.workload.decode_context, options.constant(b.kind.attention)
    options = replace(options, host_seconds=0.0)  # the constant is the decode step's: a chunk must not pay it twice
    step = price_decode(b, layouts, decode, context, options)
    parts = np.stack([step.gemm_seconds, step.attention_seconds, step.communication_seconds, step.other_seconds])
    constant = np.maximum(host, -0.5 * step.seconds)
    parts[3] += constant
    seconds = step.seconds + constant
    count, size, past, prompts = mean_chunk(setup)
    attention = mixed_attention(decode_attention(context), prefill_attention(np.array([size]), np.array([past]), prompts))
    together = price_pass(b, mixed, attention, options).sum(axis=0)
    staged = bool(np.any(layouts.pp > 1))
    alone = price_pass(b, decode, decode_attention(context), options).sum(axis=0) if staged else step.seconds
    extra = np.maximum(together - alone, 0.0)
    waits = stage_imbalance(b.num_hidden_layers[:, None], layouts.pp[None]) / layouts.pp[None]
    others = np.maximum(decode.rows * decode.turns - 1.0, 0.0)[None]  # B - 1 on this attention rank, all turns
    delay = count * extra * waits[:, :, None]
    tpot = seconds + others / setup.workload.output_tokens * delay
    ttft = count * (seconds + extra)
    return tpot, ttft, parts


def aggregated_seconds(b: ArchitectureBatch, setup: ServingSetup) -> tuple[FloatArray, FloatArray]:
    """TPOT and the seconds a sequence holds its place per output token (its own prefill included), ``(A, P, C)``.

    A TTFT goal of the workload is held by making points that miss it infinitely slow.
    """
    decode = decode_plan(setup.layouts, setup.concurrency)
    _, size, _, prompts = mean_chunk(setup)
    tpot, ttft, _ = _price(b, setup, decode, _cached_plan(setup.layouts, setup.concurrency, size * prompts, prompts))
    output = setup.workload.output_tokens
    late = ttft > setup.workload.max_ttft_seconds
    return np.where(late, np.inf, tpot), (ttft + (output - 1) * tpot) / output


def aggregated_at(b: ArchitectureBatch, setup: ServingSetup) -> FloatArray:
    """TPOT (1) of every point whatever the goals, ``(A, P, C)``, s."""
    decode = decode_plan_of(setup.layouts, np.asarray(setup.concurrency)[None])
    _, size, _, prompts = mean_chunk(setup)
    return _price(b, setup, decode, mixed_plan(setup.layouts, decode, size * prompts, prompts))[0]


def aggregated_points(b: ArchitectureBatch, setup: ServingSetup, limits: FloatArray) -> tuple[Points, BoolArray]:
    """Every point of one design, and which of them memory allows."""
    from .serving_frontier import make_points, point_grid

    grid = point_grid(setup, limits)
    decode = decode_plan_of(setup.layouts, grid)
    _, size, _, prompts = mean_chunk(setup)
    tpot, ttft, parts = _price(b, setup, decode, mixed_plan(setup.layouts, decode, size * prompts, prompts))
    parts = parts[:, 0]
    points = make_points(setup, grid, tpot[0], parts * (tpot[0] / parts.sum(axis=0)))
    output, work = setup.workload.output_tokens, setup.workload
    first = ttft[0].reshape(-1)
    seconds = first + (output - 1) * points.itl_seconds
    throughput = points.concurrency * output / (seconds * setup.layouts.gpus[points.layout_index])
    usable = np.broadcast_to(grid <= limits[:, None], decode.shape).reshape(-1)
    both = throughput * (1.0 + work.input_tokens / output)
    points = replace(
        points, ttft_seconds=first, tokens_per_second_per_gpu=throughput, input_output_tokens_per_second_per_gpu=both
    )
    return points, usable
