"""The join of all dimensions but the solved one, pruned by each rule as soon as its dimensions are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..costmodel.batch import IntArray
from ..costmodel.errors import InvalidValueError
from .alignment import FLOOR
from .quality import delta_loss_shape
from .rules import Rules
from .space import DesignSpace

Columns = dict[str, IntArray]
MAX_ROWS = 100_000_000  # under a minute; the largest built-in space takes 25 million
DESIGN_COST = 4  # rows of the join that one whole design costs
_ORDER = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "v_head_dim",
    "num_key_value_heads",
    "num_experts",
    "num_experts_per_tok",
)
# ratio → (dimensions it needs, the ratio); ratios of the solved width are judged after the solve
_RATIOS: dict[str, tuple[tuple[str, ...], Callable[[Columns], NDArray[np.float64]]]] = {
    "width_over_depth": (("hidden_size", "num_hidden_layers"), lambda c: c["hidden_size"] / c["num_hidden_layers"]),
    "heads_per_kv_head": (
        ("num_attention_heads", "num_key_value_heads"),
        lambda c: c["num_attention_heads"] / c["num_key_value_heads"],
    ),
    "attention_over_hidden": (
        ("num_attention_heads", "head_dim", "hidden_size"),
        lambda c: c["num_attention_heads"] * c["head_dim"] / c["hidden_size"],
    ),
    "experts_per_active_expert": (("num_experts", "num_experts_per_tok"), lambda c: c["num_experts"] / c["num_experts_per_tok"]),
}


class SpaceTooLargeError(InvalidValueError):
    """A space nobody can enumerate."""


def order(space: DesignSpace) -> tuple[list[str], list[str]]:
    """Every searched dimension but the solved one in the order of the join: those joined before the solve, and after.

    The last dimensions that do not change the total (top-k where no dense layer's width follows from it, the window
    pattern) wait until the budget is solved: most rows are gone by then, and the order of the legal set stays.
    """
    free = [name for name in space.dimensions if name != space.solved]
    names = [n for n in _ORDER if n in free] + [n for n in free if n not in _ORDER]
    idle = {"sliding_window_period", "sliding_window", "num_sliding_window_layers"}
    leading = "first_k_dense_replace" in space.dimensions or space.fixed.get("first_k_dense_replace", 0) > 0
    if not leading or "intermediate_size" in {*space.dimensions, *space.fixed}:
        idle.add("num_experts_per_tok")
    late: list[str] = []
    while names and names[-1] in idle:
        late.insert(0, names.pop())
    return (names, late) if names else (late, [])


def grow(space: DesignSpace, rules: Rules, columns: Columns, names: list[str], chunk: int, meter: Meter) -> Iterator[Columns]:
    """Join more dimensions to rows, pruned; at most about ``chunk`` rows at a time, in lexicographic order.

    Args:
        space: the lattice.
        rules: applied as soon as their dimensions are known.
        columns: rows so far, ``(R,)`` each; empty starts anew. Columns that are no dimension are carried along.
        names: dimensions to join, in order.
        chunk: rows held at a time.
        meter: counts the rows looked at.

    Raises:
        SpaceTooLargeError: more rows than the meter allows.
    """
    if not names:
        if columns:
            yield columns
        return
    name, rest = names[0], names[1:]
    values = np.array(space.dimensions[name], dtype=np.int64)
    rows = next(iter(columns.values())).shape[0] if columns else 1
    step = max(1, chunk // values.size)
    for start in range(0, rows, step):
        part = {key: np.repeat(column[start : start + step], values.size) for key, column in columns.items()}
        size = min(step, rows - start)
        part[name] = np.tile(values, size)
        meter.add(part[name].size)
        keep = _keep(space, rules, part, name)
        if keep.all():
            yield from grow(space, rules, part, rest, chunk, meter)
        elif keep.any():
            yield from grow(space, rules, {key: column[keep] for key, column in part.items()}, rest, chunk, meter)


class Meter:
    """Counts the rows that were looked at, so that a space nobody can enumerate ends with a message."""

    def __init__(self, space: DesignSpace, most: int) -> None:
        self._space, self._rows, self._most = space, 0, most

    def add(self, rows: int) -> None:
        """Note ``rows`` more.

        Raises:
            SpaceTooLargeError: they are too many.
        """
        self._rows += rows
        if self._rows > self._most:
            raise SpaceTooLargeError(
                f"space '{self._space.name}' spans {self._space.size:.2g} lattice points, and its rules leave more than "
                f"{self._most:.0e} of them to look at; narrow a range, widen a step, or tighten the bands"
            )


def _keep(space: DesignSpace, rules: Rules, columns: Columns, new: str) -> NDArray[np.bool_]:
    """Rules that became decidable with dimension ``new``."""
    shape = columns[new].shape
    known = {**{name: np.broadcast_to(np.int64(value), shape) for name, value in space.fixed.items()}, **columns}
    ok = np.ones(shape, dtype=bool)
    floors = rules.alignment

    def floor(name: str) -> int:
        return floors if isinstance(floors, int) else floors.get(name, FLOOR)

    if new == "hidden_size":
        ok &= known["hidden_size"] % floor("hidden_size") == 0
    pair = ("hidden_size", "num_hidden_layers")
    if new in pair and all(name in known for name in pair) and np.isfinite(rules.max_delta_loss_shape):
        ok &= delta_loss_shape(known[pair[0]], known[pair[1]]) <= rules.max_delta_loss_shape
    size = "v_head_dim" if space.kind.attention == "mla" else "head_dim"
    if new in ("num_attention_heads", size) and size in known and "num_attention_heads" in known:
        ok &= known["num_attention_heads"] * known[size] % floor("attention_width") == 0
    heads = ("num_attention_heads", "num_key_value_heads")
    if new in heads and all(name in known for name in heads) and space.kind.attention == "gqa":
        ok &= known[heads[0]] % known[heads[1]] == 0
    experts = ("num_experts", "num_experts_per_tok")
    if new in experts and all(name in known for name in experts):
        ok &= known[experts[1]] <= known[experts[0]]
    for ratio, (needs, compute) in _RATIOS.items():
        if ratio in rules.bands and new in needs and all(name in known for name in needs):
            if ratio in ("heads_per_kv_head", "attention_over_hidden") and space.kind.attention == "mla":
                continue
            low, high = rules.bands[ratio]
            value = compute(known)
            ok &= (value >= low * (1 - 1e-9)) & (value <= high * (1 + 1e-9))
    return ok
