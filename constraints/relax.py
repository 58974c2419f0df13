"""When nothing is legal: which constraint binds, the nearest design, and what to relax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..costmodel.batch import ArchitectureBatch
from .join import SpaceTooLargeError
from .rules import Rules
from .space import DesignSpace

if TYPE_CHECKING:
    from .budget import Budget

_CHUNKS = 40  # batches of legal designs looked at per relaxation, and
_ROWS = 5_000_000  # rows of the join: bound the time to a few seconds each
_TOLERANCES = (0.02, 0.05, 0.1, 0.25, 0.5)


def _some(batches: Iterator[ArchitectureBatch]) -> Iterator[ArchitectureBatch]:
    """The batches up to the bound on rows."""
    with suppress(SpaceTooLargeError):
        yield from batches


def _count(spaces: Sequence[DesignSpace], budget: Budget, rules: Rules) -> tuple[int, str]:
    """Legal designs found within the time bound, and a description of the one nearest to the budget."""
    from .budget import iter_legal

    best, text, count = math.inf, "", 0
    for space in spaces:
        for batch in islice(_some(iter_legal(space, budget, rules, max_rows=_ROWS)), _CHUNKS):
            count += len(batch)
            distance = np.abs(batch.total_params / budget.total_params - 1)
            if budget.active_params is not None:
                distance = np.maximum(distance, np.abs(batch.active_params / budget.active_params - 1))
            index = int(np.argmin(distance))
            if distance[index] < best:
                best, design = float(distance[index]), batch.architecture(index)
                dims = ", ".join(f"{name}={getattr(design, name)}" for name in space.dimensions if hasattr(design, name))
                text = f"{dims} (total {design.total_params / 1e9:.2f}B, active {design.active_params / 1e9:.2f}B)"
    return count, text


def explain_empty(spaces: Sequence[DesignSpace], budget: Budget, rules: Rules) -> str:
    """One paragraph: the nearest design and the single relaxations that make the study non-empty."""
    lines: list[str] = []
    nearest = ""
    for tolerance in _TOLERANCES:
        if tolerance <= budget.tolerance:
            continue
        count, text = _count(spaces, replace(budget, tolerance=tolerance), rules)
        if count:
            lines.append(f"budget tolerance {budget.tolerance:g} -> {tolerance:g}: at least {count} legal designs")
            nearest = text
            break
    if budget.active_params is not None:
        count, text = _count(spaces, replace(budget, active_params=None), rules)
        if count:
            lines.append(f"drop the active-parameter budget: at least {count} legal designs")
            nearest = nearest or text
    options: list[tuple[str, Rules]] = [
        (f"drop the band {name} {low:g} to {high:g}", replace(rules, bands={k: v for k, v in rules.bands.items() if k != name}))
        for name, (low, high) in rules.bands.items()
    ]
    if math.isfinite(rules.max_delta_loss_shape):
        options.append(
            (f"lift max_delta_loss_shape {rules.max_delta_loss_shape:g}", replace(rules, max_delta_loss_shape=math.inf))
        )
    if rules.loss is not None:
        options.append((f"lift max_loss_above_reference {rules.loss.max_above_reference:g}", replace(rules, loss=None)))
    if rules.alignment != 128:
        options.append(("lower the alignment to the floor of 128", replace(rules, alignment=128)))
    for label, relaxed in options:
        count, text = _count(spaces, budget, relaxed)
        if count:
            lines.append(f"{label}: at least {count} legal designs")
            nearest = nearest or text
    if not lines:
        return (
            "no design is legal, and no single relaxation helps: the ranges of the searched dimensions do not reach "
            f"{budget.total_params / 1e9:.2f}B parameters; widen hidden_size, num_hidden_layers or the FFN width"
        )
    return f"no design is legal; nearest: {nearest}; relax one of: " + "; ".join(lines)
