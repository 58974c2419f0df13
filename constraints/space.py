"""The lattice of designs a study may choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel import ArchitectureBatch, ArchitectureKind, InvalidValueError, TensorFormats, parameters
from ..costmodel.architecture import INTEGER_FIELDS, MAX_DIMENSION
from ..costmodel.checks import whole, whole_list
from ..costmodel.errors import check_keys

IntArray = NDArray[np.int64]
# `sliding_window_period` p: of every p layers p - 1 use the window (gpt-oss 2, gemma 3 6); 1 = none do.
DIMENSIONS = (*INTEGER_FIELDS, "sliding_window_period")
_NEVER_ZERO = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
MAX_VALUES = 4096  # lattice values of one dimension


@dataclass(frozen=True, eq=False)
class DesignSpace:
    """A family of designs: one kind, one set of formats, some dimensions searched and the rest fixed.

    Attributes:
        name: family name, e.g. ``gqa`` or ``mla-fp8``.
        kind: the statics all designs share.
        dimensions: searched dimension → its sorted lattice values.
        fixed: the other dimensions' values; what is in neither is 0, or derived (see :meth:`complete`).
        formats: number format per tensor class.

    Raises:
        InvalidValueError: unknown, empty, oversized or unsorted dimensions, or one that is searched and fixed.
    """

    name: str
    kind: ArchitectureKind
    dimensions: Mapping[str, tuple[int, ...]]
    fixed: Mapping[str, int] = field(default_factory=dict)
    formats: TensorFormats = field(default_factory=TensorFormats)

    def __post_init__(self) -> None:
        check_keys([*self.dimensions, *self.fixed], DIMENSIONS, f"space '{self.name}'")
        for name, value in self.fixed.items():
            whole(f"space '{self.name}': {name}", value, 0, 64 * MAX_DIMENSION)
        for name, values in self.dimensions.items():
            whole_list(f"space '{self.name}': {name}", values, 0, 64 * MAX_DIMENSION)
        for name, values in self.dimensions.items():
            if name in self.fixed:
                raise InvalidValueError(f"space '{self.name}': {name} is both searched and fixed; keep one")
            if not 1 <= len(values) <= MAX_VALUES:
                raise InvalidValueError(f"space '{self.name}': {name} must have 1 to {MAX_VALUES} values, has {len(values)}")
            if any(b <= a for a, b in pairwise(values)):
                raise InvalidValueError(f"space '{self.name}': values of {name} must rise")
        for name in _NEVER_ZERO:
            if 0 in (*self.dimensions.get(name, ()), self.fixed.get(name, 1)):
                raise InvalidValueError(f"space '{self.name}': {name} must be at least 1, got 0")
        given = {*self.dimensions, *self.fixed}
        if "sliding_window_period" in given and "sliding_window" not in given:
            raise InvalidValueError(
                f"space '{self.name}': sliding_window_period needs sliding_window, the window's tokens; add it"
            )
        if self.solved not in self.dimensions:
            raise InvalidValueError(
                f"space '{self.name}': {self.solved} must be searched, because the parameter budget is solved for it"
            )
        object.__setattr__(self, "dimensions", MappingProxyType(dict(self.dimensions)))
        object.__setattr__(self, "fixed", MappingProxyType(dict(self.fixed)))

    @property
    def solved(self) -> str:
        """The dimension the budget is solved for: H′e of a MoE, H′ of a dense model."""
        return "moe_intermediate_size" if self.kind.moe else "intermediate_size"

    @property
    def size(self) -> int:
        """Lattice points before any constraint."""
        return int(np.prod([len(v) for v in self.dimensions.values()], dtype=object))

    def complete(self, columns: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Add fixed and derived dimensions to searched ones.

        Derived where not given: leading-dense width of a MoE (k + shared)·H′e, shared expert width H′e, KV heads of
        MLA = heads, windowed layers from ``sliding_window_period``.

        Args:
            columns: dimension → int64 array of shape ``(A,)``.

        Returns:
            dimension → array, ready for ``ArchitectureBatch.from_arrays``.
        """
        shape = next(iter(columns.values())).shape
        return {name: np.broadcast_to(value, shape) for name, value in self._derived(columns).items()}

    def _derived(self, columns: Mapping[str, IntArray]) -> dict[str, Any]:
        """Fixed, searched and derived dimensions, what is one number for all designs as that number."""
        zero = np.int64(0)
        full: dict[str, Any] = {name: np.int64(value) for name, value in self.fixed.items()}
        full.update(columns)
        if self.kind.moe:
            width = full["moe_intermediate_size"]
            shared = full.get("n_shared_experts", zero)
            if "shared_expert_intermediate_size" not in full:
                full["shared_expert_intermediate_size"] = np.where(shared > 0, width, 0)
            if "intermediate_size" not in full:
                leading = full.get("first_k_dense_replace", zero)
                full["intermediate_size"] = np.where(leading > 0, (full.get("num_experts_per_tok", zero) + shared) * width, 0)
        if self.kind.attention == "mla":
            full["num_key_value_heads"] = full["num_attention_heads"]
        period = full.pop("sliding_window_period", None)
        if period is not None:
            layers = full["num_hidden_layers"]
            full["num_sliding_window_layers"] = layers - -(-layers // period)
            full["sliding_window"] = np.where(full["num_sliding_window_layers"] > 0, full["sliding_window"], 0)
        return full

    def total_params(self, columns: Mapping[str, IntArray]) -> IntArray:
        """Every stored weight of designs given by columns, ``(A,)``, not validated; what has no weights may be absent."""
        named = {**dict.fromkeys(INTEGER_FIELDS, np.int64(0)), **self._derived(columns)}
        shape = next(iter(columns.values())).shape
        return np.broadcast_to(parameters.total_params(self.kind, SimpleNamespace(**named)), shape)

    def batch(self, columns: Mapping[str, IntArray]) -> ArchitectureBatch:
        """Searched columns → a validated batch."""
        return ArchitectureBatch.from_arrays(self.kind, **self.complete(columns))

    def unchecked(self, columns: Mapping[str, IntArray]) -> ArchitectureBatch:
        """The same without validation, for columns whose designs are known to be valid (see :func:`sound`).

        Dimensions that are fixed or absent are one value seen from every row: read-only, no memory.
        """
        full = self.complete(columns)
        shape = next(iter(columns.values())).shape
        absent = np.broadcast_to(np.int64(0), shape)
        return ArchitectureBatch(self.kind, **{name: full.get(name, absent) for name in INTEGER_FIELDS})

    def columns(self, batch: ArchitectureBatch) -> dict[str, IntArray]:
        """The searched dimensions of a batch of this space (inverse of :meth:`batch`)."""
        found: dict[str, IntArray] = {}
        for name in self.dimensions:
            if name == "sliding_window_period":
                full = batch.num_hidden_layers - batch.num_sliding_window_layers
                periods = np.array(self.dimensions[name], dtype=np.int64)
                options = -(-batch.num_hidden_layers[:, None] // periods[None, :])
                found[name] = periods[np.argmax(options == full[:, None], axis=1)]
            else:
                found[name] = getattr(batch, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.dimensions)


def sound(space: DesignSpace) -> bool:
    """Whether no combination of the space's values that the join leaves can break a rule of ``ArchitectureBatch``.

    The join keeps KV heads that divide the heads and a top-k of at most the experts where one of the two is searched;
    every other rule compares one dimension with a constant or with another dimension, so that the smallest and largest
    values decide. Where this says no, designs are validated one by one.
    """
    ends = {name: (values[0], values[-1]) for name, values in space.dimensions.items()}
    ends |= {name: (value, value) for name, value in space.fixed.items()}

    def low(name: str) -> int:
        return ends.get(name, (0, 0))[0]

    def high(name: str) -> int:
        return ends.get(name, (0, 0))[1]

    mla = space.kind.attention == "mla"
    needed = ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] if mla else ["head_dim"]
    needed += [] if mla else ["num_key_value_heads"]
    needed += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"] if space.kind.moe else ["intermediate_size"]
    needed += [*_NEVER_ZERO, *(["sliding_window"] if "sliding_window_period" in ends else [])]
    if any(low(name) < 1 for name in needed) or any(not 0 <= a <= b <= MAX_DIMENSION for a, b in ends.values()):
        return False
    if space.kind.moe:
        if "shared_expert_intermediate_size" in ends and low("shared_expert_intermediate_size") < 1:
            return False
        if high("num_experts_per_tok") > low("num_experts") and not {"num_experts", "num_experts_per_tok"} & {*space.dimensions}:
            return False
        widest = (high("num_experts_per_tok") + high("n_shared_experts")) * high("moe_intermediate_size")
    elif high("num_experts"):
        return False
    else:
        widest = high("intermediate_size")
    if not mla and not {"num_attention_heads", "num_key_value_heads"} & {*space.dimensions}:
        return False
    windows = "num_sliding_window_layers" in ends or ("sliding_window" in ends and "sliding_window_period" not in ends)
    return not windows and high("first_k_dense_replace") <= low("num_hidden_layers") and widest <= MAX_DIMENSION


def lattice(low: int, high: int, step: int) -> tuple[int, ...]:
    """Multiples of ``step`` from ``low`` to ``high``, both included when they are multiples.

    Raises:
        InvalidValueError: a bound or the step is not positive, or the range holds no multiple.
    """
    for name, value in (("low", low), ("high", high), ("step", step)):
        whole(name, value, -(2**62), 2**62)
    if step < 1 or low < 0 or high < low:
        raise InvalidValueError(f"a range needs step >= 1 and 0 <= low <= high, got low={low}, high={high}, step={step}")
    first = -(-low // step) * step
    if (high - first) // step + 1 > MAX_VALUES:
        raise InvalidValueError(
            f"a range may hold {MAX_VALUES} values, low={low}, high={high}, step={step} holds more; widen the step"
        )
    values = tuple(range(first, high + 1, step))
    if not values:
        raise InvalidValueError(f"no multiple of {step} lies between {low} and {high}")
    return values
