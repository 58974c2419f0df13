"""Mixtral: experts in every layer, no query/key norm, no shared expert."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import GQA, NO_SHARED_EXPERTS, PLAIN_LAYERS, Config, Family, all_or_no_windows, attention_fields, needs_experts


def _refusals(architecture: Architecture) -> list[str]:
    return needs_experts(architecture) + all_or_no_windows(architecture)


def _fields(architecture: Architecture) -> Config:
    return attention_fields(architecture) | {
        "intermediate_size": architecture.moe_intermediate_size,  # Mixtral's name for the width of one expert
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "sliding_window": architecture.sliding_window or None,
        "hidden_act": "silu",
    }


MIXTRAL = Family(
    name="mixtral",
    model_class="MixtralForCausalLM",
    needs={
        **GQA,
        **NO_SHARED_EXPERTS,
        **PLAIN_LAYERS,
        "qk_norm": ("none",),
        "qkv_bias": (False,),
        "output_bias": (False,),
        "first_k_dense_replace": (0,),
    },
    refuse=_refusals,
    fields=_fields,
    max_position_embeddings=32768,
)
