"""Families with leading dense layers and shared experts: DeepSeek-V3 (MLA) and GLM-4-MoE (GQA)."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import GQA, MLA, PLAIN_LAYERS, Config, Family, attention_fields, dense_width, needs_experts, no_windows


def _refusals(architecture: Architecture) -> list[str]:
    reasons = needs_experts(architecture) + no_windows(architecture)
    shared, routed = architecture.shared_expert_intermediate_size, architecture.moe_intermediate_size
    if architecture.n_shared_experts and shared != routed:
        reasons.append(f"its shared experts are as wide as its routed ones ({routed}), the design's are {shared} wide")
    return reasons


def _expert_fields(architecture: Architecture) -> Config:
    return {
        "intermediate_size": dense_width(architecture),
        "moe_intermediate_size": architecture.moe_intermediate_size,
        "n_routed_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "n_shared_experts": architecture.n_shared_experts,
        "first_k_dense_replace": architecture.first_k_dense_replace,
        "moe_layer_freq": 1,
        "n_group": 1,  # no group-limited routing: any k experts
        "topk_group": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,  # no multi-token-prediction module
        "hidden_act": "silu",
    }


def _deepseek_fields(architecture: Architecture) -> Config:
    return _expert_fields(architecture) | {
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_attention_heads,
        "q_lora_rank": architecture.q_lora_rank or None,
        "kv_lora_rank": architecture.kv_lora_rank,
        "qk_nope_head_dim": architecture.qk_nope_head_dim,
        "qk_rope_head_dim": architecture.qk_rope_head_dim,
        "v_head_dim": architecture.v_head_dim,
        "attention_bias": False,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
    }


def _glm_fields(architecture: Architecture) -> Config:
    return (
        attention_fields(architecture)
        | _expert_fields(architecture)
        | {
            "attention_bias": architecture.qkv_bias,
            "use_qk_norm": architecture.qk_norm == "head",
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 1.0,
        }
    )


DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_class="DeepseekV3ForCausalLM",
    needs={**MLA, **PLAIN_LAYERS, "qk_norm": ("none",), "qkv_bias": (False,), "output_bias": (False,)},
    refuse=_refusals,
    fields=_deepseek_fields,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=163840,
)

GLM4_MOE = Family(
    name="glm4_moe",
    model_class="Glm4MoeForCausalLM",
    needs={**GQA, **PLAIN_LAYERS, "qk_norm": ("none", "head"), "output_bias": (False,)},
    refuse=_refusals,
    fields=_glm_fields,
)
