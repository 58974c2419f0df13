"""One forward pass of all layers over architectures x layouts x loads, as tables of distinct work and their gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import attention_decode_seconds, attention_prefill_seconds
from .batch import ArchitectureBatch
from .memory import ceil_div
from .mla import mla_decode_seconds, mla_prefill_seconds
from .step_options import StepOptions
from .step_parts import column, dense_ffn, exchange, local_communication, local_gemms, local_other, routed_experts
from .step_plan import Keyed, StepPlan

FloatArray = NDArray[np.float64]
CATEGORIES = ("gemm", "attention", "communication", "other")
HEAD_PARTS = ("head_gemm", "head_elementwise", "head_gather")
_CACHE_POINTS = 1 << 15  # points of one chunk: a (A, P, C) array of 256 KiB stays in the level-2 cache
# batch rows, sequences and context on the key's own shape → seconds of one layer
AttentionKernel = Callable[[ArchitectureBatch, Keyed, StepOptions], FloatArray]


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Seconds of one part on its distinct work, ``(A, U)``, with the key that spreads it over the grid."""

    key: Keyed
    seconds: FloatArray
    category: str


def chunks(count: int, points: int) -> Iterator[slice]:
    """Slices of the architecture axis whose grids fit the cache."""
    size = max(1, _CACHE_POINTS // max(points, 1))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def tables(b: ArchitectureBatch, plan: StepPlan, attention: AttentionKernel, options: StepOptions) -> dict[str, Table]:
    """Every part of the pass on its distinct work, all layers together, before any overlap."""
    found: dict[str, Table] = {}
    for name, seconds in local_gemms(b, plan.local, options).items():
        found[name] = Table(plan.local, seconds, "gemm")
    found["attention"] = Table(plan.attention, attention(b, plan.attention, options), "attention")
    gemm, activation = dense_ffn(b, plan.dense, options, shared=False)
    found["dense_ffn_gemm"] = Table(plan.dense, gemm, "gemm")
    if b.kind.moe:
        shared, shared_activation = dense_ffn(b, plan.dense, options, shared=True)
        found["shared_expert_gemm"] = Table(plan.dense, shared, "gemm")
        found["expert_gemm"] = Table(plan.experts, routed_experts(b, plan.experts, options), "gemm")
        activation = activation + shared_activation
    found["activation_elementwise"] = Table(plan.dense, activation, "other")
    for name, seconds in local_other(b, plan.local, options).items():
        found[name] = Table(plan.local, seconds, "other")
    for name, seconds in {**local_communication(b, plan.local, options), **exchange(b, plan.exchange, options)}.items():
        key = plan.local if name in ("attention_all_reduce", "head_gather", "kv_all_to_all") else plan.exchange
        found[name] = Table(key, seconds, "communication")
    return found


def gather_category(found: Mapping[str, Table], category: str, points: int, *, only: tuple[str, ...] = ()) -> FloatArray:
    """Sum of a category's tables over the grid, ``(A, P * C)``: tables of one key are added before they are spread."""
    by_key: dict[int, tuple[Keyed, FloatArray]] = {}
    for name, table in found.items():
        if table.category != category or (only and name not in only):
            continue
        mark = id(table.key)
        by_key[mark] = (table.key, by_key[mark][1] + table.seconds) if mark in by_key else (table.key, table.seconds)
    total: FloatArray | None = None
    for key, seconds in by_key.values():
        spread = key.gather(seconds)
        total = spread if total is None else np.add(total, spread, out=total)
    if total is None:
        rows = next(iter(found.values())).seconds.shape[0]
        return np.zeros((rows, points))
    return total


def hidden_shared_expert(found: Mapping[str, Table], share: float) -> FloatArray | None:
    """Seconds of the shared expert that run beside the routed experts: share · min(shared, routed)."""
    if not share or "shared_expert_gemm" not in found:
        return None
    shared, routed = found["shared_expert_gemm"], found["expert_gemm"]
    return share * np.minimum(shared.key.gather(shared.seconds), routed.key.gather(routed.seconds))


def _gqa_shape(b: ArchitectureBatch, key: Keyed, heads: FloatArray) -> dict[str, Any]:
    kv_heads = ceil_div(column(b.num_key_value_heads), key["tpa"])
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": column(b.head_dim)}


def decode_attention(context: float) -> AttentionKernel:
    """One new token a sequence over ``context`` KV tokens: full and windowed layers, heads over TPA, tokens over KVP."""

    def price(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> FloatArray:
        read = np.maximum(context / key["kvp"], 1.0)
        heads = ceil_div(column(b.num_attention_heads), key["tpa"])
        kv_format, layers = options.formats.kv, column(b.num_hidden_layers)
        if b.kind.attention == "mla":
            each = mla_decode_seconds(
                key["rows"], read, heads=heads, kv_lora_rank=column(b.kv_lora_rank),
                qk_rope_head_dim=column(b.qk_rope_head_dim), kv_format=kv_format, profile=options.profile,
            )
            return np.asarray(layers * each)
        shape = _gqa_shape(b, key, heads)
        full = attention_decode_seconds(key["rows"], read, kv_format=kv_format, profile=options.profile, **shape)
        windowed = column(b.num_sliding_window_layers)
        if not np.any(windowed):
            return np.asarray(layers * full)
        held = np.maximum(np.minimum(column(b.sliding_window), context) / key["kvp"], 1.0)
        held = np.where(windowed > 0, held, 1.0)
        short = attention_decode_seconds(key["rows"], held, kv_format=kv_format, profile=options.profile, **shape)
        return np.asarray((layers - windowed) * full + windowed * short)

    return price


def prefill_attention(new_tokens: FloatArray, past_tokens: FloatArray, sequences: float = 1.0) -> AttentionKernel:
    """``new_tokens`` of each of ``sequences`` prompts after ``past_tokens``; both ``(C,)``, indexed by the key's load."""

    def price(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> FloatArray:
        load = key["load"][0].astype(np.intp)
        kvp = key["kvp"]
        new, past = new_tokens[load][None], past_tokens[load][None] / kvp
        heads = ceil_div(column(b.num_attention_heads), key["tpa"])
        formats, layers = options.formats, column(b.num_hidden_layers)
        if b.kind.attention == "mla":
            each = mla_prefill_seconds(
                sequences, new, past, heads=heads, kv_lora_rank=column(b.kv_lora_rank),
                qk_nope_head_dim=column(b.qk_nope_head_dim), qk_rope_head_dim=column(b.qk_rope_head_dim),
                v_head_dim=column(b.v_head_dim), format=formats.attention, kv_format=formats.kv, profile=options.profile,
            )
            return np.asarray(layers * each)
        shape = _gqa_shape(b, key, heads)
        shape |= {"format": formats.attention, "kv_format": formats.kv, "profile": options.profile}
        full = attention_prefill_seconds(sequences, new, past, **shape)
        windowed = column(b.num_sliding_window_layers)
        if not np.any(windowed):
            return np.asarray(layers * full)
        window = np.where(windowed > 0, column(b.sliding_window), 1.0)
        short = attention_prefill_seconds(sequences, new, past, window=window, **shape)
        return np.asarray((layers - windowed) * full + windowed * short)

    return price
