"""Rounding up instead: what is left to offer where rounding a dimension down costs more predicted loss than the guard allows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...costmodel.architecture import Architecture
from .finding import Draft
from .neighbours import STEP, try_with, with_dimension

KEPT = 0.01  # "the same parameters": total and active within one percent, the study default


def rounded_up(design: Architecture, draft: Draft) -> Iterator[Architecture]:
    """The compliant design above, first with another dimension smaller so that the parameters stay, then as it is.

    The dimension that makes room is the FFN or expert width (on its own step), else the depth. Nothing is given where the
    draft's fix is the neighbour above already.

    Args:
        design: the checked design.
        draft: a departure whose fix rounds down.
    """
    up = draft.high
    if up is None or not draft.along or up == draft.fixed or getattr(up, draft.along) <= getattr(design, draft.along):
        return
    for make in (_narrower, _shallower):
        kept = make(design, up, draft.along)
        if kept is not None and _same_size(design, kept):
            yield kept
    yield up


def _same_size(design: Architecture, other: Architecture) -> bool:
    return all(abs(getattr(other, n) / getattr(design, n) - 1) <= KEPT for n in ("total_params", "active_params"))


def _narrower(design: Architecture, up: Architecture, along: str) -> Architecture | None:
    """The design above with the FFN or expert width that brings the total nearest to the design's."""
    name = "moe_intermediate_size" if design.num_experts else "intermediate_size"
    width = getattr(up, name)
    if name == along:
        return None
    step = max((m for m in (128, 256, 512) if width % m == 0), default=STEP)
    less = with_dimension(up, name, width - step) if width > step else None
    if less is None or less.total_params >= up.total_params:
        return None
    steps = round((up.total_params - design.total_params) / (up.total_params - less.total_params))
    return with_dimension(up, name, width - steps * step) if 0 < steps * step < width else None


def _shallower(design: Architecture, up: Architecture, along: str) -> Architecture | None:
    """The design above with the depth that brings the total nearest to the design's; the window pattern scales along."""
    layers = up.num_hidden_layers
    one = None if along == "num_hidden_layers" or layers < 2 else _with_layers(up, layers - 1)
    if one is None:
        return None
    fewer = round((up.total_params - design.total_params) / (up.total_params - one.total_params))
    return _with_layers(up, layers - fewer) if 0 < fewer < layers - up.first_k_dense_replace else None


def _with_layers(design: Architecture, layers: int) -> Architecture | None:
    windows = math.floor(design.num_sliding_window_layers * layers / design.num_hidden_layers)
    return try_with(design, num_hidden_layers=layers, num_sliding_window_layers=windows)
