"""Guideline 6: regular layers that split evenly over pipeline stages."""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .considered import Considered
from .finding import Draft
from .neighbours import try_with

STAGES = 4


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF015 and SF016 of one design."""
    return [*_stages(design), *_pattern(design)]


def _with_layers(design: Architecture, layers: int) -> Architecture | None:
    windows = round(design.num_sliding_window_layers * layers / design.num_hidden_layers)
    return try_with(design, num_hidden_layers=layers, num_sliding_window_layers=windows)


def _stages(design: Architecture) -> list[Draft]:
    layers = design.num_hidden_layers
    if layers % STAGES == 0:
        return []
    below, above = layers // STAGES * STAGES, -(-layers // STAGES) * STAGES
    low = _with_layers(design, below) if below > design.first_k_dense_replace else None
    high = _with_layers(design, above)
    fixed = low if low is not None and layers - below <= above - layers else high
    if fixed is None:
        return []
    if low is None or high is None:
        low, high = fixed, None
    idle = 1 - layers / above
    return [
        Draft(
            id="SF015",
            dimension="num_hidden_layers",
            value=layers,
            threshold=STAGES,
            message=f"{layers} layers over {STAGES} stages: the longest holds {above // STAGES}, so "
            f"{idle:.1%} of a full pipeline idles",
            fix={"num_hidden_layers": fixed.num_hidden_layers},
            fixed=fixed,
            low=low,
            high=high,
            along="num_hidden_layers",
        )
    ]


def _pattern(design: Architecture) -> list[Draft]:
    found = []
    if design.first_k_dense_replace:
        found.append(
            Draft(
                id="SF016",
                dimension="first_k_dense_replace",
                value=design.first_k_dense_replace,
                threshold=0,
                message=f"{design.first_k_dense_replace} leading dense layers: the first pipeline stage differs from the others",
                advisory=True,
            )
        )
    windowed = design.num_sliding_window_layers
    full = design.num_hidden_layers - windowed
    if windowed and full and design.num_hidden_layers % full:
        found.append(
            Draft(
                id="SF016",
                dimension="num_sliding_window_layers",
                value=windowed,
                threshold=design.num_hidden_layers - design.num_hidden_layers // max(1, round(design.num_hidden_layers / full)),
                message=f"{windowed} of {design.num_hidden_layers} layers are windowed: the pattern "
                "does not repeat a whole number of times",
                advisory=True,
            )
        )
    return found
