"""What fits: weight bytes, KV-cache bytes and the concurrency they leave, over architectures x layouts.

Rules (per GPU)::

    weights + sequences_per_rank * kv_per_sequence <= usable_fraction * HBM
    concurrency = DPA * floor((usable_fraction * HBM - weights) / kv_per_sequence)

Weights lie as the decode step computes them: query heads over TPA, KV heads over TPA and replicated beyond their
number, attention output over TPA*KVP, dense FFN over :func:`dense_ffn_ranks`, shared experts over
:func:`shared_expert_ranks`, experts over EP and their width over TPF, vocabulary over TPA*KVP padded to 128 rows a
rank, layers over PP (the fullest stage counts). The embedding table and the norms are BF16. What ``usable_fraction``
keeps back pays for activations, communication buffers, graphs and the driver.

References:
    [1] vLLM engine arguments, ``gpu_memory_utilization``: 0.9 of the device by default (status: datasheet).
    [2] Helix Parallelism, arXiv 2507.07120: KV cache sharded over the sequence, weights reused by the FFN.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .architecture import Architecture
from .batch import ArchitectureBatch
from .checks import number
from .errors import InvalidValueError, shown
from .formats import TensorFormats, get_format
from .hardware import Hardware, load_hardware
from .layout import Layout, LayoutBatch
from .parameters import moe_layers

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
USABLE_FRACTION = 0.90  # of HBM for weights and KV cache; source [1], status: datasheet
VOCABULARY_MULTIPLE = 128  # rows a vocabulary shard is padded to; vLLM and TensorRT-LLM pad alike (datasheet)
_BF16_BYTES = 2.0


def as_batch(architectures: Architecture | ArchitectureBatch) -> ArchitectureBatch:
    """A batch, whatever was given: one design gives the same batch at every call.

    Raises:
        InvalidValueError: neither a design nor a batch of them.
    """
    if isinstance(architectures, ArchitectureBatch):
        return architectures
    if isinstance(architectures, Architecture):
        return _batch_of(architectures)
    raise InvalidValueError(
        f"architectures must be an Architecture or an ArchitectureBatch, got {shown(architectures)}; a list of designs of one "
        "kind becomes a batch by ArchitectureBatch.from_architectures, a mixed one by group_by_kind"
    )


def as_layouts(layouts: Layout | LayoutBatch) -> LayoutBatch:
    """A layout batch, whatever was given: one layout gives the same batch at every call (plans are kept by batch).

    Raises:
        InvalidValueError: neither a layout nor a batch of them.
    """
    if isinstance(layouts, LayoutBatch):
        return layouts
    if isinstance(layouts, Layout):
        return _layouts_of(layouts)
    raise InvalidValueError(
        f"layouts must be a Layout or a LayoutBatch, got {shown(layouts)}; a list becomes a batch by LayoutBatch.from_layouts, "
        "text a layout by Layout.parse"
    )


@lru_cache(maxsize=1024)
def _batch_of(architecture: Architecture) -> ArchitectureBatch:
    return ArchitectureBatch.from_architectures([architecture])


@lru_cache(maxsize=1024)
def _layouts_of(layout: Layout) -> LayoutBatch:
    return LayoutBatch.from_layouts([layout])


def ceil_div(a: Any, b: Any) -> Any:
    """Whole shards: ceil(a / b) of integer arrays."""
    return -(-np.asarray(a) // np.asarray(b))


def dense_ffn_ranks(layouts: LayoutBatch) -> IntArray:
    """Ranks a dense FFN is split over, shape ``(P,)``.

    All TPF*EP ranks where they see the same tokens (no attention DP, or an FFN without expert parallelism, which
    gathers them); the attention group TPA*KVP where tokens stay on their DP rank (attention DP with EP): replicated
    per DP rank, as servers do.
    """
    return np.where((layouts.ep == 1) | (layouts.dpa == 1), layouts.stage_gpus, layouts.tpa * layouts.kvp)


def shared_expert_ranks(layouts: LayoutBatch) -> IntArray:
    """Ranks a shared expert is split over, shape ``(P,)``.

    As :func:`dense_ffn_ranks`, except that under attention DP with EP every rank holds it whole: between the two exchanges
    a group's tokens lie split over its ranks, and each computes its own (vLLM pull request 50656 describes that default).
    """
    return np.where((layouts.ep == 1) | (layouts.dpa == 1), layouts.stage_gpus, 1)


def vocabulary_shard(vocab_size: ArrayLike, ranks: ArrayLike) -> IntArray:
    """Rows of one vocabulary shard: padded to 128·ranks, divided by ranks."""
    multiple = VOCABULARY_MULTIPLE * np.asarray(ranks)
    return np.asarray(ceil_div(vocab_size, multiple) * VOCABULARY_MULTIPLE)


def attention_weight_bytes(b: ArchitectureBatch, layouts: LayoutBatch, formats: TensorFormats) -> FloatArray:
    """Attention weights of one layer on one GPU, B, shape ``(A, P)``."""
    h, n, tpa = b.hidden_size[:, None], b.num_attention_heads[:, None], layouts.tpa[None]
    group = tpa * layouts.kvp[None]
    w_in, w_out = get_format(formats.qkv).weight_bytes, get_format(formats.attention_output).weight_bytes
    heads = ceil_div(n, tpa)
    if b.kind.attention == "mla":
        c, r = b.kv_lora_rank[:, None], b.qk_rope_head_dim[:, None]
        nope, v, rank = b.qk_nope_head_dim[:, None], b.v_head_dim[:, None], b.q_lora_rank[:, None]
        query = np.where(rank > 0, h * rank + rank * heads * (nope + r), h * heads * (nope + r))
        absorbed = c * heads * (nope + v) * get_format(formats.attention).weight_bytes
        return np.asarray((query + h * (c + r)) * w_in + absorbed + ceil_div(n, group) * v * h * w_out)
    kv = ceil_div(b.num_key_value_heads[:, None], tpa)
    d = b.head_dim[:, None]
    return np.asarray(h * (heads + 2 * kv) * d * w_in + ceil_div(n, group) * d * h * w_out)


def weight_bytes_per_gpu(
    architectures: Architecture | ArchitectureBatch, layouts: Layout | LayoutBatch, formats: TensorFormats | None = None
) -> FloatArray:
    """Weight bytes of the fullest GPU, B, shape ``(A, P)``.

    Args:
        architectures: designs, ``(A,)``.
        layouts: layouts, ``(P,)``.
        formats: number formats of the tensor classes.

    Raises:
        InvalidValueError: something is no design or layout.
    """
    b, p, formats = as_batch(architectures), as_layouts(layouts), formats or TensorFormats()
    h, layers = b.hidden_size[:, None], b.num_hidden_layers[:, None]
    sparse = np.asarray(moe_layers(b))[:, None]
    matrices = 3 if b.kind.gated_ffn else 2
    ranks = dense_ffn_ranks(p)[None]
    norms = b.kind.norms_per_layer * h * _BF16_BYTES
    ffn_bytes = get_format(formats.ffn).weight_bytes
    total = layers * (attention_weight_bytes(b, p, formats) + norms)
    total = total + (layers - sparse) * matrices * h * ceil_div(b.intermediate_size[:, None], ranks) * ffn_bytes
    if b.kind.moe:
        experts = ceil_div(b.num_experts[:, None], p.ep[None]) * ceil_div(b.moe_intermediate_size[:, None], p.tpf[None])
        width = (b.n_shared_experts * b.shared_expert_intermediate_size)[:, None]
        shared = ceil_div(width, shared_expert_ranks(p)[None])
        router = b.num_experts[:, None] * h * get_format(formats.router).weight_bytes
        total = total + sparse * (matrices * h * experts * get_format(formats.experts).weight_bytes)
        total = total + sparse * (matrices * h * shared * ffn_bytes + router)
    stages = p.pp[None]
    total = total * ceil_div(layers, stages) / layers
    rows = vocabulary_shard(b.vocab_size[:, None], (p.tpa * p.kvp)[None])
    embedding = rows * h * _BF16_BYTES
    head = (rows * get_format(formats.lm_head).weight_bytes + _BF16_BYTES) * h  # with the final norm
    both = np.maximum(embedding, head) if b.kind.tie_word_embeddings else embedding + head
    return np.asarray(total + np.where(stages > 1, np.maximum(embedding, head), both), dtype=np.float64)


def _kv_values(b: ArchitectureBatch, tpa: ArrayLike) -> Any:
    """KV values of one token and layer on one GPU, shape ``(A, P)``; MLA's latent is whole on every rank."""
    tpa = np.asarray(tpa)
    if b.kind.attention == "mla":
        return (b.kv_lora_rank + b.qk_rope_head_dim)[:, None] + 0 * tpa[None]
    return 2 * ceil_div(b.num_key_value_heads[:, None], tpa[None]) * b.head_dim[:, None]


