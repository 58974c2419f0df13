"""Qwen2 (query/key/value biases), Qwen3 (a norm on each query and key head) and Qwen3-MoE."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import (
    DENSE,
    GQA,
    NO_SHARED_EXPERTS,
    PLAIN_LAYERS,
    Config,
    Family,
    all_or_no_windows,
    attention_fields,
    dense_width,
    layer_types,
    needs_experts,
    same_biases,
)


def _window_fields(architecture: Architecture) -> Config:
    windowed = architecture.num_sliding_window_layers
    if not windowed:
        return {"use_sliding_window": False, "sliding_window": None, "max_window_layers": architecture.num_hidden_layers}
    # max_window_layers: layers below it are full; 0 where every layer is windowed, the pattern itself is layer_types
    return {
        "use_sliding_window": True,
        "sliding_window": architecture.sliding_window,
        "max_window_layers": architecture.num_hidden_layers - windowed,
        "layer_types": layer_types(architecture),
    }


def _qwen2_refusals(architecture: Architecture) -> list[str]:
    if architecture.head_dim * architecture.num_attention_heads == architecture.hidden_size:
        return []
    return [
        "servers read its head size as hidden_size / num_attention_heads, the design has "
        f"{architecture.head_dim} at {architecture.hidden_size} / {architecture.num_attention_heads}"
    ]


def _dense_fields(architecture: Architecture) -> Config:
    return (
        attention_fields(architecture)
        | {"intermediate_size": architecture.intermediate_size, "hidden_act": "silu"}
        | _window_fields(architecture)
    )


def _qwen3_fields(architecture: Architecture) -> Config:
    return _dense_fields(architecture) | {"attention_bias": architecture.qkv_bias}


def _moe_refusals(architecture: Architecture) -> list[str]:
    return needs_experts(architecture) + same_biases(architecture) + all_or_no_windows(architecture)


def _moe_fields(architecture: Architecture) -> Config:
    return attention_fields(architecture) | {
        "intermediate_size": dense_width(architecture),
        "moe_intermediate_size": architecture.moe_intermediate_size,
        "num_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(architecture.first_k_dense_replace)),
        "attention_bias": architecture.qkv_bias,
        "use_sliding_window": bool(architecture.num_sliding_window_layers),
        "sliding_window": architecture.sliding_window or None,
        "max_window_layers": architecture.num_hidden_layers - architecture.num_sliding_window_layers,
        "hidden_act": "silu",
    }


QWEN2 = Family(
    name="qwen2",
    model_class="Qwen2ForCausalLM",
    needs={**GQA, **DENSE, **PLAIN_LAYERS, "qk_norm": ("none",), "qkv_bias": (True,), "output_bias": (False,)},
    refuse=_qwen2_refusals,
    fields=_dense_fields,
    rms_norm_eps=1e-6,
    max_position_embeddings=32768,
)

QWEN3 = Family(
    name="qwen3",
    model_class="Qwen3ForCausalLM",
    needs={**GQA, **DENSE, **PLAIN_LAYERS, "qk_norm": ("head",)},
    refuse=same_biases,
    fields=_qwen3_fields,
    rms_norm_eps=1e-6,
    max_position_embeddings=40960,
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    needs={**GQA, **NO_SHARED_EXPERTS, **PLAIN_LAYERS, "qk_norm": ("head",)},
    refuse=_moe_refusals,
    fields=_moe_fields,
    rms_norm_eps=1e-6,
    max_position_embeddings=40960,
)
