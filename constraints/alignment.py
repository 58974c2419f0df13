"""Alignment of the GEMMs as executed: fused QKV, fused gate-up, and their per-GPU shards.

Source: NVIDIA co-design post (10 July 2026), guideline 2: multiples of 128 at minimum, 256 (clusterMMA) or 512
(CGA) preferred, and a cache line is 128 B. Router and norms are exempt: they are not tensor-core bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel import ArchitectureBatch, InvalidValueError, LayoutBatch
from ..costmodel.architecture import MAX_DIMENSION
from ..costmodel.checks import whole, whole_numbers

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
FLOOR = 128  # hard: tile and cache-line floor
PREFERRED = (256, 512)  # clusterMMA, CGA


def hard_dimensions(batch: ArchitectureBatch) -> dict[str, Any]:
    """Dimensions that must be aligned: H, H′ or H′e, heads·head size; each of shape ``(A,)``."""
    value_size = batch.v_head_dim if batch.kind.attention == "mla" else batch.head_dim
    dims = {"hidden_size": batch.hidden_size, "attention_width": batch.num_attention_heads * value_size}
    if batch.kind.moe:
        dims["moe_intermediate_size"] = batch.moe_intermediate_size
    if np.any(batch.intermediate_size):
        dims["intermediate_size"] = batch.intermediate_size
    return dims


def soft_dimensions(batch: ArchitectureBatch, layouts: LayoutBatch) -> dict[str, Any]:
    """Per-GPU shards that should be aligned but only cost time when they are not; each of shape ``(A, P)``.

    Fused QKV shard: (heads/TPA + 2·ceil(kv/TPA))·head_dim. MLA: query and key-value down-projections (not sharded).
    Vocabulary shard: ceil(V/TP), which servers pad to 128·TP.
    """
    tpa = layouts.tpa[None, :]

    def wide(array: Any) -> Any:
        return array[:, None]

    dims: dict[str, Any] = {}
    if batch.kind.attention == "mla":
        ones = np.ones_like(tpa)
        dims["q_lora_rank"] = wide(batch.q_lora_rank) * ones
        dims["kv_down_projection"] = wide(batch.kv_lora_rank + batch.qk_rope_head_dim) * ones
    else:
        kv = -(-wide(batch.num_key_value_heads) // tpa)
        dims["fused_qkv_shard"] = (-(-wide(batch.num_attention_heads) // tpa) + 2 * kv) * wide(batch.head_dim)
    dims["vocab_shard"] = -(-wide(batch.vocab_size) // tpa)
    return dims


def misalignment(value: Any, multiple: int) -> FloatArray:
    """Padding needed to reach ``multiple``, as a share of ``multiple``: 0 aligned, < 1 otherwise."""
    size = whole_numbers("a dimension", value)
    return np.asarray(-size % whole("multiple", multiple, 1, MAX_DIMENSION) / multiple, dtype=np.float64)


def alignment_violations(batch: ArchitectureBatch, floors: Mapping[str, int] | int = FLOOR) -> dict[str, FloatArray]:
    """Hard alignment, dimensionless: 0 where aligned, the missing share of a step otherwise; each ``(A,)``.

    Args:
        batch: designs.
        floors: one multiple for all hard dimensions, or a multiple per dimension (128 for those not named).

    Raises:
        InvalidValueError: a floor below 1.
    """
    table = {} if isinstance(floors, int) else dict(floors)
    default = floors if isinstance(floors, int) else FLOOR
    result: dict[str, FloatArray] = {}
    for name, value in hard_dimensions(batch).items():
        floor = table.get(name, default)
        if floor < 1:
            raise InvalidValueError(f"alignment of {name} must be at least 1, got {floor}")
        result[f"alignment.{name}"] = misalignment(value, floor)
    return result


def shard_allowed(batch: ArchitectureBatch, layouts: LayoutBatch, floor: int = FLOOR) -> BoolArray:
    """Whether each FFN or expert shard is a multiple of ``floor``, or not sharded at all; shape ``(A, P)``.

    The FFN shard is H′/TPF (dense), the expert shard H′e/TPF. With TPF 1 the width itself is what
    :func:`alignment_violations` judges, so that a misaligned real model can still be priced. A leading dense layer
    of a MoE is replicated or split over the attention group, and is judged by :func:`alignment_violations` alone.
    """
    whole("floor", floor, 1, MAX_DIMENSION)
    width = batch.moe_intermediate_size if batch.kind.moe else batch.intermediate_size
    return np.asarray((width[:, None] % (floor * layouts.tpf[None, :]) == 0) | (layouts.tpf[None, :] == 1))


def alignment_score(batch: ArchitectureBatch) -> FloatArray:
    """Share of hard dimensions that are multiples of 256, plus those of 512, over twice their number; shape ``(A,)``."""
    dims = list(hard_dimensions(batch).values())
    met = [np.asarray(d % multiple == 0, dtype=np.float64) for d in dims for multiple in PREFERRED]
    return np.asarray(np.mean(met, axis=0))
