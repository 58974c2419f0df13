"""Many architectures of one kind as a structure of arrays; the axis is ``(A,)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import parameters
from .architecture import _KIND_FIELDS, INTEGER_FIELDS, MAX_DIMENSION, Architecture, ArchitectureKind
from .errors import InvalidValueError, check_keys

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

        Raises:
            InvalidValueError: a broken rule; the message names the first design that breaks it.
        """
        check_keys(arrays, INTEGER_FIELDS, "ArchitectureBatch")
        values = {name: np.asarray(arrays.get(name, 0)) for name in INTEGER_FIELDS}
        for name, value in values.items():
            if value.dtype.kind not in "iu":
                raise InvalidValueError(f"{name} must hold whole numbers, got dtype {value.dtype}")
        shape = np.broadcast_shapes((1,), *(v.shape for v in values.values()))
        if len(shape) != 1:
            raise InvalidValueError(f"dimensions must be one-dimensional arrays, got shape {shape}")
        full = {name: np.ascontiguousarray(np.broadcast_to(v, shape), dtype=np.int64) for name, v in values.items()}
        if kind.attention == "mla":
            full["num_key_value_heads"] = full["num_attention_heads"]
        shared, width = full["n_shared_experts"], full["shared_expert_intermediate_size"]
        full["shared_expert_intermediate_size"] = np.where((shared > 0) & (width == 0), full["moe_intermediate_size"], width)
        batch = cls(kind, **full)
        batch._check()
        return batch

    def _check(self) -> None:
        need: list[tuple[str, Any]] = [
            (
                f"{name} must be between 0 and {MAX_DIMENSION}",
                (getattr(self, name) >= 0) & (getattr(self, name) <= MAX_DIMENSION * 64),
            )
            for name in INTEGER_FIELDS
        ]
        positive = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"]
        positive += (
            ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
            if self.kind.attention == "mla"
            else ["head_dim"]
        )
        positive += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"] if self.kind.moe else ["intermediate_size"]
        need += [(f"{name} must be at least 1", getattr(self, name) >= 1) for name in positive]
        need += [
            ("top_k must be at most num_experts", self.num_experts_per_tok <= self.num_experts),
            ("first_k_dense_replace must be at most num_hidden_layers", self.first_k_dense_replace <= self.num_hidden_layers),
            (
                "num_sliding_window_layers must be at most num_hidden_layers",
                self.num_sliding_window_layers <= self.num_hidden_layers,
            ),
            (
                "sliding_window and num_sliding_window_layers go together",
                (self.sliding_window > 0) == (self.num_sliding_window_layers > 0),
            ),
        ]
        for rule, ok in need:
            if not np.all(ok):
                index = int(np.argmin(ok))
                raise InvalidValueError(f"{rule}; design {index} breaks it: {self._row(index)}")
        if np.any(self.num_attention_heads % self.num_key_value_heads):
            index = int(np.argmax(self.num_attention_heads % self.num_key_value_heads > 0))
            raise InvalidValueError(
                f"n_kv_heads must divide n_heads, got n_heads={self.num_attention_heads[index]}, "
                f"n_kv_heads={self.num_key_value_heads[index]}"
            )
        if not self.kind.moe and np.any(self.num_experts):
            raise InvalidValueError("num_experts must be 0 in a batch of dense designs; set kind.moe")

    def _row(self, index: int) -> dict[str, int]:
        return {name: int(getattr(self, name)[index]) for name in INTEGER_FIELDS}

    @classmethod
    def from_architectures(cls, designs: Sequence[Architecture]) -> ArchitectureBatch:
        """Stack designs of one kind.

        Raises:
            InvalidValueError: the list is empty or mixes kinds (see :func:`group_by_kind`).
        """
        if not designs:
            raise InvalidValueError("a batch needs at least one architecture, got none")
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
        """Design ``index`` as a scalar :class:`Architecture`."""
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
    """
    groups: dict[ArchitectureKind, list[int]] = {}
    all_designs = list(designs)
    for position, design in enumerate(all_designs):
        groups.setdefault(design.kind, []).append(position)
    return [(where, ArchitectureBatch.from_architectures([all_designs[i] for i in where])) for where in groups.values()]
