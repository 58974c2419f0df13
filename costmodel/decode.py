"""One decode step as a breakdown, over architectures x layouts x concurrencies.

Time of a step (``ITL``) of C sequences in flight on one replica::

    turns  = min(PP, C)                          microbatches that take turns on the pipeline stages
    tokens = max(C / turns, 1)                   of one microbatch; rows = max(tokens / DPA, 1) on one attention rank
    sum    = all layers + head + PP hops         one microbatch through all stages
    worst  = slowest stage + hop                 ceil(L/PP) layers, or floor(L/PP) layers and the head
    ITL    = max(sum, turns * worst) + host

Without pipeline stages that is the plain sum. Steady state, no queueing; a fraction ``overlap`` of the communication
is hidden behind compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .batch import ArchitectureBatch
from .checks import number, numbers
from .collectives import send_seconds
from .errors import InvalidValueError, shown
from .formats import TensorFormats
from .layout import Layout, LayoutBatch
from .memory import as_batch, as_layouts, ceil_div
from .profile import DEFAULT_PROFILE, KernelProfile
from .step_attention import decode_attention
from .step_forward import (
    CATEGORIES,
    HEAD_PARTS,
    AttentionKernel,
    Table,
    chunks,
    fill_pass,
    gather_category,
    tables,
)
from .step_options import StepOptions, require_options
from .step_plan import StepPlan, decode_plan

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """Seconds of a decode step; every array has shape ``(A, P, C)``.

    Attributes:
        seconds: inter-token latency, s; the sum of the four categories.
        gemm_seconds: matrix products, experts included, s.
        attention_seconds: attention kernels, s.
        communication_seconds: collectives and pipeline hops that compute does not hide, s.
        other_seconds: norms, activations, sampling, host, waiting for the slowest pipeline stage, s.
    """

    seconds: FloatArray
    gemm_seconds: FloatArray
    attention_seconds: FloatArray
    communication_seconds: FloatArray
    other_seconds: FloatArray
    _inputs: tuple[ArchitectureBatch, StepPlan, AttentionKernel, StepOptions]

    @property
    def bound(self) -> NDArray[np.str_]:
        """The largest category of each point: ``gemm``, ``attention``, ``communication`` or ``other``."""
        stack = (self.gemm_seconds, self.attention_seconds, self.communication_seconds, self.other_seconds)
        return np.asarray(np.asarray(CATEGORIES)[np.argmax(np.stack(stack), axis=0)])

    @cached_property
    def parts(self) -> Mapping[str, FloatArray]:
        """Finer parts, each ``(A, P, C)``, s: one microbatch through all layers, before overlap and pipeline waiting."""
        b, plan, attention, options = self._inputs
        rows: dict[str, list[FloatArray]] = {}
        for piece in chunks(len(b), plan.shape[0] * plan.shape[1]):
            for name, table in tables(b.take(piece), plan, attention, options).items():
                rows.setdefault(name, []).append(table.key.gather(table.seconds))
        shape = self.seconds.shape
        return {name: np.concatenate(values).reshape(shape) for name, values in rows.items()}


def decode(
    architectures: Architecture | ArchitectureBatch,
    layouts: Layout | LayoutBatch,
    concurrency: float | Sequence[float] | FloatArray,
    *,
    context: float,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile = DEFAULT_PROFILE,
    **options: Any,
) -> DecodeStep:
    """Price a decode step of every design on every layout at every concurrency.

    Args:
        architectures: designs, ``(A,)``.
        layouts: layouts, ``(P,)``; whether one divides a design is :mod:`constraints`' matter (uneven shards are
            rounded up here).
        concurrency: sequences in flight on one replica, ``(C,)``, fractions allowed.
        context: KV tokens each sequence reads.
        formats: number formats of the tensor classes.
        profile: kernel profile or its name.
        **options: ``load``, ``overlap``, ``host_seconds``, ``moe_kernel``, … of :class:`.step_options.StepOptions`.

    Returns:
        arrays of shape ``(A, P, C)``.

    Raises:
        InvalidValueError: a concurrency or context that is not positive and finite, an option out of range, or something
            that is no design, layout or batch of them.
        UnknownKeyError: an unknown option, load, format or profile.
    """
    b, p = as_batch(architectures), as_layouts(layouts)
    loads = concurrency_grid(concurrency)
    context = number("context", context, "a positive number of tokens", above=True)
    chosen = require_options(options, formats=formats, profile=profile)
    return price_decode(b, p, decode_plan(p, loads), context, chosen)


def concurrency_grid(concurrency: float | Sequence[float] | FloatArray) -> tuple[float, ...]:
    """Concurrencies as a tuple of positive floats.

    Raises:
        InvalidValueError: one is not positive and finite, or there is none.
    """
    rule = "one or more positive numbers of sequences"
    values = np.atleast_1d(numbers("concurrency", concurrency, rule, above=True))
    if values.ndim != 1 or not values.size:
        raise InvalidValueError(f"concurrency must be {rule}, got {shown(concurrency)}; give a flat list")
    return tuple(values.tolist())


def price_decode(
    b: ArchitectureBatch, layouts: LayoutBatch, plan: StepPlan, context: float, options: StepOptions
) -> DecodeStep:
    """:func:`decode` on validated input and a plan of ``layouts`` (:func:`.step_plan.decode_plan`)."""
    points = plan.shape[0] * plan.shape[1]
    out = np.empty((4, len(b), points))
    attention = decode_attention(context)
    for piece in chunks(len(b), points):
        _fill(b.take(piece), layouts, plan, attention, options, out[:, piece])
    shape = (len(b), *plan.shape)
    gemm, attention_s, communication, other = (part.reshape(shape) for part in out)
    seconds = out.sum(axis=0).reshape(shape)
    return DecodeStep(seconds, gemm, attention_s, communication, other, (b, plan, attention, options))


def _fill(
    b: ArchitectureBatch, layouts: LayoutBatch, plan: StepPlan, attention: AttentionKernel, options: StepOptions, out: FloatArray
) -> None:
    """Fill ``out`` of shape ``(4, A, P * C)`` with the categories of one chunk, pipeline and host included."""
    found, shown = fill_pass(b, plan, attention, options, out)
    if np.any(layouts.pp > 1):
        _pipeline(b, layouts, plan, found, shown, options, out)
    constant = options.constant(b.kind.attention)
    if constant:
        # A negative constant corrects the kernel tables; it never takes more than half of the step.
        total = out.sum(axis=0)
        out[3] += np.maximum(constant, -0.5 * total)


def _pipeline(
    b: ArchitectureBatch, layouts: LayoutBatch, plan: StepPlan, found: Mapping[str, Table], shown: FloatArray | float,
    options: StepOptions, out: FloatArray,
) -> None:  # fmt: skip
    """Add hops and the wait for the slowest stage (module docstring)."""
    shape = (len(b), *plan.shape)
    head = sum(
        gather_category(found, category, out.shape[2], only=HEAD_PARTS)
        * (shown if category == "communication" else 1.0)
        for category in ("gemm", "communication", "other")
    )
    total = out.sum(axis=0)
    pp = np.broadcast_to(layouts.pp[None, :, None], shape).reshape(total.shape)
    group = (layouts.tpa * layouts.kvp)[:, None]
    hop_bytes = (plan.rows / group)[None] * (2.0 * b.hidden_size[:, None, None])
    scale_out = layouts.gpus > options.profile.hardware.scale_up_gpus
    inside = send_seconds(hop_bytes, profile=options.profile)
    outside = send_seconds(hop_bytes, scale_out=True, profile=options.profile)
    hop = np.where(scale_out[None, :, None], outside, inside).reshape(total.shape)
    hop = np.where(pp > 1, hop, 0.0)
    depth = b.num_hidden_layers[:, None]
    layers = total - head
    most, least = ceil_div(depth, pp) / depth, (depth // pp) / depth
    worst = np.maximum(most * layers, least * layers + head) + hop
    wait = np.maximum(plan.turns.reshape(1, -1) * worst - (total + pp * hop), 0.0)
    out[2] += pp * hop
    out[3] += np.where(pp > 1, wait, 0.0)

