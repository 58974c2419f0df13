"""Many architectures of one kind as a structure of arrays; the axis is ``(A,)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import parameters
from .architecture import _KIND_FIELDS, INTEGER_FIELDS, MAX_DIMENSION, Architecture, ArchitectureKind
from .checks import common_shape, position, whole_numbers
from .errors import InvalidValueError, check_keys, shown

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class ArchitectureBatch:
    """Designs that share one :class:`ArchitectureKind`; every attribute is an int64 array of shape ``(A,)``.

    Build with :meth:`from_arrays` (missing dimensions are 0, scalars broadcast) or :meth:`from_architectures`.
    """

    kind: ArchitectureKind
    hidden_size: IntArray
    intermediate_size: IntArray
    moe_intermediate_size: IntArray
    shared_expert_intermediate_size: IntArray
    num_hidden_layers: IntArray
    first_k_dense_replace: IntArray
    num_attention_heads: IntArray
    num_key_value_heads: IntArray
    head_dim: IntArray
    q_lora_rank: IntArray
    kv_lora_rank: IntArray
    qk_nope_head_dim: IntArray
    qk_rope_head_dim: IntArray
    v_head_dim: IntArray
    num_experts: IntArray
    num_experts_per_tok: IntArray
    n_shared_experts: IntArray
    sliding_window: IntArray
    num_sliding_window_layers: IntArray
    vocab_size: IntArray

    @classmethod
    def from_arrays(cls, kind: ArchitectureKind, **arrays: Any) -> ArchitectureBatch:
        """Validate once and broadcast to one axis.

        Args:
            kind: what all designs share.
            **arrays: dimension → whole numbers of shape ``(A,)`` or one for all; missing dimensions are 0.

        Raises:
            InvalidValueError: a broken rule; the message names the first design that breaks it, or lengths that do not fit.
            UnknownKeyError: an unknown dimension.
        """
        check_keys(arrays, INTEGER_FIELDS, "ArchitectureBatch")
        values = {name: whole_numbers(name, arrays.get(name, 0)) for name in INTEGER_FIELDS}
        shape = common_shape({name: v for name, v in values.items() if v.ndim}) or (1,)
        if len(shape) != 1:
            raise InvalidValueError(f"dimensions must be one-dimensional arrays, got shape {shape}; flatten them")
        full = {name: np.ascontiguousarray(np.broadcast_to(v, shape), dtype=np.int64) for name, v in values.items()}
        if kind.attention == "mla":
            full["num_key_value_heads"] = full["num_attention_heads"]
        shared, width = full["n_shared_experts"], full["shared_expert_intermediate_size"]
        full["shared_expert_intermediate_size"] = np.where((shared > 0) & (width == 0), full["moe_intermediate_size"], width)
        batch = cls(kind, **full)
        batch._check()
        return batch

    def _check(self) -> None:
        """Refuse the first design that breaks a rule: the message names its index, the rule, the values and the way out."""
        kind = self.kind
        for name in INTEGER_FIELDS:
            most = MAX_DIMENSION * (64 if name == "sliding_window" else 1)
            value = getattr(self, name)
            self._need((value >= 0) & (value <= most), f"{name} must be between 0 and {most}", "correct it", name)
        positive = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"]
        if kind.attention == "mla":
            positive += ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
        else:
            positive += ["head_dim"]
        positive += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"] if kind.moe else ["intermediate_size"]
        for name in positive:
            why = f"give it ({'mixture-of-experts' if kind.moe else 'dense'} designs with {kind.attention} attention have one)"
            self._need(getattr(self, name) >= 1, f"{name} must be at least 1", why, name)
        for small, large, rule in (
            ("num_experts_per_tok", "num_experts", "top_k must be at most num_experts"),
            ("first_k_dense_replace", "num_hidden_layers", "first_k_dense_replace must be at most num_hidden_layers"),
            ("num_sliding_window_layers", "num_hidden_layers", "num_sliding_window_layers must be at most num_hidden_layers"),
        ):
            self._need(getattr(self, small) <= getattr(self, large), rule, f"lower {small}", small, large)
        windowed = ("sliding_window", "num_sliding_window_layers")
        together = (self.sliding_window > 0) == (self.num_sliding_window_layers > 0)
        self._need(together, "sliding_window and num_sliding_window_layers go together", "give both or neither", *windowed)
        divides = self.num_attention_heads % self.num_key_value_heads == 0
        heads = ("num_attention_heads", "num_key_value_heads")
        self._need(divides, "n_kv_heads must divide n_heads", "take a divisor of the heads", *heads)
        if not kind.moe:
            self._need(self.num_experts == 0, "num_experts must be 0 in a batch of dense designs", "set kind.moe", "num_experts")

    def _need(self, ok: NDArray[np.bool_], rule: str, way_out: str, *names: str) -> None:
        if np.all(ok):
            return
        index = int(np.argmin(ok))
        values = ", ".join(f"{name}={int(getattr(self, name)[index])}" for name in names)
        raise InvalidValueError(f"{rule}, got {values} in design {index} of {len(self)}; {way_out}")

    def _row(self, index: int) -> dict[str, int]:
        return {name: int(getattr(self, name)[index]) for name in INTEGER_FIELDS}

    @classmethod
    def from_architectures(cls, designs: Sequence[Architecture]) -> ArchitectureBatch:
        """Stack designs of one kind.

        Raises:
            InvalidValueError: the list is empty or mixes kinds (see :func:`group_by_kind`).
        """
        if isinstance(designs, str) or not isinstance(designs, Sequence) or not designs:
            raise InvalidValueError(f"a batch needs a list of at least one architecture, got {shown(designs)}")
        for design in designs:
            if not isinstance(design, Architecture):
                raise InvalidValueError(f"a batch holds Architecture objects, got {shown(design)}; load_model gives one by name")
        kinds = {design.kind for design in designs}
        if len(kinds) > 1:
            raise InvalidValueError(f"a batch holds one kind of architecture, got {len(kinds)} kinds; use group_by_kind")
        arrays = {name: np.array([getattr(d, name) for d in designs], dtype=np.int64) for name in INTEGER_FIELDS}
        return cls.from_arrays(kinds.pop(), **arrays)

    def __len__(self) -> int:
        return len(self.hidden_size)

    def take(self, index: Any) -> ArchitectureBatch:
        """The designs at ``index`` (integers, a slice or a mask), not validated again."""
        return ArchitectureBatch(self.kind, **{name: np.atleast_1d(getattr(self, name)[index]) for name in INTEGER_FIELDS})

    def architecture(self, index: int, *, name: str = "") -> Architecture:
        """Design ``index`` as a scalar :class:`Architecture`.

        Raises:
            InvalidValueError: the batch has no such design.
        """
        index = position("design", index, len(self))
        values: dict[str, Any] = {**self._row(index), **{n: getattr(self.kind, n) for n in _KIND_FIELDS}}
        return Architecture(name=name, **values)

    def __iter__(self) -> Iterator[Architecture]:
        return (self.architecture(i) for i in range(len(self)))

    @property
    def total_params(self) -> IntArray:
        """Every stored weight, shape ``(A,)``."""
        return np.asarray(parameters.total_params(self.kind, self), dtype=np.int64)

    @property
    def active_params(self) -> IntArray:
        """Matrices that multiply a token, LM head included, shape ``(A,)``."""
        return np.asarray(parameters.active_params(self.kind, self), dtype=np.int64)

    @property
    def active_params_with_embedding(self) -> IntArray:
        """Active parameters plus the input look-up table, shape ``(A,)``."""
        return np.asarray(parameters.active_params_with_embedding(self.kind, self), dtype=np.int64)

    def parameter_parts(self) -> dict[str, IntArray]:
        """Stored parameters by part, each of shape ``(A,)``."""
        shape = self.hidden_size.shape
        parts = parameters.parameter_parts(self.kind, self)
        return {name: np.broadcast_to(np.asarray(count, dtype=np.int64), shape) for name, count in parts.items()}


def group_by_kind(designs: Iterable[Architecture]) -> list[tuple[list[int], ArchitectureBatch]]:
    """Split a mixed list into batches of one kind.

    Returns:
        ``(positions in the input, batch)`` pairs, in order of first appearance.

    Raises:
        InvalidValueError: not a list of designs.
    """
    if isinstance(designs, str) or not isinstance(designs, Iterable):
        raise InvalidValueError(f"designs must be a list of Architecture objects, got {shown(designs)}")
    groups: dict[ArchitectureKind, list[int]] = {}
    all_designs = list(designs)
    for where, design in enumerate(all_designs):
        if not isinstance(design, Architecture):
            raise InvalidValueError(f"designs must be Architecture objects, got {shown(design)} at index {where}")
        groups.setdefault(design.kind, []).append(where)
    return [(rows, ArchitectureBatch.from_architectures([all_designs[i] for i in rows])) for rows in groups.values()]