def kv_bytes_per_token(architectures: Architecture | ArchitectureBatch, formats: TensorFormats | None = None) -> FloatArray:
    """KV-cache bytes of one token over all layers, unsharded, B, shape ``(A,)``.

    DeepSeek-R1 in FP8: (512 + 64)·61 = 35,136 B. A windowed layer counts like any other: it does store the token
    until the window has passed.
    """
    b = as_batch(architectures)
    stored = get_format((formats or TensorFormats()).kv).activation_bytes
    return np.asarray(_kv_values(b, np.ones(1, np.int64))[:, 0] * b.num_hidden_layers * stored, dtype=np.float64)


def kv_bytes_per_sequence_per_gpu(
    architectures: Architecture | ArchitectureBatch,
    layouts: Layout | LayoutBatch,
    context: float,
    formats: TensorFormats | None = None,
) -> FloatArray:
    """KV-cache bytes that one sequence of ``context`` tokens takes on each GPU of its attention group, B, ``(A, P)``.

    Sharded over KV heads (TPA, replicated beyond their number), over the sequence (KVP) and over layers (PP, the
    fullest stage); windowed layers hold at most their window.

    Args:
        architectures: designs, ``(A,)``.
        layouts: layouts, ``(P,)``.
        context: tokens the sequence holds.
        formats: number formats; the cache's counts.

    Raises:
        InvalidValueError: ``context`` is not positive and finite, or something is no design or layout.
    """
    b, p = as_batch(architectures), as_layouts(layouts)
    context = number("context", context, "a positive number of tokens", above=True)
    stored = get_format((formats or TensorFormats()).kv).activation_bytes
    layers, windowed = b.num_hidden_layers[:, None], b.num_sliding_window_layers[:, None]
    held = np.minimum(np.where(b.sliding_window > 0, b.sliding_window, np.inf), context)[:, None]
    kvp = p.kvp[None]
    tokens = (layers - windowed) * np.ceil(context / kvp) + windowed * np.ceil(held / kvp)
    share = ceil_div(layers, p.pp[None]) / layers
    return np.asarray(_kv_values(b, p.tpa) * tokens * share * stored, dtype=np.float64)


