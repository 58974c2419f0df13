"""Exact parameter counts, one formula for one design and a batch.

Conventions (stated because vendors differ):

* ``total_params``: every stored weight, tied embeddings once, norms and biases included.
* ``active_params``: parameters of the matrices that multiply a token, LM head included, input look-up excluded.
* ``active_params_with_embedding``: the same plus the input look-up table (nothing to add when it is tied).

Shapes: every count broadcasts over the architecture axis ``(A,)``; unit: parameters.
Source: layer definitions of the released models (Llama, Qwen3, Mixtral, DeepSeek-V3 arXiv 2412.19437 eqs. 1-15,
gpt-oss model card); equations are written next to each term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .architecture import ArchitectureKind as Kind

Count = Any  # int for one design, int64 array of shape (A,) for a batch


Dimensions = Any  # an Architecture (ints) or an ArchitectureBatch (int64 arrays): read-only attributes by the stable names


def attention_matrices(kind: Kind, d: Dimensions) -> Count:
    """Matrix parameters of one attention layer.

    GQA: H·(n_h + 2·n_kv)·d + n_h·d·H.
    MLA (DeepSeek-V3 eqs. 1-11): query H·r_q + r_q·n_h·(d_nope + d_rope), or H·n_h·(d_nope + d_rope) without a
    query rank; key-value H·(r_kv + d_rope) + r_kv·n_h·(d_nope + d_v); output n_h·d_v·H.
    """
    h, n = d.hidden_size, d.num_attention_heads
    if kind.attention == "mla":
        qk = d.qk_nope_head_dim + d.qk_rope_head_dim
        query = np.where(d.q_lora_rank > 0, d.q_lora_rank * (h + n * qk), h * n * qk)
        key_value = h * (d.kv_lora_rank + d.qk_rope_head_dim) + d.kv_lora_rank * n * (d.qk_nope_head_dim + d.v_head_dim)
        return query + key_value + n * d.v_head_dim * h
    return h * (n + 2 * d.num_key_value_heads) * d.head_dim + n * d.head_dim * h


def attention_vectors(kind: Kind, d: Dimensions) -> Count:
    """Biases, query/key norms and sinks of one attention layer."""
    n, kv = d.num_attention_heads, d.num_key_value_heads
    if kind.attention == "mla":
        return d.q_lora_rank + d.kv_lora_rank  # RMS norm of each compressed vector
    count = 0 * n
    if kind.qkv_bias:
        count = count + (n + 2 * kv) * d.head_dim
    if kind.output_bias:
        count = count + d.hidden_size
    if kind.qk_norm == "head":
        count = count + 2 * d.head_dim
    elif kind.qk_norm == "full":
        count = count + (n + kv) * d.head_dim
    if kind.attention_sinks:
        count = count + n
    return count


def ffn_params(kind: Kind, hidden_size: Count, width: Count) -> Count:
    """One FFN or expert of inner ``width``: 3·H·H′ gated, 2·H·H′ plain, plus biases where the family has them."""
    matrices = 3 if kind.gated_ffn else 2
    biases = (matrices - 1) * width + hidden_size if kind.ffn_bias else 0
    return matrices * hidden_size * width + biases * (np.asarray(width) > 0)


def moe_layers(d: Dimensions) -> Count:
    """Layers that hold experts: L − first_k_dense_replace, 0 for a dense model."""
    return np.where(d.num_experts > 0, d.num_hidden_layers - d.first_k_dense_replace, 0)


def parameter_parts(kind: Kind, d: Dimensions) -> dict[str, Count]:
    """Stored parameters by part: attention, dense_ffn, experts, shared_experts, router, norms, embedding, lm_head."""
    h, layers = d.hidden_size, d.num_hidden_layers
    sparse = moe_layers(d)
    dense = layers - sparse
    router = d.num_experts * h + (d.num_experts if kind.router_bias else 0)
    return {
        "attention": layers * (attention_matrices(kind, d) + attention_vectors(kind, d)),
        "dense_ffn": dense * ffn_params(kind, h, d.intermediate_size),
        "experts": sparse * d.num_experts * ffn_params(kind, h, d.moe_intermediate_size),
        "shared_experts": sparse * ffn_params(kind, h, d.n_shared_experts * d.shared_expert_intermediate_size),
        "router": sparse * router,
        "norms": (layers * kind.norms_per_layer + 1) * h,
        "embedding": d.vocab_size * h,
        "lm_head": 0 * h if kind.tie_word_embeddings else d.vocab_size * h,
    }


def total_params(kind: Kind, d: Dimensions) -> Count:
    """Every stored weight, tied embeddings once."""
    return sum(parameter_parts(kind, d).values())


def active_params(kind: Kind, d: Dimensions) -> Count:
    """Parameters of the matrices that multiply a token, LM head included, input look-up excluded."""
    h, layers = d.hidden_size, d.num_hidden_layers
    sparse = moe_layers(d)
    matrices = 3 if kind.gated_ffn else 2
    width = (
        (layers - sparse) * d.intermediate_size
        + sparse * d.num_experts_per_tok * d.moe_intermediate_size
        + sparse * d.n_shared_experts * d.shared_expert_intermediate_size
    )
    return layers * attention_matrices(kind, d) + matrices * h * width + sparse * d.num_experts * h + d.vocab_size * h


def active_params_with_embedding(kind: Kind, d: Dimensions) -> Count:
    """Active parameters plus the input look-up table (already counted as the LM head when tied)."""
    return active_params(kind, d) + (0 if kind.tie_word_embeddings else d.vocab_size * d.hidden_size)
