"""Guideline 7: attention and FFN parallelised independently."""

from __future__ import annotations

import math

from ...costmodel.architecture import Architecture
from ...costmodel.layout import Layout
from .considered import Considered
from .finding import Draft, Prices
from .pricing import Pricer


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF017 of one design."""
    kv = 1 if design.attention == "mla" else design.num_key_value_heads
    tensor = considered.attention_tensor
    if tensor <= kv:
        return []
    what = "one latent KV head (MLA)" if design.attention == "mla" else f"{kv} KV head{'s' if kv > 1 else ''}"

    def price(pricer: Pricer) -> Prices:
        costs = []
        for point in pricer.points:
            if point is None:
                costs.append(math.nan)
            elif point.layout.tpa <= kv or point.layout.tpa % kv:
                costs.append(0.0)  # its best layout does not replicate the KV cache
            else:
                own = point.layout
                split = Layout(own.tpa // (own.tpa // kv), own.kvp * (own.tpa // kv), own.dpa, own.tpf, own.ep, own.pp)
                costs.append(1.0 - pricer.step_on(point, split) / point.seconds)
        return tuple(costs), tuple(math.nan for _ in costs)

    return [
        Draft(
            id="SF017",
            dimension="num_key_value_heads",
            value=kv,
            threshold=tensor,
            message=f"{what}: attention tensor parallelism beyond {kv} replicates the KV cache, up to {tensor} is considered",
            fix={"layout.tpa": kv, "layout.kvp": tensor // kv},
            price=price,
            note="a choice of deployment: KV parallelism (Helix) or data-parallel attention",
        )
    ]
