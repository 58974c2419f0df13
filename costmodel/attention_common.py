"""What the attention kernels share: parameter tables over head sizes, window arithmetic, KV bytes, cost parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import common_shape, numbers
from .errors import InvalidValueError, check_keys
from .formats import get_format
from .profile import FamilyFit, KernelProfile

Array = NDArray[np.float64]
Parameter = float | tuple[float, ...]
BOUNDS = ("math", "exp", "memory", "launch")
"""Names of ``AttentionCost.bound`` codes, in order."""
MAY_BE_ZERO = frozenset({"past_tokens", "window", "qk_nope_head_dim", "qk_rope_head_dim"})
"""Sizes that may be absent: no cache yet, full attention, no part of a head with or without position."""


@dataclass(frozen=True)
class AttentionCost:
    """Time of one attention kernel and its parts; every array has the broadcast shape of the call.

    The parts are each resource's own time at the profile's efficiencies; how much they overlap is the profile's
    matter, so that ``seconds`` lies between the largest part and their sum.

    Attributes:
        seconds: time of the kernel, s.
        math_seconds: tensor-core time, s.
        exp_seconds: exponential-unit time, s.
        memory_seconds: memory time (queries, outputs, KV), s.
        launch_seconds: launch, per-tile overhead, idle-SM and reduction time, s.
        flop: floating-point operations, unpadded.
        kv_bytes: KV bytes read.
    """

    seconds: Array
    math_seconds: Array
    exp_seconds: Array
    memory_seconds: Array
    launch_seconds: Array
    flop: Array
    kv_bytes: Array

    @property
    def bound(self) -> NDArray[np.intp]:
        """Index into :data:`BOUNDS` of the largest part."""
        parts = (self.math_seconds, self.exp_seconds, self.memory_seconds, self.launch_seconds)
        return np.asarray(np.argmax(np.stack(parts), axis=0))


def make_cost(seconds: Array, math: Array, exp: Array, memory: Array, launch: Array, flop: Array, kv: Array) -> AttentionCost:
    """Broadcast the parts to one shape."""
    return AttentionCost(*np.broadcast_arrays(seconds, math, exp, memory, launch, flop, kv))


P = TypeVar("P")


def parameters_from(cls: Callable[..., P], fit: FamilyFit, where: str) -> P:
    """Build a parameter dataclass from a profile's numbers; lists must be as long as ``head_sizes``.

    Args:
        cls: a dataclass whose fields are parameters with neutral defaults.
        fit: the profile's numbers.
        where: place for messages.

    Raises:
        UnknownKeyError: a parameter the kernel does not have.
        InvalidValueError: a list whose length differs from ``head_sizes``, or sizes that do not rise.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    check_keys(fit.parameters, known, where)
    values = {k: tuple(float(x) for x in v) if isinstance(v, list | tuple) else float(v) for k, v in fit.parameters.items()}
    sizes = values.get("head_sizes", ())
    if not isinstance(sizes, tuple) or any(a >= b for a, b in pairwise((0.99, *sizes))):
        raise InvalidValueError(f"{where}: head_sizes must be a rising list of sizes from 1, got {sizes}")
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != len(sizes):
            raise InvalidValueError(f"{where}: {name} must be one number or one per head size ({len(sizes)}), got {len(value)}")
    return cls(**values)


def at_head_size(value: Parameter, head_sizes: tuple[float, ...], head_dim: Array) -> Any:
    """Parameter at ``head_dim``: linear in log head size between the fitted sizes, the nearest one beyond them.

    Args:
        value: one number, or one per entry of ``head_sizes``.
        head_sizes: rising head sizes that lists belong to.
        head_dim: head sizes asked for, any shape.
    """
    if not isinstance(value, tuple):
        return value
    if len(value) == 1 or all(v == value[0] for v in value):
        return value[0]
    return np.interp(np.log2(head_dim), np.log2(np.asarray(head_sizes)), np.asarray(value))


def fit_of(profile: KernelProfile, family: str, *formats: str) -> tuple[FamilyFit, str]:
    """The profile's fit for the first of ``formats`` that it lists, else its own fallback for the last.

    Returns:
        the fit and its place for messages.
    """
    listed = profile.families.get(family, {})
    for name in formats:
        if name in listed:
            return listed[name], f"{profile.name}: [{family}.{name}]"
    return profile.family(family, formats[-1]), f"{profile.name}: [{family}]"


@lru_cache(maxsize=64)
def math_of(number_format: str) -> str:
    """Tensor-core rate that attention math in ``number_format`` runs at; FP4 is stored, never multiplied: FP8."""
    math = get_format(number_format).math
    return "fp8" if math == "nvfp4" else math


def keys_read(context: Array, window: Array) -> Array:
    """Keys one query attends to: ``min(context, window)``; window 0 is full attention."""
    if window.ndim == 0:
        return np.minimum(context, window) if window > 0 else context
    return np.minimum(context, np.where(window > 0, window, np.inf))


def kv_bytes_per_token(
    *,
    kv_heads: ArrayLike = 0,
    head_dim: ArrayLike = 0,
    kv_lora_rank: ArrayLike = 0,
    qk_rope_head_dim: ArrayLike = 0,
    kv_format: str = "fp8",
) -> Array:
    """KV-cache bytes of one token in one layer on one GPU.

    ``2·kv_heads·head_dim·b`` for MHA, GQA and MQA; ``(kv_lora_rank + qk_rope_head_dim)·b`` for MLA, whose latent
    is shared by all heads (DeepSeek-V2, arXiv 2405.04434, Table 1). Give one pair and leave the other at 0.

    Args:
        kv_heads: KV heads on this GPU, any shape.
        head_dim: head size, any shape.
        kv_lora_rank: MLA latent width, any shape.
        qk_rope_head_dim: MLA shared rotary width, any shape.
        kv_format: storage format of the cache.

    Returns:
        bytes, broadcast shape.

    Raises:
        InvalidValueError: a width is negative or not finite, or the shapes do not broadcast.
    """
    named = {"kv_heads": kv_heads, "head_dim": head_dim, "kv_lora_rank": kv_lora_rank, "qk_rope_head_dim": qk_rope_head_dim}
    found = {name: numbers(name, value, "finite and >= 0") for name, value in named.items()}
    common_shape(found)
    values = 2.0 * found["kv_heads"] * found["head_dim"] + found["kv_lora_rank"] + found["qk_rope_head_dim"]
    return np.asarray(values * get_format(kv_format).activation_bytes)


def read_sizes(**sizes: ArrayLike) -> list[Array]:
    """The sizes of one attention call as float arrays in the order given, each in its own shape.

    Args:
        **sizes: argument name → numbers of any shape; all broadcast. At least 1, those of :data:`MAY_BE_ZERO` at least 0.

    Raises:
        InvalidValueError: names the argument, the rule and the first value that breaks it, or the shapes that do not fit.
    """
    way_out, arrays = "correct the shape or the layout", {}
    for name, value in sizes.items():
        low = 0.0 if name in MAY_BE_ZERO else 1.0
        arrays[name] = numbers(name, value, f"finite and >= {low:g}", low=low, way_out=way_out)
    common_shape(arrays)
    return list(arrays.values())


def in_shape(seconds: Array, dims: tuple[int, ...]) -> Array:
    """``seconds`` in the shape of the call, writable."""
    return seconds if seconds.shape == dims else np.array(np.broadcast_to(seconds, dims))
