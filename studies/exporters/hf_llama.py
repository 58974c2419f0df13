"""Llama and Mistral: dense, full precision rotary attention, no query/key norm."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import DENSE, GQA, PLAIN_LAYERS, Config, Family, all_or_no_windows, attention_fields, no_windows, same_biases


def _llama_refusals(architecture: Architecture) -> list[str]:
    reasons = same_biases(architecture) + no_windows(architecture)
    if architecture.hidden_size % architecture.num_attention_heads:
        reasons.append(
            f"its config class wants hidden_size to be a multiple of num_attention_heads, the design has "
            f"{architecture.hidden_size} and {architecture.num_attention_heads}"
        )
    return reasons


def _llama_fields(architecture: Architecture) -> Config:
    return attention_fields(architecture) | {
        "intermediate_size": architecture.intermediate_size,
        "attention_bias": architecture.qkv_bias,
        "mlp_bias": architecture.ffn_bias,
        "hidden_act": "silu",
    }


def _mistral_fields(architecture: Architecture) -> Config:
    return attention_fields(architecture) | {
        "intermediate_size": architecture.intermediate_size,
        "sliding_window": architecture.sliding_window or None,
        "hidden_act": "silu",
    }


_LLAMA_LAYERS = {**PLAIN_LAYERS, "ffn_bias": (False, True)}

LLAMA = Family(
    name="llama",
    model_class="LlamaForCausalLM",
    needs={**GQA, **DENSE, **_LLAMA_LAYERS, "qk_norm": ("none",)},
    refuse=_llama_refusals,
    fields=_llama_fields,
    rope_theta=500000.0,
)

MISTRAL = Family(
    name="mistral",
    model_class="MistralForCausalLM",
    needs={**GQA, **DENSE, **PLAIN_LAYERS, "qk_norm": ("none",), "qkv_bias": (False,), "output_bias": (False,)},
    refuse=all_or_no_windows,
    fields=_mistral_fields,
    max_position_embeddings=32768,
)
