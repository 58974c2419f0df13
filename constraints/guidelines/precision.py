"""Guideline 4: expensive operations in low precision."""

from __future__ import annotations

import math
from dataclasses import replace

from ...costmodel.architecture import Architecture
from ...costmodel.formats import get_format
from .considered import Considered
from .finding import Draft, Prices
from .pricing import Pricer

_CLASSES = ("qkv", "attention_output", "ffn", "experts", "lm_head")


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF011 of one design: weight classes above four bits, and a 16-bit KV cache."""
    target = "nvfp4" if considered.four_bit else "fp8"
    limit = get_format(target).weight_bits
    unused = {"ffn"} if design.num_experts and not design.first_k_dense_replace else set()
    unused |= set() if design.num_experts else {"experts"}
    found = []
    for name in _CLASSES:
        own = getattr(considered.formats, name)
        if name not in unused and get_format(own).weight_bits > limit:
            uneven = (own in considered.fitted_gemms) != (target in considered.fitted_gemms)
            found.append(_draft(name, own, target, get_format(own).weight_bits, limit, uneven))
    if get_format(considered.formats.kv).weight_bits > 8:
        found.append(_draft("kv", considered.formats.kv, "fp8", get_format(considered.formats.kv).weight_bits, 8, False))
    return found


def _draft(name: str, own: str, target: str, bits: float, limit: float, uneven: bool) -> Draft:
    note = "quality of the lower precision is not priced; try it on your checkpoints"
    if uneven:
        note += "; the profile has numbers for one of the two formats only, the other is priced at the roofline"

    def price(pricer: Pricer) -> Prices:
        setup = pricer.setup.with_(formats=replace(pricer.setup.formats, **{name: target}))
        other = Pricer(pricer.design, setup, pricer.rates)
        costs, gains = [], []
        for here, there in zip(pricer.points, other.points, strict=True):
            if here is None:
                costs.append(math.nan)
            else:
                costs.append(float(1.0 - other.step_seconds([pricer.design], here)[0] / here.seconds))
            known = here is not None and there is not None
            gains.append(there.tokens_per_second_per_gpu / here.tokens_per_second_per_gpu - 1.0 if known else math.nan)  # type: ignore[union-attr]
        return tuple(costs), tuple(gains)

    return Draft(
        id="SF011",
        dimension=f"formats.{name}",
        value=bits,
        threshold=limit,
        message=f"{name} is kept in {own} ({bits:g} bits a value); {target} is available",
        fix={f"formats.{name}": target},
        price=price,
        advisory=name == "lm_head",  # servers keep it in 16 bits by convention: a deployment's choice, shown with its price
        note=note,
    )
