"""Guideline 1: near-square weights, neither projection nor reduction too small."""

from __future__ import annotations

import math

import numpy as np

from ...costmodel.architecture import Architecture
from ..bands import band_statistics
from ..quality import delta_loss_shape, predicted_loss, size_loss
from .catalogue import MIN_REDUCTION, SMALL_SHARD
from .considered import Considered
from .finding import Draft, Prices
from .neighbours import STEP, changes, merged_experts, reshaped, try_with
from .pricing import Pricer


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF001, SF002 and SF007 of one design."""
    return [*_small_dimensions(design, considered), *_far_from_square(design), *_small_shards(design, considered)]


def _loss_note(design: Architecture, fixed: Architecture) -> str:
    """Change of the predicted size loss by both MoE laws."""
    zhao = float(size_loss(fixed, law="zhao")[0] - size_loss(design, law="zhao")[0])
    joint = float(size_loss(fixed, law="joint")[0] - size_loss(design, law="joint")[0])
    return f"coarser experts: predicted loss {zhao:+.4f} nats/token by the MoE law, {joint:+.4f} by the joint law"


def _small_dimensions(design: Architecture, considered: Considered) -> list[Draft]:
    found = []
    if design.num_experts and design.moe_intermediate_size < MIN_REDUCTION:
        fixed = merged_experts(design, MIN_REDUCTION)
        found.append(
            Draft(
                id="SF001",
                dimension="moe_intermediate_size",
                value=design.moe_intermediate_size,
                threshold=MIN_REDUCTION,
                message=f"an expert's down-projection reduces over {design.moe_intermediate_size}, below {MIN_REDUCTION}",
                fix={} if fixed is None else changes(design, fixed),
                fixed=fixed,
                low=fixed,
                note="" if fixed is None else _loss_note(design, fixed),
            )
        )
    if design.hidden_size < MIN_REDUCTION:
        fixed = _wider(design, considered)
        found.append(
            Draft(
                id="SF001",
                dimension="hidden_size",
                value=design.hidden_size,
                threshold=MIN_REDUCTION,
                message=f"QKV and up-projections reduce over {design.hidden_size}, below {MIN_REDUCTION}"
                + ("" if fixed else "; no wider design of equal parameters stays inside the quality guard"),
                fix={} if fixed is None else changes(design, fixed),
                fixed=fixed,
                low=fixed,
                note="" if fixed is None else shape_note(design, fixed),
            )
        )
    return found


def shape_note(design: Architecture, fixed: Architecture) -> str:
    """Change of the shape penalty and of the KV cache."""
    before, after = (float(delta_loss_shape(d.hidden_size, d.num_hidden_layers)) for d in (design, fixed))
    layers = fixed.num_hidden_layers / design.num_hidden_layers
    return f"shape penalty {before:.4f} to {after:.4f} nats/token; KV cache per token x{layers:.2f}, per layer unchanged"


def _wider(design: Architecture, considered: Considered) -> Architecture | None:
    """The narrowest design of equal parameters whose hidden size reaches the threshold inside the shape-penalty limit."""
    batch = reshaped(design, MIN_REDUCTION, MIN_REDUCTION + 8 * STEP)
    if batch is None:
        return None
    penalty = delta_loss_shape(batch.hidden_size, batch.num_hidden_layers)
    own = float(delta_loss_shape(design.hidden_size, design.num_hidden_layers))
    rise = predicted_loss(batch) - predicted_loss(design)
    inside = np.flatnonzero((penalty <= max(considered.max_delta_loss_shape, own)) & (rise <= considered.max_delta_loss_shape))
    if not inside.size:
        return None
    off = np.abs(batch.total_params / design.total_params - 1) + np.abs(batch.active_params / design.active_params - 1)
    order = np.lexsort((off[inside], batch.hidden_size[inside]))
    return batch.architecture(int(inside[order[0]]), name=design.name)


def _far_from_square(design: Architecture) -> list[Draft]:
    if design.num_experts or not design.gated_ffn:
        return []
    limit = next(b.p90 for b in band_statistics(False) if b.name == "ffn_over_hidden")
    ratio = design.intermediate_size / design.hidden_size
    if ratio <= limit:
        return []
    fixed = _squarer(design, math.floor(limit * design.hidden_size / STEP) * STEP)
    return [
        Draft(
            id="SF002",
            dimension="intermediate_size",
            value=ratio,
            threshold=limit,
            message=f"the FFN is {ratio:.2f} times as wide as the hidden size; nine of ten released "
            f"models stay below {limit:.2f}",
            fix={} if fixed is None else changes(design, fixed),
            fixed=fixed,
            low=fixed,
            note="" if fixed is None else shape_note(design, fixed),
        )
    ]


def _squarer(design: Architecture, widest: int) -> Architecture | None:
    """Fewest more layers at which a width of at most ``widest`` gives equal parameters."""
    for layers in range(design.num_hidden_layers + 1, 2 * design.num_hidden_layers):
        windows = round(design.num_sliding_window_layers * layers / design.num_hidden_layers)
        base = try_with(design, num_hidden_layers=layers, intermediate_size=STEP, num_sliding_window_layers=windows)
        if base is None:
            return None
        matrices = 3 * layers * design.hidden_size
        width = STEP + round((design.total_params - base.total_params) / matrices / STEP) * STEP
        if STEP <= width <= widest:
            fixed = try_with(base, intermediate_size=width)
            if fixed is not None and abs(fixed.total_params / design.total_params - 1) <= 0.01:
                return fixed
    return None


def _small_shards(design: Architecture, considered: Considered) -> list[Draft]:
    tensor = considered.ffn_tensor
    shard = design.moe_intermediate_size / tensor
    if not design.num_experts or tensor == 1 or shard >= SMALL_SHARD:
        return []
    fixed = merged_experts(design, SMALL_SHARD * tensor)

    def tensor_points(pricer: Pricer) -> Prices:
        points = pricer.best_points(pricer.setup, pricer.setup.layouts.tpf == tensor)
        costs = []
        for point in points:
            if point is None or fixed is None:
                costs.append(math.nan)
            else:
                costs.append(float(1.0 - pricer.step_seconds([fixed], point)[0] / point.seconds))
        none = tuple(math.nan for _ in points)
        return tuple(costs), none if fixed is None else pricer.gains(fixed)

    return [
        Draft(
            id="SF007",
            dimension="moe_intermediate_size",
            value=shard,
            threshold=SMALL_SHARD,
            message=f"under tensor parallelism {tensor} an expert shard reduces over {shard:g}, below {SMALL_SHARD}: "
            "memory-bound at every token count; such experts want expert parallelism",
            fix={} if fixed is None else changes(design, fixed),
            fixed=fixed,
            price=tensor_points,
            advisory=lambda pricer: all(p is None or p.layout.tpf < tensor for p in pricer.points),
            note="" if fixed is None else _loss_note(design, fixed),
        )
    ]
