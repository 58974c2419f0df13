"""Why each dimension stands where it does: what the next lattice step would break and what it would change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..constraints.deployable import throughput_at_allowed
from ..constraints.space import DesignSpace
from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch, group_by_kind
from ..costmodel.errors import InvalidValueError
from ..search.problem import SearchProblem


@dataclass(frozen=True, slots=True)
class LatticeStep:
    """One dimension moved by one lattice step, everything else kept.

    Attributes:
        dimension: which.
        direction: ``up`` or ``down``.
        value: where it stands.
        next_value: where the step leads; None at the lattice's end or where it is pinned.
        binds: what forbids the step, worst first: constraint names with how far beyond, or why it cannot be built; empty where
            the step is legal.
        change: tokens/s/GPU after the step over before, minus 1, at each rate; NaN where it cannot be priced.
        loss_change: predicted loss after minus before, nats/token; NaN where it cannot be built.
    """

    dimension: str
    direction: str
    value: int
    next_value: int | None
    binds: tuple[str, ...]
    change: tuple[float, ...]
    loss_change: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _neighbour(space: DesignSpace, dimension: str, value: int, step: int) -> int | None:
    values = space.dimensions[dimension]
    position = values.index(value) + step if value in values else -1
    return values[position] if 0 <= position < len(values) else None


def _stepped(problem: SearchProblem, design: Architecture, dimension: str, value: int) -> Architecture:
    """The design with one searched dimension changed; derived dimensions follow."""
    space = problem.spaces[0]
    batch = ArchitectureBatch.from_architectures([design])
    columns = space.columns(batch)
    columns[dimension] = np.array([value], dtype=np.int64)
    return space.batch(columns).architecture(0)


def _binding(problem: SearchProblem, design: Architecture) -> tuple[str, ...]:
    batch = ArchitectureBatch.from_architectures([design])
    violations = {**problem.budget.violations(batch), **problem.rules.violations(batch)}
    broken = sorted(((float(v[0]), name) for name, v in violations.items() if v[0] > 0), reverse=True)
    found = []
    for value, name in broken:
        if name in ("total_params", "active_params"):
            wanted = getattr(problem.budget, name)
            change = getattr(design, name) / wanted - 1
            found.append(f"{name} {change:+.1%} (tolerance {problem.budget.tolerance:.1%})")
        else:
            found.append(f"{name} {value:.1%} beyond its limit")
    return tuple(found)


def explain(problem: SearchProblem, designs: Sequence[Architecture], rates: Sequence[float]) -> list[list[LatticeStep]]:
    """Every searched dimension of each design, moved one lattice step up and down.

    Args:
        problem: one space with budget and rules.
        designs: designs of that space.
        rates: user rates, tokens/s/user.

    Returns:
        one list of steps per design, dimensions in the space's order, up before down.
    """
    space = problem.spaces[0]
    plans: list[list[tuple[str, str, int, int | None, Architecture | None, str]]] = []
    for design in designs:
        rows: list[tuple[str, str, int, int | None, Architecture | None, str]] = []
        for dimension in space.dimensions:
            value = int(space.columns(ArchitectureBatch.from_architectures([design]))[dimension][0])
            for direction, step in (("up", 1), ("down", -1)):
                following = _neighbour(space, dimension, value, step)
                moved, why = None, ""
                if following is not None:
                    try:
                        moved = _stepped(problem, design, dimension, following)
                    except InvalidValueError as error:
                        why = str(error).split(";")[0][:160]
                rows.append((dimension, direction, value, following, moved, why))
        plans.append(rows)
    prices = _throughput(problem, [d for d in designs] + [r[4] for rows in plans for r in rows if r[4] is not None], rates)
    return [[_step(problem, design, row, prices) for row in rows] for design, rows in zip(designs, plans, strict=True)]


def _throughput(problem: SearchProblem, designs: Sequence[Architecture], rates: Sequence[float]) -> dict[Architecture, Any]:
    unique = list(dict.fromkeys(designs))
    found: dict[Architecture, Any] = {}
    for where, batch in group_by_kind(unique):
        allowed = problem.rules.layouts_allowed(batch, problem.setup.layouts)
        table = throughput_at_allowed(batch, problem.setup, np.asarray(rates, dtype=np.float64), allowed)
        found |= {unique[i]: table.tokens_per_second_per_gpu[row] for row, i in enumerate(where)}
    return found


def _step(problem: SearchProblem, design: Architecture, row: tuple[Any, ...], prices: dict[Architecture, Any]) -> LatticeStep:
    from ..constraints.quality import predicted_loss

    dimension, direction, value, following, moved, why = row
    if moved is None:
        pinned = len(problem.spaces[0].dimensions[dimension]) == 1
        reason = why or ("pinned" if pinned else "end of the searched range")
        nothing = tuple(math.nan for _ in prices[design])
        return LatticeStep(dimension, direction, value, following, (reason,), nothing, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = tuple((prices[moved] / prices[design] - 1.0).tolist())
    losses = [float(predicted_loss(d, problem.train_tokens)[0]) for d in (moved, design)]
    return LatticeStep(dimension, direction, value, following, _binding(problem, moved), change, losses[0] - losses[1])
