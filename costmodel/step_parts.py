"""The parts of one forward pass on the distinct work of a plan: GEMMs as executed, experts, exchange, element-wise.

Every function returns seconds of *all* layers, shape ``(A, U)`` over the distinct combinations of its key (see
:class:`~.step_plan.StepPlan`). GEMMs as executed: fused QKV (heads over TPA, KV heads replicated beyond their
number), attention output (heads over TPA·KVP), fused gate-up, router, LM head over the vocabulary; MLA: fused
down-projections (replicated), up-projections over TPA, absorbed batched products around the latent attention.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Table 1, guidelines 5 and 7.
    [2] Helix Parallelism, arXiv 2507.07120, section 2: exchange of partial outputs and log-sum-exps.
    [3] DeepSeek-V3, arXiv 2412.19437, eqs. 1-15.
    [4] SGLang, python/sglang/srt/layers/communicator.py (attention group: reduce-scatter, expert exchange, all-gather);
        vLLM pull requests 24134, 24982 and 46635 (tokens split over the group; reduce-scatter in place of the all-reduce).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    moe_combine_seconds,
    moe_dispatch_seconds,
    reduce_scatter_seconds,
)
from .gemm import gemm_seconds
from .memory import ceil_div, vocabulary_shard
from .moe import default_kernel, moe_seconds
from .parameters import moe_layers
from .profile import KernelProfile
from .step_options import StepOptions, dynamic_scale_seconds, elementwise_seconds
from .step_plan import DISPATCH, GATHER, Keyed

FloatArray = NDArray[np.float64]
Parts = dict[str, FloatArray]
_BF16_BYTES = 2.0
_FP32_BYTES = 4.0
SCALED_PER_TENSOR = ("fp8", "nvfp4")  # formats whose activations carry one FP32 scale a tensor


def column(values: NDArray[np.int64]) -> FloatArray:
    """``(A,)`` as a float column ``(A, 1)``."""
    return values[:, None].astype(np.float64)


def linear_seconds(rows: FloatArray, n: FloatArray, k: FloatArray, *, format: str, options: StepOptions) -> FloatArray:
    """One linear layer: the GEMM, less the dynamic-scale kernel where the checkpoint's scales are static.

    The GEMM keeps at least half of its time, so that a rough table can never make it free.
    """
    seconds = gemm_seconds(rows, n, k, format=format, profile=options.profile)
    share = options.step.static_scales
    if share and format in SCALED_PER_TENSOR:
        saved = share * dynamic_scale_seconds(rows, k, profile=options.profile)
        seconds = np.maximum(seconds - saved, 0.5 * seconds)
    return seconds


@lru_cache(maxsize=64)
def _library(profile: KernelProfile) -> KernelProfile | None:
    """The profile with the general library's (NCCL's) all-reduce in place of the stack's own kernel."""
    fits = profile.families.get("collective", {})
    if "all_reduce" not in fits or not profile.families.get("all_reduce"):
        return None
    families = {**profile.families, "all_reduce": MappingProxyType({"default": fits["all_reduce"]})}
    return replace(profile, families=MappingProxyType(families))


def reduce_seconds(message: FloatArray, ranks: FloatArray, profile: KernelProfile) -> FloatArray:
    """All-reduce by the faster of the stack's own kernel (mostly the shorter messages) and the general library, each message
    by itself: what else is priced in the same call changes nothing.
    """
    seconds, library = all_reduce_seconds(message, ranks, profile=profile), _library(profile)
    if library is None:
        return seconds
    return np.minimum(seconds, all_reduce_seconds(message, ranks, profile=library))


