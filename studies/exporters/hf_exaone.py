"""EXAONE-MoE: experts with any pattern of sliding-window layers, a norm on each query and key head, leading dense layers."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .hf_family import GQA, PLAIN_LAYERS, Config, Family, attention_fields, dense_width, layer_types, needs_experts

UNUSED_WINDOW = 4096  # the class wants a window even where no layer uses it


def _refusals(architecture: Architecture) -> list[str]:
    reasons = needs_experts(architecture)
    shared, routed = architecture.shared_expert_intermediate_size, architecture.moe_intermediate_size
    if architecture.n_shared_experts and shared != routed:
        reasons.append(f"its shared experts are as wide as its routed ones ({routed}), the design's are {shared} wide")
    return reasons


def _fields(architecture: Architecture) -> Config:
    layers, dense = architecture.num_hidden_layers, architecture.first_k_dense_replace
    return attention_fields(architecture) | {
        "intermediate_size": dense_width(architecture),
        "moe_intermediate_size": architecture.moe_intermediate_size,
        "num_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "num_shared_experts": architecture.n_shared_experts,
        "first_k_dense_replace": dense,
        "is_moe_layer": [index >= dense for index in range(layers)],
        "mlp_layer_types": ["dense" if index < dense else "sparse" for index in range(layers)],
        "n_group": 1,  # no group-limited routing: any k experts
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "sliding_window": architecture.sliding_window or UNUSED_WINDOW,
        "layer_types": layer_types(architecture),
        "hidden_act": "silu",
    }


EXAONE_MOE = Family(
    name="exaone_moe",
    model_class="ExaoneMoeForCausalLM",
    needs={**GQA, **PLAIN_LAYERS, "qk_norm": ("head",), "qkv_bias": (False,), "output_bias": (False,)},
    refuse=_refusals,
    fields=_fields,
)
