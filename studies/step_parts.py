"""A decode step's parts for people: the signed step constant apart from what is left of ``other``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONSTANT = "step constant (fitted, signed)"
EXPLAINED = (
    "step constant: one signed time a step, fitted to measured serving: host work that is not hidden, less what the kernel tables"
    " count and the stack does not run, so it may be negative (in JSON: step_constant_seconds, inside breakdown.other)"
)


def step_parts(point: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each part of a decode step; they add up to the step.

    Args:
        point: an operating point with ``breakdown`` and, where it is known, ``step_constant_seconds`` (s, a part of ``other``).
    """
    parts = dict(point.get("breakdown") or {})
    constant = float(point.get("step_constant_seconds") or 0.0)
    if parts and constant:
        parts["other"] -= constant
        parts[CONSTANT] = constant
    return parts
