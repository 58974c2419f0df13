"""Prefill of prompts in chunks, over architectures x layouts: time to first token, rate, breakdown.

A prompt of ``input_tokens`` (less what the prefix cache holds) is cut into chunks of ``chunk_tokens``; chunk c attends
to everything before it. Every attention DP rank works on its own prompt. Prompts shorter than a chunk share a pass.
With pipeline stages the chunks flow through them (:mod:`.pipeline`); the LM head runs once, on the last token.

TTFT is that of an unloaded system: no queueing. The rate is that of back-to-back requests: the busiest stage rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .batch import ArchitectureBatch
from .checks import number, whole
from .collectives import send_seconds
from .errors import InvalidValueError
from .expert_all_to_all import prompt_kernel
from .formats import TensorFormats
from .layout import Layout, LayoutBatch
from .memory import as_batch, as_layouts
from .pipeline import Schedule, schedule, stage_imbalance, stage_layers
from .profile import DEFAULT_PROFILE, KernelProfile
from .step_attention import prefill_attention
from .step_forward import CATEGORIES, HEAD_PARTS, Table, chunks, fill_pass, gather_category
from .step_options import StepOptions, require_options
from .step_plan import StepPlan, build_plan
from .workload import MAX_CONTEXT

FloatArray = NDArray[np.float64]
DEFAULT_CHUNK_TOKENS = 8192  # vLLM and TensorRT-LLM default max_num_batched_tokens / max_num_tokens (datasheet)
MAX_CHUNKS = MAX_CONTEXT // DEFAULT_CHUNK_TOKENS  # of one prompt: the longest context in default chunks (design choice)
MAX_SEQUENCES = 1 << 20  # prompts of one pass (design choice)


@dataclass(frozen=True, eq=False)
class Prefill:
    """Prefill of one pass of prompts; arrays of shape ``(A, P)`` unless stated.

    Attributes:
        ttft_seconds: arrival to first token of an unloaded replica, s.
        requests_per_second_per_gpu: back-to-back prompts.
        tokens_per_second_per_gpu: prompt tokens, prefix-cache hits included.
        imbalance: busiest stage over the mean stage, >= 1.
        breakdown: seconds of all chunks through all layers by category, ``(4, A, P)``.
        chunk_seconds: one chunk through all layers, head in the last one, ``(A, P, N)``, s.
        hop_seconds: one chunk from stage to stage, s.
        chunk_sizes: prompt tokens of each chunk, ``(N,)``.
        sequences: prompts that share a pass on one attention rank.
    """

    ttft_seconds: FloatArray
    requests_per_second_per_gpu: FloatArray
    tokens_per_second_per_gpu: FloatArray
    imbalance: FloatArray
    breakdown: FloatArray
    chunk_seconds: FloatArray
    hop_seconds: FloatArray
    chunk_sizes: FloatArray
    sequences: int
    _stages: Mapping[tuple[int, int], Schedule]

    def schedule(self, architecture: int = 0, layout: int = 0) -> Schedule:
        """Start and end of every chunk on every stage (Fig. 8 of the post), ``(S, N)``."""
        return self._stages[(architecture, layout)]

    @property
    def bound(self) -> NDArray[np.str_]:
        """Largest category."""
        return np.asarray(np.asarray(CATEGORIES)[np.argmax(self.breakdown, axis=0)])


def chunk_sizes(new_tokens: float, chunk_tokens: int) -> FloatArray:
    """Whole chunks and the rest, tokens, shape ``(N,)``.

    Args:
        new_tokens: prompt tokens to compute.
        chunk_tokens: tokens of one chunk.

    Raises:
        InvalidValueError: more than ``MAX_CHUNKS`` chunks.
    """
    count = max(1, int(np.ceil(new_tokens / chunk_tokens)))
    if count > MAX_CHUNKS:
        raise InvalidValueError(
            f"a prompt may be cut into at most {MAX_CHUNKS} chunks, got {count} (of {chunk_tokens} tokens); raise chunk_tokens "
            f"to at least {int(np.ceil(new_tokens / MAX_CHUNKS))}"
        )
    sizes = np.full(count, float(chunk_tokens))
    sizes[-1] = new_tokens - chunk_tokens * (count - 1)
    return sizes


def prefill(
    architectures: Architecture | ArchitectureBatch,
    layouts: Layout | LayoutBatch,
    *,
    input_tokens: float,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    prefix_cache_share: float = 0.0,
    sequences: int | None = None,
    balanced_only: bool = False,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile = DEFAULT_PROFILE,
    **options: Any,
) -> Prefill:
    """Price the prefill of every design on every layout.

    Args:
        architectures: designs, ``(A,)``.
        layouts: layouts, ``(P,)``.
        input_tokens: prompt length, tokens.
        chunk_tokens: tokens of one pass on one attention rank.
        prefix_cache_share: share of the prompt already in the cache.
        sequences: prompts in one pass on one attention rank; ``None`` fills the chunk.
        balanced_only: refuse layouts whose stages do not get equally many layers.
        formats: number formats.
        profile: kernel profile or its name.
        **options: further choices of :class:`.step_options.StepOptions`.

    Returns:
        arrays of shape ``(A, P)``; TTFT by :mod:`.pipeline`, equation (1).

    Raises:
        InvalidValueError: an argument is out of range; more than ``MAX_CHUNKS`` chunks; a stage without a layer; uneven
            stages under ``balanced_only``.
        UnknownKeyError: an unknown option, load, format or profile.
    """
    b, p = as_batch(architectures), as_layouts(layouts)
    prompt = f"at least 1 and at most {MAX_CONTEXT} tokens"
    input_tokens = number("input_tokens", input_tokens, prompt, low=1.0, high=MAX_CONTEXT)
    chunk_tokens = whole("chunk_tokens", chunk_tokens, 1, MAX_CONTEXT)
    below_one = float(np.nextafter(1.0, 0.0))
    prefix_cache_share = number("prefix_cache_share", prefix_cache_share, "at least 0 and below 1", high=below_one)
    if sequences is not None:
        sequences = whole("sequences", sequences, 1, MAX_SEQUENCES)
    for stages in np.unique(p.pp):
        for depth in np.unique(b.num_hidden_layers):
            stage_layers(int(depth), int(stages), balanced_only=balanced_only)
    chosen = require_options(options, formats=formats, profile=profile)
    return price_prefill(b, p, input_tokens, chunk_tokens, prefix_cache_share, sequences, chosen)


def price_prefill(
    b: ArchitectureBatch, p: LayoutBatch, input_tokens: float, chunk_tokens: int, cached_share: float, sequences: int | None,
    options: StepOptions,
) -> Prefill:
    """:func:`prefill` on validated input."""
    options = replace(options, all_to_all_kernel=options.all_to_all_kernel or prompt_kernel(options.profile))
    cached = np.floor(input_tokens * cached_share)
    sizes = chunk_sizes(input_tokens - cached, chunk_tokens)
    together = sequences or max(1, int(chunk_tokens // max(sizes[0], 1.0)))
    past = cached + np.concatenate([[0.0], np.cumsum(sizes)[:-1]])
    shape = (len(p), len(sizes))
    rows = np.broadcast_to(sizes * together, shape)
    plan = build_plan(p, rows, rows * p.dpa[:, None], np.full(shape, float(together)), by_load=True)
    attention = prefill_attention(sizes, past, float(together))
    out, head = np.empty((4, len(b), rows.size)), np.empty((4, len(b), len(p)))
    for piece in chunks(len(b), rows.size):
        found, shown = fill_pass(b.take(piece), plan, attention, options, out[:, piece])
        _move_head(out[:, piece].reshape(4, -1, *shape), head[:, piece], found, shown, shape)
    categories = out.reshape(4, len(b), *shape)
    constant = options.constant(b.kind.attention)
    if constant:
        categories[3] += np.maximum(constant, -0.5 * categories.sum(axis=0))
    return _through_stages(b, p, plan, categories, head, sizes, together, input_tokens, options)


def _move_head(
    out: FloatArray, head: FloatArray, found: Mapping[str, Table], shown: FloatArray | float, shape: tuple[int, int]
) -> None:
    """Take the LM head out of the chunks' ``(4, A, P, N)`` seconds and keep one pass of it in ``head``, ``(4, A, P)``."""
    for index, category in enumerate(CATEGORIES):
        part = gather_category(found, category, shape[0] * shape[1], only=HEAD_PARTS)
        if category == "communication":
            part = part * shown
        part = part.reshape(-1, *shape)
        out[index] -= part
        head[index] = part[:, :, -1]