def local_gemms(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Projections around attention, router and LM head: ``qkv_gemm output_gemm router_gemm head_gemm``."""
    f, profile = options.formats, options.profile
    tpa, rows = key["tpa"], key["rows"]
    group = tpa * key["kvp"]
    h, n, layers = column(b.hidden_size), column(b.num_attention_heads), column(b.num_hidden_layers)
    heads, heads_out = ceil_div(n, tpa), ceil_div(n, group)
    parts: Parts = {}
    if b.kind.attention == "mla":
        c, r, rank = column(b.kv_lora_rank), column(b.qk_rope_head_dim), column(b.q_lora_rank)
        nope, v = column(b.qk_nope_head_dim), column(b.v_head_dim)
        down = linear_seconds(rows, c + r + rank, h, format=f.qkv, options=options)
        up = linear_seconds(rows, heads * (nope + r), np.where(rank > 0, rank, h), format=f.qkv, options=options)
        parts["qkv_gemm"] = layers * (down + up)
        width = v
    else:
        width = column(b.head_dim)
        fused = (heads + 2 * ceil_div(column(b.num_key_value_heads), tpa)) * width
        parts["qkv_gemm"] = layers * linear_seconds(rows, fused, h, format=f.qkv, options=options)
    parts["output_gemm"] = layers * linear_seconds(rows, h, heads_out * width, format=f.attention_output, options=options)
    if b.kind.moe:
        router = gemm_seconds(rows, column(b.num_experts), h, format=f.router, profile=profile)
        parts["router_gemm"] = np.asarray(moe_layers(b))[:, None] * router
    vocabulary = vocabulary_shard(column(b.vocab_size), group)
    parts["head_gemm"] = gemm_seconds(key["head_rows"], vocabulary, h, format=f.lm_head, profile=profile)
    return parts


def local_other(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Norms with residuals, latent norms, embedding look-up and sampling: ``norm_elementwise head_elementwise``.

    A fused residual-and-norm kernel reads the update and the residual and writes both back: 4·H values of 2 B a token.
    Sampling reads the logits of the whole vocabulary once (FP32).
    """
    profile, rows = options.profile, key["rows"]
    h, layers = column(b.hidden_size), column(b.num_hidden_layers)
    norms = b.kind.norms_per_layer
    moved, kernels = norms * 4 * h * _BF16_BYTES, float(norms)
    if b.kind.attention == "mla":
        moved, kernels = moved + 2 * _BF16_BYTES * (column(b.q_lora_rank) + column(b.kv_lora_rank)), kernels + 1
    head = key["head_rows"] * (column(b.vocab_size) * _FP32_BYTES) + rows * (6 * h * _BF16_BYTES)
    return {
        "norm_elementwise": layers * elementwise_seconds(rows * moved, kernels=kernels, profile=profile),
        "head_elementwise": elementwise_seconds(head, kernels=3, profile=profile),
    }


def on_columns(where: NDArray[np.bool_], b: ArchitectureBatch, price: Callable[[NDArray[np.intp]], FloatArray]) -> FloatArray:
    """``price`` of the columns at ``where``, 0 elsewhere, ``(A, U)``: work that few layouts have is priced for those alone."""
    index = np.flatnonzero(where)
    if len(index) == len(where):
        return price(index)
    out = np.zeros((len(b), len(where)))
    if len(index):
        out[:, index] = price(index)
    return out


def local_communication(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Collectives of the attention group that do not depend on the FFN: ``head_gather kv_all_to_all``.

    head_gather: all-gather of the logits and one all-reduce for the embedding of a sharded vocabulary. KVP: each GPU
    holds rows·(n_h/TPA)·d_o partial outputs (BF16) and as many log-sum-exps as heads (FP32) and sends (KVP-1)/KVP of
    them [2]; d_o is the head size, or the latent before an absorbed value up-projection.
    """
    profile, rows = options.profile, key["rows"]
    tpa, kvp = key["tpa"], key["kvp"]
    group = tpa * kvp

    def head(at: NDArray[np.intp]) -> FloatArray:
        logits = key["head_rows"][:, at] * (column(b.vocab_size) * _BF16_BYTES)
        embedding = reduce_seconds(rows[:, at] * (column(b.hidden_size) * _BF16_BYTES), group[:, at], profile)
        return all_gather_seconds(logits, group[:, at], profile=profile) + embedding

    parts = {"head_gather": on_columns(group[0] > 1, b, head)}
    if np.any(kvp > 1):
        width = column(b.kv_lora_rank if b.kind.attention == "mla" else b.head_dim)

        def outputs(at: NDArray[np.intp]) -> FloatArray:
            heads = ceil_div(column(b.num_attention_heads), tpa[:, at])
            held = rows[:, at] * heads * (width * _BF16_BYTES + _FP32_BYTES)
            return column(b.num_hidden_layers) * all_to_all_seconds(held, kvp[:, at], profile=profile)

        parts["kv_all_to_all"] = on_columns(kvp[0] > 1, b, outputs)
    return parts


def dense_ffn(b: ArchitectureBatch, key: Keyed, options: StepOptions, *, shared: bool) -> tuple[FloatArray, FloatArray]:
    """GEMM and activation seconds of the dense FFN layers, or of the shared experts of the MoE layers.

    Fused gate-up (N = 2·width/ranks), then down (K = width/ranks).
    """
    profile, rows = options.profile, key["rows"]
    sparse = np.asarray(moe_layers(b), dtype=np.float64)
    width = b.n_shared_experts * b.shared_expert_intermediate_size if shared else b.intermediate_size
    layers = (sparse if shared else b.num_hidden_layers - sparse) * (width > 0)
    if not np.any(layers > 0):
        zero = np.zeros((len(b), rows.shape[1]))
        return zero, zero
    h, shard = column(b.hidden_size), ceil_div(column(np.maximum(width, 1)), key["ranks"])
    gates = 2 if b.kind.gated_ffn else 1
    first = linear_seconds(rows, gates * shard, h, format=options.formats.ffn, options=options)
    second = linear_seconds(rows, h, shard, format=options.formats.ffn, options=options)
    activation = elementwise_seconds(rows * (shard * (gates + 1) * _BF16_BYTES), profile=profile)
    return layers[:, None] * (first + second), layers[:, None] * activation


def routed_experts(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> FloatArray:
    """Routed experts on the slowest rank, each layout with the kernel its stack runs there."""

    def price(kernel: str | None) -> FloatArray:
        return moe_seconds(
            key["tokens"],
            hidden_size=column(b.hidden_size),
            moe_intermediate_size=column(b.moe_intermediate_size),
            num_experts=column(b.num_experts),
            top_k=column(b.num_experts_per_tok),
            ep=key["ep"],
            tp=key["tpf"],
            format=options.formats.experts,
            gated=b.kind.gated_ffn,
            load=options.load,
            kernel=kernel,
            profile=options.profile,
        )

    profile, number = options.profile, options.formats.experts
    plain = options.moe_kernel or default_kernel(profile, number, attention_data_parallel=False)
    other = options.wide_moe_kernel or default_kernel(profile, number, attention_data_parallel=True)
    wide = key["wide"] > 0
    seconds = price(plain) if not np.all(wide) else price(other)
    if other != plain and np.any(wide) and not np.all(wide):
        seconds = np.where(wide, price(other), seconds)
    return np.asarray(np.asarray(moe_layers(b))[:, None] * seconds)


def exchange(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Communication between attention and FFN and back; the modes of :mod:`.step_plan`, each on its own columns.

    ``attention_all_reduce``: partial outputs of the attention group's TPA·KVP ranks are summed, every layer.
    REDUCE: ``ffn_all_reduce`` of the partial sums over the same ranks.
    GATHER: ``ffn_gather``: all-gather of the tokens, reduce-scatter of the sums, over all ranks.
    DISPATCH: expert all-to-all, ``dispatch`` and ``combine``, on each GPU's share of its group's tokens. A MoE layer of a
    TPA·KVP group therefore scatters its sums over the group before (``attention_reduce_scatter``) and gathers the tokens
    after (``ffn_all_gather``) instead of two all-reduces [4], each by the faster of that kernel and the all-reduce that
    contains it. Dense layers stay on their group: two all-reduces.
    """
    mode, parts = key["mode"][0], dict[str, FloatArray]()
    sparse = np.asarray(moe_layers(b), dtype=np.float64)[:, None]
    layers, profile, group = column(b.num_hidden_layers), options.profile, key["group"]
    message, total = key["rows"] * (column(b.hidden_size) * _BF16_BYTES), key["tokens"] * (column(b.hidden_size) * _BF16_BYTES)
    scattered, grouped = mode == DISPATCH, group[0] > 1

    reduce = on_columns(grouped, b, lambda at: reduce_seconds(message[:, at], group[:, at], profile))
    parts["attention_all_reduce"] = np.where(scattered, layers - sparse, layers) * reduce
    if np.any(mode != GATHER):  # the FFN's sums go over the same ranks, in messages of the same size
        parts["ffn_all_reduce"] = np.where(mode == GATHER, 0.0, parts["attention_all_reduce"])
    if np.any(mode == GATHER):
        n = key["ranks"]
        parts["ffn_gather"] = layers * on_columns(
            mode == GATHER,
            b,
            lambda at: all_gather_seconds(total[:, at], n[:, at], profile=profile)
            + reduce_scatter_seconds(total[:, at], n[:, at], profile=profile),
        )
    if not b.kind.moe or not np.any(scattered):
        return parts
    for name, phase in _PHASES.items():
        parts[name] = sparse * on_columns(scattered, b, partial(phase, b, key, options))
    if np.any(scattered & grouped):
        for name, move in _MOVES.items():
            # an all-reduce does it too: each rank keeps its slice of the sum, or adds its slice to zeros
            def moved(at: NDArray[np.intp], move: Callable[..., FloatArray] = move) -> FloatArray:
                return np.asarray(np.minimum(move(message[:, at], group[:, at], profile=profile), reduce[:, at]))

            parts[name] = sparse * on_columns(scattered & grouped, b, moved)
    return parts


_MOVES = MappingProxyType({"attention_reduce_scatter": reduce_scatter_seconds, "ffn_all_gather": all_gather_seconds})


def _dispatch(b: ArchitectureBatch, key: Keyed, options: StepOptions, at: NDArray[np.intp]) -> FloatArray:
    """One layer's tokens to their experts' ranks; inside an expert's TPF ranks the arriving tokens are gathered."""
    number = options.formats.experts
    seconds = moe_dispatch_seconds(format=number, **_exchanged(b, key, at, options))
    tpf = key["tpf"][:, at]
    if np.any(tpf > 1):
        arrived = _arrived(b, key, at) * options.profile.hardware.number_format(number).activation_bytes
        seconds = seconds + all_gather_seconds(arrived, tpf, profile=options.profile)
    return seconds


def _combine(b: ArchitectureBatch, key: Keyed, options: StepOptions, at: NDArray[np.intp]) -> FloatArray:
    """One layer's outputs back; inside an expert's TPF ranks the partial sums are scattered."""
    seconds = moe_combine_seconds(**_exchanged(b, key, at, options))
    tpf = key["tpf"][:, at]
    if np.any(tpf > 1):
        seconds = seconds + reduce_scatter_seconds(_arrived(b, key, at) * _BF16_BYTES, tpf, profile=options.profile)
    return seconds


_PHASES = MappingProxyType({"dispatch": _dispatch, "combine": _combine})


def _exchanged(b: ArchitectureBatch, key: Keyed, at: NDArray[np.intp], options: StepOptions) -> dict[str, Any]:
    """What both directions of the expert all-to-all share."""
    return {
        "tokens_per_gpu": key["rows"][:, at] / key["group"][:, at],
        "ep": key["ep"][:, at],
        "hidden_size": column(b.hidden_size),
        "top_k": column(b.num_experts_per_tok),
        "num_experts": column(b.num_experts),
        "load": options.load,
        "kernel": options.all_to_all_kernel,
        "profile": options.profile,
    }


def _arrived(b: ArchitectureBatch, key: Keyed, at: NDArray[np.intp]) -> FloatArray:
    """Values that reach an expert's TPF ranks: copies of a token over the EP groups, its own included, EP·(1 - (1 - 1/EP)^k)."""
    ep, tpf = key["ep"][:, at], key["tpf"][:, at]
    copies = ep * (1.0 - (1.0 - 1.0 / ep) ** column(b.num_experts_per_tok))
    return np.asarray(key["rows"][:, at] / key["group"][:, at] * copies * tpf * column(b.hidden_size))
