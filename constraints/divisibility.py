"""Which layouts divide which designs.

Rules (arrays over (architecture, layout)): TPA·KVP divides the heads (after Helix's all-to-all each GPU holds
heads/(TPA·KVP), arXiv 2507.07120); KV heads divide TPA or TPA divides them (replication beyond the KV heads);
EP divides the experts; TPF divides the FFN or expert width; PP divides the layers unless unbalanced stages are
allowed; a dense FFN has no experts to spread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..costmodel import Architecture, ArchitectureBatch, Layout, LayoutBatch

BoolArray = NDArray[np.bool_]


def _rules(batch: ArchitectureBatch, layouts: LayoutBatch, balanced_pipeline: bool) -> list[tuple[str, BoolArray]]:
    def wide(array: NDArray[np.int64]) -> NDArray[np.int64]:
        return array[:, None]

    tpa, kvp, tpf, ep, pp = (getattr(layouts, name)[None, :] for name in ("tpa", "kvp", "tpf", "ep", "pp"))
    heads, kv, layers = wide(batch.num_attention_heads), wide(batch.num_key_value_heads), wide(batch.num_hidden_layers)
    width = wide(batch.moe_intermediate_size if batch.kind.moe else batch.intermediate_size)
    rules = [("tpa*kvp must divide num_attention_heads", heads % (tpa * kvp) == 0)]
    if batch.kind.attention == "gqa":
        rules.append(("tpa must divide num_key_value_heads or be a multiple of it", (kv % tpa == 0) | (tpa % kv == 0)))
        rules.append(("kvp > 1 needs tpa at most num_key_value_heads", (kvp == 1) | (tpa <= kv)))
    else:
        # MLA has one latent KV head: Helix shards the sequence instead of replicating it.
        rules.append(("kvp > 1 needs tpa = 1 under MLA (one latent KV head)", (kvp == 1) | (tpa + 0 * kv == 1)))
    rules.append(("tpf must divide the FFN or expert width", width % tpf == 0))
    if batch.kind.moe:
        rules.append(("ep must divide num_experts", wide(batch.num_experts) % ep == 0))
    else:
        rules.append(("ep must be 1 in a dense model", ep + 0 * heads == 1))
    if balanced_pipeline:
        rules.append(("pp must divide num_hidden_layers", layers % pp == 0))
    else:
        rules.append(("pp must be at most num_hidden_layers", layers >= pp))
    return rules


def layout_allowed(batch: ArchitectureBatch, layouts: LayoutBatch, *, balanced_pipeline: bool = True) -> BoolArray:
    """Whether each layout divides each design, shape ``(A, P)``.

    Args:
        batch: designs, ``(A,)``.
        layouts: layouts, ``(P,)``.
        balanced_pipeline: PP must divide the layers; otherwise stages may differ by one layer.
    """
    allowed = np.ones((len(batch), len(layouts)), dtype=bool)
    for _, ok in _rules(batch, layouts, balanced_pipeline):
        allowed &= ok
    return allowed


def layout_reasons(architecture: Architecture, layout: Layout, *, balanced_pipeline: bool = True) -> list[str]:
    """Why ``layout`` does not divide ``architecture``; empty when it does."""
    batch, layouts = ArchitectureBatch.from_architectures([architecture]), LayoutBatch.from_layouts([layout])
    return [rule for rule, ok in _rules(batch, layouts, balanced_pipeline) if not bool(ok[0, 0])]


def layout_values(architecture: Architecture) -> str:
    """The dimensions that layouts divide, for a message."""
    width = architecture.moe_intermediate_size or architecture.intermediate_size
    experts = f", num_experts={architecture.num_experts}" if architecture.num_experts else ""
    return (
        f"num_attention_heads={architecture.num_attention_heads}, num_key_value_heads={architecture.num_key_value_heads}"
        f"{experts}, width={width}, num_hidden_layers={architecture.num_hidden_layers}"
    )