def _through_stages(
    b: ArchitectureBatch, p: LayoutBatch, plan: StepPlan, layers: FloatArray, head: FloatArray, sizes: FloatArray,
    together: int, input_tokens: float, options: StepOptions,
) -> Prefill:
    per_chunk = layers.sum(axis=0)
    head_seconds = head.sum(axis=0)
    group = (p.tpa * p.kvp)[None]
    message = float(np.max(sizes)) * together / group * (2.0 * b.hidden_size[:, None])
    far = p.gpus > options.profile.hardware.scale_up_gpus
    near_hop, far_hop = (send_seconds(message, scale_out=out, profile=options.profile) for out in (False, True))
    hop = np.where(p.pp > 1, np.where(far, far_hop, near_hop), 0.0)
    ttft, busy = np.empty(head_seconds.shape), np.empty(head_seconds.shape)
    stages_of: dict[tuple[int, int], Schedule] = {}
    for stages in np.unique(p.pp):
        where = np.flatnonzero(p.pp == stages)
        depth = b.num_hidden_layers[:, None]
        counts = depth // stages + (np.arange(stages)[None] < depth % stages)  # (A, S), the fuller stages first
        t = per_chunk[:, where, None, :] * (counts / depth)[:, None, :, None]
        t[:, :, -1, -1] += head_seconds[:, where]
        plan_of = schedule(t, hop[:, where])
        ttft[:, where] = plan_of.makespan_seconds
        busy[:, where] = t.sum(axis=3).max(axis=2)
        if len(b) * len(where) <= 256:  # kept for pictures; a large sweep has no use for it
            for a in range(len(b)):
                for column, position in enumerate(where):
                    stages_of[(a, int(position))] = Schedule(plan_of.start[a, column], plan_of.finish[a, column])
    prompts = together * p.dpa[None] / busy / p.gpus[None]
    per_chunk = per_chunk.copy()
    per_chunk[:, :, -1] += head_seconds
    breakdown = layers.sum(axis=3) + head
    breakdown[2] += hop * (p.pp - 1)[None] * len(sizes)
    return Prefill(
        ttft, prompts, prompts * input_tokens, stage_imbalance(b.num_hidden_layers[:, None], p.pp[None]), breakdown, per_chunk,
        np.broadcast_to(hop, ttft.shape), sizes, together, stages_of,
    )
