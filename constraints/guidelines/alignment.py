"""Guideline 2: dimensions and per-GPU shards that are whole tiles."""

from __future__ import annotations

import math

from ...costmodel.architecture import Architecture
from .catalogue import MULTIPLES
from .considered import Considered
from .finding import Draft
from .neighbours import around, changes, same_expert_weights

IDS = {128: "SF003", 256: "SF004", 512: "SF005"}
FLOOR = MULTIPLES[0]
HEAD_STEP = 16  # head sizes of released models are multiples of it (64, 80, 96, 112, 128, 256); 16 values are one NVFP4 block


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF003-SF006 and SF008 of one design."""
    found = [d for name in _dimensions(design) if (d := _dimension(design, name)) is not None]
    heads = _attention_width(design)
    if heads is not None:
        found.append(heads)
    found += _latent(design)
    found += _ffn_shard(design, considered)
    found += _qkv_shard(design, considered)
    found += _vocabulary(design)
    return found


def _dimensions(design: Architecture) -> list[str]:
    """GEMM dimensions the design has, by name."""
    names = ["hidden_size"]
    if design.num_experts:
        names.append("moe_intermediate_size")
        if design.first_k_dense_replace:
            names.append("intermediate_size")
        if design.n_shared_experts and design.shared_expert_intermediate_size != design.moe_intermediate_size:
            names.append("shared_expert_intermediate_size")
    else:
        names.append("intermediate_size")
    if design.attention == "mla" and design.q_lora_rank:
        names.append("q_lora_rank")
    return names


def _level(value: int) -> int | None:
    """The smallest of 128, 256, 512 that does not divide the value; None where all do."""
    return next((m for m in MULTIPLES if value % m), None)


def _dimension(design: Architecture, name: str) -> Draft | None:
    value = getattr(design, name)
    multiple = _level(value)
    if multiple is None:
        return None
    neighbours = around(design, name, multiple)
    if neighbours is None:
        return None
    low, high, fixed = neighbours
    fixed = _kept_total(design, name, fixed)
    return Draft(
        id=IDS[multiple],
        dimension=name,
        value=value,
        threshold=multiple,
        message=f"{name}={value} is not a multiple of {multiple}: the last tile is {value % multiple} of {multiple} wide",
        fix=changes(design, fixed),
        fixed=fixed,
        low=low,
        high=high,
        along=name,
    )


def _kept_total(design: Architecture, name: str, fixed: Architecture) -> Architecture:
    """For an expert width: the fix with E and k scaled so that the parameters stay, where that comes out whole."""
    if name != "moe_intermediate_size":
        return fixed
    return same_expert_weights(design, fixed.moe_intermediate_size) or fixed


def _attention_width(design: Architecture) -> Draft | None:
    """Heads · head size: reduction of the output projection; the number of heads moves it."""
    size = design.v_head_dim if design.attention == "mla" else design.head_dim
    multiple = _level(design.num_attention_heads * size)
    if multiple is None:
        return None
    if design.attention == "gqa" and size % HEAD_STEP:  # an odd head size: no number of heads near by makes whole tiles
        along, step = "head_dim", HEAD_STEP
    else:
        along, step = "num_attention_heads", design.num_key_value_heads if design.attention == "gqa" else 1
    other = design.num_attention_heads if along == "head_dim" else size
    neighbours = around(design, along, step, lambda value: value * other % multiple == 0)
    if neighbours is None:
        return None
    low, high, fixed = neighbours
    width = design.num_attention_heads * size
    return Draft(
        id=IDS[multiple],
        dimension=along,
        value=width,
        threshold=multiple,
        message=f"heads*head size = {design.num_attention_heads}*{size} = {width} is not a multiple of {multiple}",
        fix={along: getattr(fixed, along)},
        fixed=fixed,
        low=low,
        high=high,
        along=along,
        note=_head_note(along),
    )


def _head_note(along: str) -> str:
    text = f"no released model has a head size that is not a multiple of {HEAD_STEP}: serving kernels may refuse it"
    return text if along == "head_dim" else ""


def _latent(design: Architecture) -> list[Draft]:
    """Output of MLA's key-value down-projection, kv_lora_rank + rope size; held to the floor only (it is narrow)."""
    if design.attention != "mla":
        return []
    rope = design.qk_rope_head_dim
    width = design.kv_lora_rank + rope
    if width % FLOOR == 0:
        return []
    neighbours = around(design, "kv_lora_rank", math.gcd(FLOOR, rope), lambda rank: (rank + rope) % FLOOR == 0)
    if neighbours is None:
        return []
    low, high, _ = neighbours
    fixed = high  # never a smaller rank: no published term says what that costs in quality
    return [
        Draft(
            id="SF003",
            dimension="kv_lora_rank",
            value=width,
            threshold=FLOOR,
            message=f"the key-value down-projection is kv_lora_rank + rope = {width} wide, not a multiple of {FLOOR}",
            fix={"kv_lora_rank": fixed.kv_lora_rank},
            fixed=fixed,
            low=low,
            high=high,
            along="kv_lora_rank",
            note="a wider rank holds more KV cache",
        )
    ]


