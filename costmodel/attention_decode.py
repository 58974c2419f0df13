"""Decode attention (MHA, GQA, MQA; one new token a sequence, sliding window) on one GPU.

Equations (keys = KV tokens read by a sequence, b = bytes a value, n = thread blocks over SMs)::

    ideal   T = max(2·n_kv·d·b·keys·B/BW, 4·n_h·d·keys·B/F, n_h·keys·B/R)                        (1)
    fitted  T = max(ideal, t0 + (M³ + P³)^⅓ + c_q·B_qo/BW)                                       (2)
            P = o·max(n, n0) + max(n, 1)·w/s + r·(s - 1)
            M = KV/(BW·e_b),  w = t_k·b·max(keys − K0, 0),  r = t_r + t_v·heads·n
            s = min(max(√(w/r), 1), max(1/n, 1))

(1): the KV cache is read once per query group. (2): a thread block walks the keys of one (sequence, KV head); an
idle GPU splits them s ways, which costs r a split to combine (partial results grow with the heads of a block), so s is
the best split that still fits the GPU. The first K0 keys hide behind the block's own start o. The cubes are a smooth
maximum of the memory bound and of the SMs' pace. A group of more than ``wide_group`` query heads runs a wider and
slower block. P is the least over the splits that fit, so T is non-decreasing in batch, keys and heads. (2) is inferred
from measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .attention_common import (
    Array,
    AttentionCost,
    Parameter,
    at_head_size,
    fit_of,
    in_shape,
    keys_read,
    make_cost,
    math_of,
    parameters_from,
    read_sizes,
)
from .formats import get_format
from .hardware import Hardware
from .profile import KernelProfile, load_profile

BLOCK_HEADS = 128.0
"""Query heads of the widest thread block: the rows of one MMA tile (datasheet: 128-row tcgen05 tiles)."""


@dataclass(frozen=True)
class DecodeParameters:
    """Numbers of the decode kernel; most may be a list over ``head_sizes``. The defaults are equation (1).

    Attributes:
        head_sizes: head sizes that lists belong to.
        launch_seconds: t0, fixed time of a call.
        memory_efficiency: e_b, share of HBM bandwidth.
        block_seconds: o, fixed time of one thread block on one SM.
        idle_blocks: n0, blocks per SM that the fixed time t0 already holds.
        free_keys: K0, keys that hide behind the start of a block.
        key_seconds: t_k, time of one key per stored byte a value.
        split_seconds: t_r, time of combining one more split.
        partial_seconds: t_v, time of combining the partial results of one head, all SMs busy, per split.
        activation_factor: c_q, exposed time of queries and outputs over their bytes (2 + 2 a value) at HBM bandwidth.
        block_tile: query heads of one narrow block; 0 = the whole group.
        wide_group: query heads a KV head above which the wide block runs; 0 = never.
        wide_block_factor: fixed time of the wide block over the narrow one's.
        wide_key_factor: time of a key in the wide block over the narrow one's.
        l2_bytes: KV bytes that stay in L2 between repeats (``warm_l2`` only); 0 = none.
        l2_efficiency: bandwidth of those bytes over the HBM rate reached (``warm_l2`` only).
    """

    head_sizes: tuple[float, ...] = ()
    launch_seconds: Parameter = 0.0
    memory_efficiency: Parameter = 1.0
    block_seconds: Parameter = 0.0
    idle_blocks: Parameter = 0.0
    free_keys: Parameter = 0.0
    key_seconds: Parameter = 0.0
    split_seconds: Parameter = 0.0
    partial_seconds: Parameter = 0.0
    activation_factor: Parameter = 0.0
    block_tile: float = 0.0
    wide_group: float = 0.0
    wide_block_factor: Parameter = 1.0
    wide_key_factor: Parameter = 1.0
    l2_bytes: Parameter = 0.0
    l2_efficiency: Parameter = 1.0

    @property
    def neutral(self) -> bool:
        """True for the pure roofline."""
        return self == DecodeParameters()


@lru_cache(maxsize=256)
def _parameters(profile: KernelProfile, kv_format: str) -> DecodeParameters:
    return parameters_from(DecodeParameters, *fit_of(profile, "attention_decode", kv_format, math_of(kv_format)))


@lru_cache(maxsize=256)
def _one_head_parameters(profile: KernelProfile, kv_format: str) -> DecodeParameters | None:
    """Numbers of the kernel for one query head a KV head, where the stack runs another one there; else None."""
    listed = profile.families.get("attention_decode", {})
    name = next((n for n in (f"{kv_format}:mha", f"{math_of(kv_format)}:mha") if n in listed), None)
    return None if name is None else parameters_from(DecodeParameters, *fit_of(profile, "attention_decode", name))


@dataclass(frozen=True)
class DecodeShape:
    """What one decode call reads and computes; arrays that broadcast (shared with MLA).

    Attributes:
        sequences: batch, any shape.
        keys: keys read per sequence.
        blocks: thread blocks per sequence before splitting.
        block_heads: query heads one block serves.
        wide: whether the wide block runs.
        kv_bytes: KV bytes of one key of one sequence.
        flop: floating-point operations of one key of one sequence.
        scores: exponentials of one key of one sequence (query heads).
        activation_bytes: bytes of queries and outputs of one sequence.
    """

    sequences: Array
    keys: Array
    blocks: Array
    block_heads: Array
    wide: Any
    kv_bytes: Array
    flop: Array
    scores: Array
    activation_bytes: Array

    @property
    def dims(self) -> tuple[int, ...]:
        """Broadcast shape of the call."""
        return np.broadcast(self.sequences, self.keys, self.kv_bytes, self.activation_bytes).shape


def price_decode(
    shape: DecodeShape, p: DecodeParameters, hardware: Hardware, kv_format: str, head_dim: Array, *, warm_l2: bool = False
) -> tuple[Array, Array, Array]:
    """Equation (2) for any attention kind.

    Args:
        shape: work and bytes.
        p: the kernel's numbers.
        hardware: datasheet.
        kv_format: storage format of the cache; the math bound of (1) takes its rate.
        head_dim: head size at which lists of ``p`` are read.
        warm_l2: KV that fits L2 is read from there, and nothing is clamped to (1).

    Returns:
        seconds, memory seconds, (sequence, key) pairs.
    """
    bandwidth, sms = hardware.memory_bytes_per_second, hardware.sm_count
    peak, rate = hardware.peak_flop_per_second(math_of(kv_format)), hardware.exp2_per_second
    pairs = shape.sequences * shape.keys
    read_each = shape.kv_bytes / bandwidth
    ideal = pairs * np.maximum(np.maximum(shape.flop / peak, shape.scores / rate), read_each)
    if p.neutral:
        return np.asarray(ideal), pairs * read_each, pairs

    def at(value: Parameter) -> Any:
        return at_head_size(value, p.head_sizes, head_dim)

    memory = pairs * (read_each / at(p.memory_efficiency))
    if warm_l2 and np.any(p.l2_bytes):
        resident = 1.0 / (1.0 + (pairs * shape.kv_bytes / at(p.l2_bytes)) ** 8)
        memory = memory * (1.0 - resident + resident / at(p.l2_efficiency))
    stored = get_format(kv_format).activation_bytes
    block, key = at(p.block_seconds), at(p.key_seconds) * stored
    if np.any(shape.wide):
        block, key = (np.where(shape.wide, x * at(f), x) for x, f in ((block, p.wide_block_factor), (key, p.wide_key_factor)))
    load = shape.sequences * (shape.blocks / sms)
    walk = np.maximum(shape.keys - at(p.free_keys), 0.0) * key
    pace = block * np.maximum(load, at(p.idle_blocks))
    if np.any(p.split_seconds):
        each = at(p.split_seconds) + (at(p.partial_seconds) * shape.block_heads) * load
        fits = 1.0 / np.minimum(load, 1.0)
        splits = np.minimum(np.maximum(np.sqrt(walk / each), 1.0), fits)
        walk = walk / splits
        pace = pace + each * (splits - 1.0)
    pace = pace + np.maximum(load, 1.0) * walk
    seconds = np.cbrt(memory * memory * memory + pace * pace * pace)
    exposed = shape.activation_bytes * (at(p.activation_factor) / bandwidth)
    seconds = seconds + (at(p.launch_seconds) + shape.sequences * exposed)
    return np.asarray(seconds if warm_l2 else np.maximum(seconds, ideal)), memory, pairs


@dataclass(frozen=True)
class DecodeCall:
    """One decode call, read and checked: what :func:`attention_decode_seconds` and MLA's own share.

    Attributes:
        shape: work and bytes.
        parameters: the kernel's numbers.
        hardware: datasheet.
        kv_format: storage format of the cache.
        head_dim: head size at which lists of the parameters are read.
        one_head: numbers of the kernel for one query head a KV head (TensorRT-LLM on Hopper: MHA and GQA are two
            kernels; the switch is the profile's, and time may fall across it); None = the same.
    """

    shape: DecodeShape
    parameters: DecodeParameters
    hardware: Hardware
    kv_format: str
    head_dim: Array
    one_head: DecodeParameters | None = None

    def _price(self, warm_l2: bool) -> tuple[Array, Array, Array]:
        def at(p: DecodeParameters) -> tuple[Array, Array, Array]:
            return price_decode(self.shape, p, self.hardware, self.kv_format, self.head_dim, warm_l2=warm_l2)

        single = self.shape.block_heads == 1
        if self.one_head is None or not np.any(single):
            return at(self.parameters)
        if np.all(single):
            return at(self.one_head)
        seconds, memory, pairs = (np.where(single, *both) for both in zip(at(self.one_head), at(self.parameters), strict=True))
        return seconds, memory, pairs

    def seconds(self, warm_l2: bool) -> Array:
        """Equation (2), s, in the shape of the call."""
        return in_shape(self._price(warm_l2)[0], self.shape.dims)

    def cost(self, warm_l2: bool) -> AttentionCost:
        """Equation (2) with its parts; what is neither math, exp nor memory counts as launch."""
        seconds, memory, pairs = self._price(warm_l2)
        math = pairs * (self.shape.flop / self.hardware.peak_flop_per_second(math_of(self.kv_format)))
        exp = pairs * (self.shape.scores / self.hardware.exp2_per_second)
        launch = np.maximum(seconds - np.maximum(np.maximum(math, exp), memory), 0.0)
        return make_cost(seconds, math, exp, memory, launch, pairs * self.shape.flop, pairs * self.shape.kv_bytes)


def gqa_decode_shape(
    batch: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike,
    kv_format: str,
    wide_group: float,
) -> tuple[DecodeShape, Array]:
    """Work and bytes of one GQA decode call, and the head size as an array."""
    b, context, h, kv, d, w = read_sizes(
        batch=batch, context=context, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window
    )
    group = h / kv
    wide = group > wide_group if wide_group else False
    each = 2.0 * kv * d * get_format(kv_format).activation_bytes
    blocks, in_block, values = kv * np.ceil(group / BLOCK_HEADS), np.minimum(group, BLOCK_HEADS), 4.0 * h * d
    return DecodeShape(b, keys_read(context, w), blocks, in_block, wide, each, values, h, values), d


def _call(
    batch: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike,
    kv_format: str,
    profile: str | KernelProfile,
) -> DecodeCall:
    profile = load_profile(profile)
    p = _parameters(profile, kv_format)
    shape, d = gqa_decode_shape(batch, context, heads, kv_heads, head_dim, window, kv_format, p.wide_group)
    return DecodeCall(shape, p, profile.hardware, kv_format, d, _one_head_parameters(profile, kv_format))


def attention_decode_cost(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> AttentionCost:
    """Time and parts of one decode attention call; see :func:`attention_decode_seconds` for the arguments."""
    return _call(batch, context, heads, kv_heads, head_dim, window, kv_format, profile).cost(warm_l2)


def attention_decode_seconds(
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    window: ArrayLike = 0,
    kv_format: str = "fp8",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> Array:
    """Seconds of one decode attention call on one GPU; every argument broadcasts (keep small axes small: it is faster).

    Args:
        batch: sequences, any shape.
        context: KV tokens of a sequence that this GPU reads, the new one included, any shape.
        heads: query heads on this GPU, any shape.
        kv_heads: KV heads on this GPU, any shape.
        head_dim: head size, any shape.
        window: sliding window in tokens, 0 = full attention, any shape.
        kv_format: storage format of the KV cache.
        profile: kernel profile or its name.
        warm_l2: price a KV cache that fits L2 as already there (comparison with measured tables only).

    Returns:
        seconds, broadcast shape. Equation (1) with neutral parameters, else (2).

    Raises:
        InvalidValueError: a size is below 1 (``window``: below 0) or not finite, or the shapes do not broadcast.
        UnknownKeyError: no such format or profile.
    """
    return _call(batch, context, heads, kv_heads, head_dim, window, kv_format, profile).seconds(warm_l2)
