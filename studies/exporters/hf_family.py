"""What a Hugging Face model family is to the exporter: a name, what it cannot express, and its config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...costmodel.architecture import Architecture

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One model family of the ``transformers`` library.

    Attributes:
        name: its ``model_type``.
        model_class: the class that ``architectures`` of a config.json names.
        needs: field of :class:`Architecture` → the values the family's layers can have.
        refuse: reasons beyond ``needs`` why a design does not fit, empty where it does.
        fields: the family's own config keys for a design that fits.
        rope_theta: the rotary base its released models use (not priced; a trainer's choice).
        rms_norm_eps: the norms' epsilon of its released models (not priced).
        max_position_embeddings: longest context of its released models, tokens (not priced).

    Sources of the three: the released config.json of Llama-3.1-8B, Mistral-7B-v0.3 (its epsilon: not re-checked), Mixtral-8x7B,
    Qwen3-8B, Qwen3-30B-A3B, DeepSeek-V3 and gpt-oss-20b; for Qwen2 and GLM-4 MoE the configuration classes' defaults
    (transformers 5.24.0). EXAONE MoE: epsilon of the class, the length is this project's choice.
    """

    name: str
    model_class: str
    needs: dict[str, tuple[Any, ...]]
    fields: Callable[[Architecture], Config]
    refuse: Callable[[Architecture], list[str]] = field(default=lambda architecture: [])
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 131072

    def refusals(self, architecture: Architecture) -> list[str]:
        """Why ``architecture`` cannot be written in this family; empty where it can."""
        reasons = []
        for name, allowed in self.needs.items():
            value = getattr(architecture, name)
            if value not in allowed:
                wanted = " or ".join(str(item) for item in allowed)
                reasons.append(f"its {name} is always {wanted}, the design has {value}")
        return reasons + self.refuse(architecture)


# What a family without these features needs the design to have.
DENSE: dict[str, tuple[Any, ...]] = {"num_experts": (0,)}
PLAIN_LAYERS: dict[str, tuple[Any, ...]] = {
    "gated_ffn": (True,),
    "norms_per_layer": (2,),
    "attention_sinks": (False,),
    "ffn_bias": (False,),
    "router_bias": (False,),
}
NO_SHARED_EXPERTS: dict[str, tuple[Any, ...]] = {"n_shared_experts": (0,)}
GQA: dict[str, tuple[Any, ...]] = {"attention": ("gqa",)}
MLA: dict[str, tuple[Any, ...]] = {"attention": ("mla",)}


def needs_experts(architecture: Architecture) -> list[str]:
    """A family whose layers always hold experts."""
    return [] if architecture.num_experts else ["it is a mixture of experts, the design is dense (num_experts 0)"]


def same_biases(architecture: Architecture) -> list[str]:
    """A family with one switch for the biases of all four attention projections."""
    if architecture.qkv_bias == architecture.output_bias:
        return []
    return [
        "its attention_bias switches query, key, value and output biases together, the design has "
        f"qkv_bias {architecture.qkv_bias} and output_bias {architecture.output_bias}"
    ]


def no_windows(architecture: Architecture) -> list[str]:
    """A family without sliding windows."""
    count = architecture.num_sliding_window_layers
    return [f"it has no sliding-window layers, the design has {count}"] if count else []


def all_or_no_windows(architecture: Architecture) -> list[str]:
    """A family whose window holds for every layer or for none."""
    if architecture.num_sliding_window_layers in (0, architecture.num_hidden_layers):
        return []
    return [
        f"its window holds for all layers or none, the design has {architecture.num_sliding_window_layers} "
        f"of {architecture.num_hidden_layers}"
    ]


def layer_types(architecture: Architecture) -> list[str]:
    """Window pattern by layer, windowed layers spread evenly, the first layer windowed.

    Layer i is windowed where ceil((i + 1)·w/L) > ceil(i·w/L), with w windowed layers of L.
    """
    layers, windowed = architecture.num_hidden_layers, architecture.num_sliding_window_layers
    steps = [-(-i * windowed // layers) for i in range(layers + 1)]
    return ["sliding_attention" if steps[i + 1] > steps[i] else "full_attention" for i in range(layers)]


def attention_fields(architecture: Architecture) -> Config:
    """Heads and their size under MHA, GQA and MQA."""
    return {
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_key_value_heads,
        "head_dim": architecture.head_dim,
    }


def dense_width(architecture: Architecture) -> int:
    """Width of the dense FFN; where a MoE has no dense layer, the width a token's experts add up to.

    Families with experts ask for an ``intermediate_size`` even when no layer uses it.
    """
    active = architecture.num_experts_per_tok * architecture.moe_intermediate_size
    shared = architecture.n_shared_experts * architecture.shared_expert_intermediate_size
    return architecture.intermediate_size or active + shared
