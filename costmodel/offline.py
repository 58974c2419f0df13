"""Offline throughput: a fixed number of requests, all there at the start, on one replica (how vendors' tables are measured).

Steady-state figures (:mod:`.aggregated`) assume an endless queue. A benchmark of N equal requests fills the replica,
runs it, and drains it; with N near the number that fits there is hardly a steady state at all. The scheduler is that of
in-flight batching with chunked prefill, without eviction: a request starts when its full length fits, a pass takes the
running sequences' tokens first and prompt tokens up to ``max_tokens``::

    T_job = Σ over passes [ T_dec(B, mean context) + T_mixed(B, p) - T_dec(B) ],  T_prefill(p) where B = 0 (1)
    tokens/s/GPU = N·osl / T_job / GPUs                                                                 (2)

B: sequences that decode in the pass, p: prompt tokens it takes. The fullest attention rank sets the time: ⌈N/dpa⌉ requests.
The passes follow one another, so this is a loop over passes, not over designs; prices come from tables over (B, p).

References:
    [1] TensorRT-LLM documentation, performance overview, "Reproducing Benchmarked Results" (requests of a table's run).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregated import mixed_plan
from .architecture import Architecture
from .checks import whole
from .decode import price_decode
from .errors import InvalidValueError
from .expert_all_to_all import prompt_kernel
from .formats import TensorFormats
from .layout import Layout, LayoutBatch
from .memory import USABLE_FRACTION, as_batch, max_concurrency
from .profile import DEFAULT_PROFILE, KernelProfile
from .step_attention import decode_attention, mixed_attention, prefill_attention
from .step_forward import price_pass
from .step_options import require_options
from .step_plan import build_plan, decode_plan
from .workload import MAX_CONTEXT, Workload

FloatArray = NDArray[np.float64]
MAX_REQUESTS = 1_000_000  # of one rank; a job of more is in steady state for nearly all of its time
_CONTEXT_POINTS = 5  # contexts at which a decode step is priced; its time is near linear between them
_JUMP = 32  # passes without a change are taken together, at most 1/32 of an answer at once


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """One job.

    Attributes:
        seconds: from the first pass to the last token, s.
        passes: forward passes.
        capacity: sequences one attention rank holds at once.
        mean_running: sequences that decode in a pass of one attention rank, averaged over passes.
        tokens_per_second_per_gpu: output tokens.
    """

    seconds: float
    passes: int
    capacity: int
    mean_running: float
    tokens_per_second_per_gpu: float


def schedule_job(
    requests: int,
    *,
    capacity: int,
    input_tokens: int,
    output_tokens: int,
    max_tokens: int,
    step_seconds: Callable[[float, float], float],
    prompt_seconds: Callable[[float, float], float],
) -> tuple[float, int, float]:
    """Run the scheduler of one rank (module docstring).

    Args:
        requests: N, all waiting at the start.
        capacity: sequences that fit at once.
        input_tokens: prompt length.
        output_tokens: answer length; a prompt's last pass gives the first token.
        max_tokens: tokens of one pass, prompts and running sequences together.
        step_seconds: (B, mean context) → seconds of a pass that only decodes, for B > 0.
        prompt_seconds: (B, prompt tokens) → seconds these add to a pass with B running sequences; all of it for B = 0.

    Returns:
        seconds of the job (1), passes, running sequences averaged over passes.
    """
    waiting, progress = requests, 0  # requests not begun or in prefill; prompt tokens done of the one in prefill
    groups: deque[tuple[int, int]] = deque()  # (sequences, pass of their first token), oldest first
    running, generated = 0, 0  # sequences; their tokens together
    seconds, passes, area = 0.0, 0, 0.0
    while waiting or groups:
        wanted = min(waiting, capacity - running) * input_tokens - progress
        taken = max(min(max_tokens - running, wanted), 0)
        # Nothing changes until the oldest group ends: passes are taken together, few enough to average the context.
        jump = 1 if taken else max(1, min(output_tokens - 1 - passes + groups[0][1], output_tokens // _JUMP))
        if running:
            seconds += jump * step_seconds(running, input_tokens + generated / running + (jump - 1) / 2)
        if taken:
            seconds += prompt_seconds(running, taken)
        passes, area, generated = passes + jump, area + jump * running, generated + jump * running
        while groups and passes - groups[0][1] + 1 >= output_tokens:
            count = groups.popleft()[0]
            running, generated = running - count, generated - count * output_tokens
        begun, progress = divmod(progress + taken, input_tokens)
        waiting -= begun
        if begun and output_tokens > 1:
            groups.append((begun, passes))
            running, generated = running + begun, generated + begun
    return seconds, passes, area / passes


def offline_throughput(
    architecture: Architecture,
    layout: Layout,
    *,
    requests: int,
    workload: Workload,
    max_tokens: int = 8192,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile = DEFAULT_PROFILE,
    usable_fraction: float = USABLE_FRACTION,
    **options: Any,
) -> OfflineRun:
    """Price a job of equal requests on one replica.

    Args:
        architecture: the design.
        layout: the replica; without pipeline stages.
        requests: requests of the job, spread evenly over the attention-DP ranks (rounded up).
        workload: prompt and answer lengths, routing; its prefix cache and goals do not matter here.
        max_tokens: tokens of one pass of an attention rank (``max_num_tokens``, ``max_num_batched_tokens``).
        formats: number formats of the tensor classes.
        profile: kernel profile or its name.
        usable_fraction: share of HBM for weights and KV cache.
        **options: further choices of :class:`.step_options.StepOptions`.

    Raises:
        InvalidValueError: a number out of range, pipeline stages, or a sequence that does not fit.
    """
    per_rank = -(-whole("requests", requests, 1, MAX_REQUESTS * layout.dpa) // layout.dpa)
    budget = whole("max_tokens", max_tokens, 1, MAX_CONTEXT)
    if layout.pp > 1:
        raise InvalidValueError(f"offline throughput is priced without pipeline stages, got pp={layout.pp}; use pp=1")
    chosen = replace(require_options(options, formats=formats, profile=profile), load=workload.load)
    b, layouts = as_batch(architecture), LayoutBatch.from_layouts([layout])
    held = max_concurrency(
        b, layouts, context=workload.peak_context, formats=chosen.formats, hardware=chosen.profile.hardware,
        usable_fraction=usable_fraction,
    )  # fmt: skip
    capacity = int(held[0, 0]) // layout.dpa
    if capacity < 1:
        raise InvalidValueError(
            f"no sequence of {workload.peak_context} tokens fits {layout}; "
            "take more GPUs, shorter sequences or fewer bytes a value"
        )
    most = min(capacity, per_rank)
    running = np.unique(np.minimum(2.0 ** np.arange(0.0, np.log2(most) + 1.0, 0.5), most))
    prompts = np.unique(np.minimum(budget, np.append(2.0 ** np.arange(np.log2(budget)), budget)))
    plan = decode_plan(layouts, tuple((running * layout.dpa).tolist()))
    contexts = np.linspace(workload.input_tokens, workload.peak_context, _CONTEXT_POINTS)
    steps = np.array([price_decode(b, layouts, plan, float(c), chosen).seconds[0, 0] for c in contexts])
    without = replace(chosen, host_seconds=0.0)  # the constant is the decode step's: a chunk must not pay it twice
    decode = decode_attention(workload.decode_context)
    alone = price_pass(b, plan, decode, without).sum(axis=0)[0, 0]
    prefill_options = replace(without, all_to_all_kernel=chosen.all_to_all_kernel or prompt_kernel(chosen.profile))
    host = chosen.constant(b.kind.attention)
    rows, only = [], []
    for taken in prompts.tolist():
        size = min(taken, float(workload.input_tokens))
        count, past = taken / size, (workload.input_tokens - size) / 2
        prompt = prefill_attention(np.array([size]), np.array([past]), count)
        attention = mixed_attention(decode, prompt)
        together = price_pass(b, mixed_plan(layouts, plan, taken, count), attention, without).sum(axis=0)[0, 0]
        rows.append(np.maximum(together - alone, 0.0))
        tokens = np.full((1, 1), taken)
        prompts_alone = build_plan(layouts, tokens, tokens * layout.dpa, np.full((1, 1), count))
        seconds = float(price_pass(b, prompts_alone, prompt, prefill_options).sum())
        only.append(seconds + max(host, -0.5 * seconds))
    extra, first = np.array(rows), np.array(only)
    seconds, passes, mean = schedule_job(
        per_rank,
        capacity=most,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        max_tokens=budget,
        step_seconds=lambda n, context: _between(steps, contexts, running, context, n),
        prompt_seconds=lambda n, taken: (
            _between(extra, prompts, running, taken, n) if n else float(np.interp(taken, prompts, first))
        ),
    )
    return OfflineRun(seconds, passes, capacity, mean, requests * workload.output_tokens / seconds / layout.gpus)


def _between(table: FloatArray, rows: FloatArray, columns: FloatArray, row: float, column: float) -> float:
    """Bilinear look-up, held at the edges."""
    i = min(max(int(np.searchsorted(rows, row)), 1), len(rows) - 1) if len(rows) > 1 else 0
    if not i:
        return float(np.interp(column, columns, table[0]))
    low, high = np.interp(column, columns, table[i - 1]), np.interp(column, columns, table[i])
    share = min(max((row - rows[i - 1]) / (rows[i] - rows[i - 1]), 0.0), 1.0)
    return float(low + share * (high - low))