def max_concurrency(
    architectures: Architecture | ArchitectureBatch,
    layouts: Layout | LayoutBatch,
    *,
    context: float,
    formats: TensorFormats | None = None,
    hardware: str | Hardware,
    usable_fraction: float = USABLE_FRACTION,
) -> FloatArray:
    """Whole sequences of ``context`` tokens one replica holds, shape ``(A, P)``; 0 = it does not fit.

    Args:
        architectures: designs, ``(A,)``.
        layouts: layouts, ``(P,)``.
        context: tokens a sequence holds when it ends (input + output).
        formats: number formats.
        hardware: GPU or its name.
        usable_fraction: share of HBM for weights and KV cache.

    Raises:
        InvalidValueError: a number out of range, or something is no design or layout.
        UnknownKeyError: no such hardware.
    """
    b, p = as_batch(architectures), as_layouts(layouts)
    usable_fraction = number("usable_fraction", usable_fraction, "above 0 and at most 1", above=True, high=1.0)
    free = usable_fraction * load_hardware(hardware).memory_bytes - weight_bytes_per_gpu(b, p, formats)
    per_sequence = kv_bytes_per_sequence_per_gpu(b, p, context, formats)
    return np.asarray(np.maximum(np.floor(free / per_sequence), 0.0) * p.dpa[None])


def gpus_needed(
    architecture: Architecture, *, context: float, concurrency: float = 1, formats: TensorFormats | None = None,
    hardware: str | Hardware, usable_fraction: float = USABLE_FRACTION,
) -> int:
    """Smallest number of GPUs whose memory holds the weights once and ``concurrency`` sequences, however they are spread.

    Args:
        architecture: one design.
        context: tokens a sequence holds when it ends.
        concurrency: sequences.
        formats: number formats.
        hardware: GPU or its name.
        usable_fraction: share of HBM for weights and KV cache.

    Raises:
        InvalidValueError: a number out of range.
        UnknownKeyError: no such hardware.
    """
    concurrency = number("concurrency", concurrency, "a positive number of sequences", above=True)
    usable_fraction = number("usable_fraction", usable_fraction, "above 0 and at most 1", above=True, high=1.0)
    b, one = as_batch(architecture), Layout()
    weights = float(weight_bytes_per_gpu(b, one, formats)[0, 0])
    cache = float(kv_bytes_per_sequence_per_gpu(b, one, context, formats)[0, 0]) * concurrency
    return int(np.ceil((weights + cache) / (usable_fraction * load_hardware(hardware).memory_bytes)))
