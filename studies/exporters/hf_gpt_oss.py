"""gpt-oss: experts with biases in every layer, attention sinks, any pattern of sliding-window layers."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import GQA, NO_SHARED_EXPERTS, Config, Family, attention_fields, layer_types, needs_experts

UNUSED_WINDOW = 128  # the class wants a window even where no layer uses it


def _fields(architecture: Architecture) -> Config:
    return attention_fields(architecture) | {
        "intermediate_size": architecture.moe_intermediate_size,  # gpt-oss's name for the width of one expert
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "experts_per_token": architecture.num_experts_per_tok,
        "attention_bias": True,
        "sliding_window": architecture.sliding_window or UNUSED_WINDOW,
        "layer_types": layer_types(architecture),
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
    }


GPT_OSS = Family(
    name="gpt_oss",
    model_class="GptOssForCausalLM",
    needs={
        **GQA,
        **NO_SHARED_EXPERTS,
        "gated_ffn": (True,),
        "norms_per_layer": (2,),
        "attention_sinks": (True,),
        "qk_norm": ("none",),
        "qkv_bias": (True,),
        "output_bias": (True,),
        "ffn_bias": (True,),
        "router_bias": (True,),
        "first_k_dense_replace": (0,),
    },
    refuse=needs_experts,
    fields=_fields,
    rope_theta=150000.0,
)
