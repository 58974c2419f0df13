"""First designs of a search: the reference model, known models scaled to the budget, and an aspect-ratio ladder."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..costmodel import Architecture
from .problem import SearchProblem
from .space import DesignTable

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
LADDER = 8  # rungs of the aspect-ratio ladder


def scaled(design: Architecture, total_params: float) -> dict[str, float]:
    """A design's dimensions scaled to another budget.

    Widths (hidden, FFN, expert, heads) and depth grow by (N/N_design)^(1/3), so that their ratios stay; head size,
    KV heads per head, experts and top-k stay as they are.
    """
    factor = (total_params / design.total_params) ** (1 / 3)
    grows = (
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "q_lora_rank",
        "kv_lora_rank",
    )
    values = {name: float(value) for name, value in design.to_dict().items() if isinstance(value, int)}
    return {name: value * (factor if name in grows else 1.0) for name, value in values.items()}


def _rows(table: DesignTable, shapes: Iterable[dict[str, float]]) -> FloatArray:
    """Named values ``(n, D)``; a dimension that a shape lacks (or has as 0) takes the middle of its lattice."""
    rows = []
    for shape in shapes:
        row = []
        for name in table.names:
            grid = table.lattice(name)
            row.append(shape.get(name) or float(grid[len(grid) // 2]))
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(table.names))


def seed_ids(problem: SearchProblem, limit: int) -> IntArray:
    """Designs of the first generation, in order and without repeats, at most ``limit``.

    For every space the legal designs nearest to: the reference model; a ladder that trades width against depth at
    constant H²·L from the narrowest to the widest lattice value; the known models of the same class (dense or MoE),
    scaled to the budget. After them, for at most half of ``limit``, designs at equal quality with the reference model,
    spread evenly over all there are: they are rare in wide studies, and half of the answer is about them.
    """
    table, reference = problem.table, problem.reference
    moe = any(s.kind.moe for s in problem.spaces)
    shapes = [scaled(reference, problem.budget.total_params)]
    low, high = table.bounds("hidden_size") if "hidden_size" in table.names else (0, 0)
    base = shapes[0]
    grows = ("hidden_size", "num_attention_heads", "intermediate_size", "moe_intermediate_size")
    for width in np.geomspace(low, high, LADDER) if high else ():
        ratio = float(width) / base["hidden_size"]
        shapes.append({**base, **{n: base[n] * ratio for n in grows}, "num_hidden_layers": base["num_hidden_layers"] / ratio**2})
    shapes += [scaled(m, problem.budget.total_params) for m in known_models() if (m.num_experts > 0) == moe]
    values, spaces = _rows(table, shapes), len(problem.spaces)
    nearest = problem.projector.nearest(np.tile(np.arange(spaces), len(values)), np.repeat(values, spaces, axis=0))
    equal = problem.equal_quality_ids
    if len(equal):
        spread = np.linspace(0, len(equal) - 1, min(limit // 2, len(equal)))
        equal = equal[np.unique(spread.astype(np.int64))]
    ordered = np.concatenate((nearest[: limit - len(equal)], equal))
    _, first = np.unique(ordered, return_index=True)
    return ordered[np.sort(first)][:limit]


def known_models() -> list[Architecture]:
    """The package's published models, in a fixed order."""
    from ..costmodel.models import load_model, model_names

    return [load_model(name) for name in model_names()]
