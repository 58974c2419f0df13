"""The parts of one forward pass on the distinct work of a plan: GEMMs as executed, experts, element-wise.

Every function returns seconds of *all* layers, shape ``(A, U)`` over the distinct combinations of its key (see
:class:`~.step_plan.StepPlan`). GEMMs as executed: fused QKV (heads over TPA, KV heads replicated beyond their
number), attention output (heads over TPA·KVP), fused gate-up, router, LM head over the vocabulary; MLA: fused
down-projections (replicated), up-projections over TPA, absorbed batched products around the latent attention.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Table 1.
    [2] DeepSeek-V3, arXiv 2412.19437, eqs. 1-15.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .gemm import gemm_seconds
from .memory import ceil_div, vocabulary_shard
from .moe import default_kernel, moe_seconds
from .parameters import moe_layers
from .step_options import StepOptions, dynamic_scale_seconds, elementwise_seconds
from .step_plan import Keyed

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
