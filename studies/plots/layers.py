"""The matrix products of one design on one GPU, as executed: fused QKV, fused gate-up, experts by their own tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ...costmodel.architecture import Architecture
from ...costmodel.formats import TensorFormats
from ...costmodel.layout import Layout


@dataclass(frozen=True, slots=True)
class LayerGemm:
    """One matrix product C[M, N] = A[M, K]·B[K, N] of one GPU.

    Attributes:
        name: for people.
        n: output width of the shard.
        k: reduction length of the shard.
        format: number format of weights and activations.
        experts: routed experts of the GPU that run as one grouped kernel; 0 = not an expert product.
    """

    name: str
    n: int
    k: int
    format: str
    experts: int = 0


def layer_gemms(
    architecture: Architecture, layout: Layout | None = None, formats: TensorFormats | None = None
) -> list[LayerGemm]:
    """The products of one layer and of the LM head.

    Args:
        architecture: the design.
        layout: shards; one GPU when left out.
        formats: number formats; the project's defaults when left out.

    Returns:
        In the order they run.
    """
    a, at, fmt = architecture, layout or Layout(), formats or TensorFormats()
    heads = -(-a.num_attention_heads // at.tpa)
    gates = 2 if a.gated_ffn else 1
    found: list[LayerGemm] = []
    if a.attention == "mla":
        qk = a.qk_nope_head_dim + a.qk_rope_head_dim
        found.append(
            LayerGemm("q, kv down", (a.q_lora_rank or heads * qk) + a.kv_lora_rank + a.qk_rope_head_dim, a.hidden_size, fmt.qkv)
        )
        if a.q_lora_rank:
            found.append(LayerGemm("q up", heads * qk, a.q_lora_rank, fmt.qkv))
        width = heads * a.v_head_dim
    else:
        kv = -(-a.num_key_value_heads // at.tpa)
        found.append(LayerGemm("qkv", (heads + 2 * kv) * a.head_dim, a.hidden_size, fmt.qkv))
        width = heads * a.head_dim
    found.append(LayerGemm("attention out", a.hidden_size, -(-width // at.kvp), fmt.attention_output))
    if a.num_experts:
        inner = -(-a.moe_intermediate_size // at.tpf)
        local = max(1, a.num_experts // at.ep)
        found.append(
            LayerGemm("expert gate-up" if a.gated_ffn else "expert up", gates * inner, a.hidden_size, fmt.experts, local)
        )
        found.append(LayerGemm("expert down", a.hidden_size, inner, fmt.experts, local))
    else:
        inner = -(-a.intermediate_size // (at.tpf * at.ep))
        found.append(LayerGemm("gate-up" if a.gated_ffn else "up", gates * inner, a.hidden_size, fmt.ffn))
        found.append(LayerGemm("down", a.hidden_size, inner, fmt.ffn))
    found.append(LayerGemm("LM head", -(-a.vocab_size // (at.tpa * at.kvp)), a.hidden_size, fmt.lm_head))
    return found
