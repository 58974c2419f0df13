"""The built-in model that a suggestion starts from, and that its designs are set beside."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ..costmodel.architecture import Architecture
from ..costmodel.errors import InvalidValueError
from ..costmodel.models import ModelRow, model_rows

LEAST = 10.0  # percentile of the class's models below which a vocabulary or top-k is unusual (the bands' own lower edge)


@lru_cache(maxsize=2)
def _least(moe: bool) -> tuple[float, float]:
    """Percentile :data:`LEAST` of vocabulary and top-k over the built-in models of a class."""
    designs = [row.architecture for row in model_rows() if (row.architecture.num_experts > 0) == moe]
    vocabulary, top_k = np.percentile([(d.vocab_size, d.num_experts_per_tok) for d in designs], LEAST, axis=0)
    return float(vocabulary), float(top_k)


def is_usual(design: Architecture) -> bool:
    """Whether a model makes a template: its heads share KV, vocabulary and top-k are not below the class's lower band edge.

    A suggestion keeps the template's KV heads and tokenizer, so one KV head a head (MHA) or a small vocabulary would mark every
    design of the size class.
    """
    vocabulary, top_k = _least(design.num_experts > 0)
    shared = design.attention != "gqa" or design.num_key_value_heads < design.num_attention_heads
    return shared and design.vocab_size >= vocabulary and design.num_experts_per_tok >= top_k


def nearest_model(total_params: float, active_params: float | None, moe: bool, *, attention: str | None = None) -> ModelRow:
    """The built-in model nearest in size, of one class; unusual ones (:func:`is_usual`) only where there is no other.

    The distance is abs(ln total ratio) and, for a MoE, abs(ln active ratio) + abs(ln active-share ratio): sizes can be scaled,
    the share of active parameters is the template's kind. Models whose shape the engine only approximates are left out, and so
    are those without a gated FFN.

    Args:
        total_params: parameters.
        active_params: active parameters; None leaves them out of the distance.
        moe: class.
        attention: attention kind; None takes any.
    """
    best: ModelRow | None = None
    least = (True, math.inf)
    for row in model_rows():
        design = row.architecture
        if (design.num_experts > 0) != moe or "shape" in row.not_covered or not design.gated_ffn:
            continue
        if attention is not None and design.attention != attention:
            continue
        total = math.log(design.total_params / total_params)
        distance = abs(total)
        if moe and active_params:
            active = math.log(design.active_params / active_params)
            distance += abs(active) + abs(active - total)
        rank = (not is_usual(design), distance)
        if best is None or rank < (least[0], least[1] - 1e-12):
            best, least = row, rank
    if best is None:
        raise InvalidValueError(f"no built-in model has {attention} attention; give --like a config.json")
    return best
