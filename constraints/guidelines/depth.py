"""Guideline 3: fewer, larger operations, inside the band that quality allows; and the guard itself."""

from __future__ import annotations

import numpy as np

from ...costmodel.architecture import Architecture
from ...costmodel.batch import ArchitectureBatch
from ..bands import FORMULAS, band_statistics, ratios
from ..quality import delta_loss_shape, predicted_loss
from .considered import Considered
from .finding import Draft
from .neighbours import changes, reshaped
from .shape import shape_note

NEAR_EDGE = 0.9  # within a tenth of the band's edge a design counts as wide (design choice: the lattice is coarse there)


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF009 and SF010 of one design."""
    return [*_too_deep(design, considered), *_guard(design, considered)]


def _too_deep(design: Architecture, considered: Considered) -> list[Draft]:
    edge = next(b.p90 for b in band_statistics(design.num_experts > 0) if b.name == "width_over_depth")
    ratio = design.hidden_size / design.num_hidden_layers
    if ratio >= NEAR_EDGE * edge:
        return []
    # at equal parameters L falls as 1/H², so that H/L = H³/(L0·H0²)
    cube = design.num_hidden_layers * design.hidden_size**2
    low, high = (int((share * edge * cube) ** (1 / 3)) for share in (NEAR_EDGE, 1.0))
    batch = reshaped(design, max(low - 256, design.hidden_size + 1), high + 256)
    if batch is None:
        return []
    wide = batch.hidden_size / batch.num_hidden_layers
    penalty = delta_loss_shape(batch.hidden_size, batch.num_hidden_layers)
    ok = (wide >= NEAR_EDGE * edge) & (wide <= edge) & (penalty <= considered.max_delta_loss_shape)
    ok &= predicted_loss(batch) - predicted_loss(design) <= considered.max_delta_loss_shape
    inside = np.flatnonzero(ok)
    if not inside.size:
        return []
    aligned = sum((batch.hidden_size[inside] % m == 0).astype(int) for m in (256, 512))
    off = np.abs(batch.total_params / design.total_params - 1) + np.abs(batch.active_params / design.active_params - 1)
    best = int(inside[np.lexsort((off[inside], -aligned))[0]])
    fixed = batch.architecture(best, name=design.name)
    return [
        Draft(
            id="SF009",
            dimension="num_hidden_layers",
            value=ratio,
            threshold=edge,
            message=f"H/L is {ratio:.0f}; {fixed.num_hidden_layers} layers of width "
            f"{fixed.hidden_size} (H/L {wide[best]:.0f}) hold the "
            "same parameters inside the quality guard",
            fix=changes(design, fixed),
            fixed=fixed,
            low=fixed,
            note=shape_note(design, fixed),
        )
    ]


def _guard(design: Architecture, considered: Considered) -> list[Draft]:
    penalty = float(delta_loss_shape(design.hidden_size, design.num_hidden_layers))
    found = []
    if penalty > considered.max_delta_loss_shape:
        found.append(
            Draft(
                id="SF010",
                dimension="num_hidden_layers",
                value=penalty,
                threshold=considered.max_delta_loss_shape,
                message=f"the width-to-depth split costs {penalty:.4f} nats/token, above {considered.max_delta_loss_shape:g}",
                advisory=True,
            )
        )
    values = ratios(ArchitectureBatch.from_architectures([design]))
    for band in band_statistics(design.num_experts > 0):
        if band.name not in values:
            continue
        value = float(values[band.name][0])
        if not band.minimum * (1 - 1e-9) <= value <= band.maximum * (1 + 1e-9):
            edge = band.minimum if value < band.minimum else band.maximum
            found.append(
                Draft(
                    id="SF010",
                    dimension=band.name,
                    value=value,
                    threshold=edge,
                    message=f"{FORMULAS[band.name]} is {value:.3g}, outside {band.minimum:.3g} to "
                    f"{band.maximum:.3g} of released models",
                    advisory=True,
                )
            )
    return found