def _ffn_shard(design: Architecture, considered: Considered) -> list[Draft]:
    name = "moe_intermediate_size" if design.num_experts else "intermediate_size"
    width, tensor = getattr(design, name), considered.ffn_tensor
    if tensor == 1 or width % (FLOOR * tensor) == 0:
        return []
    neighbours = around(design, name, FLOOR * tensor)
    if neighbours is None:
        return []
    low, high, fixed = neighbours
    fixed = _kept_total(design, name, fixed)
    return [
        Draft(
            id="SF006",
            dimension=name,
            value=width / tensor,
            threshold=FLOOR,
            message=f"{name}={width} over tensor parallelism {tensor} leaves {width / tensor:g} a GPU, not a multiple of {FLOOR}",
            fix=changes(design, fixed),
            fixed=fixed,
            low=low,
            high=high,
            along=name,
            reoptimise=True,
        )
    ]


def _qkv_shard(design: Architecture, considered: Considered) -> list[Draft]:
    """(heads/TPA + 2·KV heads/TPA)·head size at the widest TPA considered that divides the heads."""
    if design.attention == "mla":
        return []

    def tensor(heads: int) -> int:
        return next(t for t in range(considered.attention_tensor, 0, -1) if heads % t == 0)

    def shard(heads: int) -> int:
        ranks = tensor(heads)
        return (heads // ranks + 2 * -(-design.num_key_value_heads // ranks)) * design.head_dim

    ranks, width = tensor(design.num_attention_heads), shard(design.num_attention_heads)
    if ranks == 1 or width % FLOOR == 0:
        return []
    step = design.num_key_value_heads
    neighbours = around(design, "num_attention_heads", step, lambda heads: shard(heads) % FLOOR == 0)
    if neighbours is None:
        return []
    low, high, fixed = neighbours
    return [
        Draft(
            id="SF006",
            dimension="num_attention_heads",
            value=width,
            threshold=FLOOR,
            message=f"the fused QKV shard under tensor parallelism {ranks} is {width} wide, not a multiple of {FLOOR}",
            fix={"num_attention_heads": fixed.num_attention_heads},
            fixed=fixed,
            low=low,
            high=high,
            along="num_attention_heads",
            reoptimise=True,
        )
    ]


def _vocabulary(design: Architecture) -> list[Draft]:
    if design.vocab_size % FLOOR == 0:
        return []
    neighbours = around(design, "vocab_size", FLOOR)
    if neighbours is None:
        return []
    low, high, _ = neighbours
    return [
        Draft(
            id="SF008",
            dimension="vocab_size",
            value=design.vocab_size,
            threshold=FLOOR,
            message=f"vocab_size={design.vocab_size} is not a multiple of {FLOOR}: pad the tables, the tokenizer may stay",
            fix={"vocab_size": high.vocab_size},
            fixed=high,
            low=low,
            high=high,
            along="vocab_size",
        )
    ]
