"""Operating points of a deployment: tokens/s/GPU against tokens/s/user over layouts and concurrencies.

Modes (``ServingSetup.mode``)::

    decode          ITL = decode step; output tokens/s/GPU over the decode GPUs alone
    disaggregated   the same decode pool, plus the prefill pool that feeds it (:mod:`.disaggregated`)
    aggregated      prefill chunks share the decode steps (:mod:`.aggregated`)

Every sequence reads ``workload.decode_context`` tokens on average and may grow to ``workload.peak_context``, which is
what memory must hold for each (no eviction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .architecture import Architecture
from .batch import ArchitectureBatch
from .checks import number, numbers, whole
from .decode import price_decode
from .errors import InvalidValueError, shown
from .formats import TensorFormats
from .layout import MAX_GPUS, LayoutBatch
from .memory import USABLE_FRACTION, as_batch, max_concurrency
from .operating import best_at_rates, check_rates, frontier_area, log_rates
from .profile import DEFAULT_PROFILE, KernelProfile, load_profile
from .step_forward import chunks
from .step_options import StepOptions
from .step_plan import decode_plan
from .workload import MAX_CONTEXT, Workload

__all__ = [
    "DEFAULT_CONCURRENCY",
    "MODES",
    "RateTable",
    "ServingSetup",
    "frontier_area",
    "log_rates",
    "throughput_at_rates",
]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
MODES = ("decode", "disaggregated", "aggregated")
DEFAULT_CONCURRENCY = tuple(2.0 ** (i / 2) for i in range(31))  # 1 … 32768 in powers of √2; memory cuts it


@dataclass(frozen=True, eq=False, kw_only=True)
class ServingSetup:
    """What a design is deployed on.

    Attributes:
        workload: traffic and service goals.
        layouts: layouts of the (decode) replica, ``(P,)``.
        formats: number formats of the tensor classes.
        profile: kernel profile or its name.
        concurrency: rising sequences in flight of one replica, ``(C,)``.
        mode: ``decode``, ``disaggregated`` or ``aggregated``.
        overlap: share of communication hidden behind compute; ``None`` takes the profile's.
        options: further choices of :class:`.step_options.StepOptions` by name.
        usable_fraction: share of HBM for weights and KV cache.
        chunk_tokens: prompt tokens one prefill pass takes (per attention rank).
        prefill_layouts: layouts of the prefill pool; ``None`` = ``layouts``.
        prefill_formats: number formats of the prefill pool; ``None`` = ``formats``.
        prefill_efficiency: share of the prefill pool's rate that is used, (0, 1].
        decode_efficiency: the same for the decode pool. NVIDIA's configurator takes 0.90 and 0.92; here 1.
        gpu_budget: GPUs of both pools together for the integer split; 0 = no budget.
    """

    workload: Workload
    layouts: LayoutBatch
    formats: TensorFormats = field(default_factory=TensorFormats)
    profile: str | KernelProfile = DEFAULT_PROFILE
    concurrency: tuple[float, ...] = DEFAULT_CONCURRENCY
    mode: str = "decode"
    overlap: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    usable_fraction: float = USABLE_FRACTION
    chunk_tokens: int = 8192
    prefill_layouts: LayoutBatch | None = None
    prefill_formats: TensorFormats | None = None
    prefill_efficiency: float = 1.0
    decode_efficiency: float = 1.0
    gpu_budget: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r:.40}")
        if not isinstance(self.workload, Workload):
            raise InvalidValueError(f"workload must be a Workload, got {shown(self.workload)}")
        for name in ("layouts", "prefill_layouts"):
            if not isinstance(getattr(self, name), LayoutBatch) and (name == "layouts" or self.prefill_layouts is not None):
                raise InvalidValueError(f"{name} must be a LayoutBatch, got {shown(getattr(self, name))}; use from_layouts")
        grid = numbers("concurrency", self.concurrency, "positive and rising", above=True)
        if grid.ndim != 1 or not grid.size or np.any(np.diff(grid) <= 0):
            raise InvalidValueError(f"concurrency must be positive and rising, got {shown(self.concurrency)}; sort it")
        object.__setattr__(self, "concurrency", tuple(grid.tolist()))
        for name in ("prefill_efficiency", "decode_efficiency", "usable_fraction"):
            number(name, getattr(self, name), "above 0 and at most 1", above=True, high=1.0)
        whole("chunk_tokens", self.chunk_tokens, 1, MAX_CONTEXT)
        whole("gpu_budget", self.gpu_budget, 0, MAX_GPUS, "0 sets no budget")
        if self.gpu_budget == 1 and self.mode == "disaggregated":
            raise InvalidValueError("a disaggregated deployment needs a GPU in each pool: gpu_budget must be at least 2, got 1")
        if self.prefill_formats is not None and self.prefill_formats.kv != self.formats.kv:
            raise InvalidValueError(
                f"both pools must keep the same KV format, since the cache moves between them: got prefill "
                f"{self.prefill_formats.kv}, decode {self.formats.kv}"
            )
        _ = self.step_options()

    def step_options(self, *, prefill: bool = False) -> StepOptions:
        """The pass's options; ``prefill`` takes the prefill pool's formats."""
        formats = (self.prefill_formats or self.formats) if prefill else self.formats
        return StepOptions.make(formats, self.profile, load=self.workload.load, overlap=self.overlap, **self.options)

    def limits(self, b: ArchitectureBatch, allowed: BoolArray | None = None) -> FloatArray:
        """Sequences each replica holds, ``(A, P)``; 0 where the layout is not allowed."""
        held = max_concurrency(
            b,
            self.layouts,
            context=self.workload.peak_context,
            formats=self.formats,
            hardware=load_profile(self.profile).hardware,
            usable_fraction=self.usable_fraction,
        )
        if allowed is None:
            return held
        if np.shape(allowed) != held.shape:
            raise InvalidValueError(f"allowed must have shape (A, P) = {held.shape}, got {np.shape(allowed)}")
        return np.where(allowed, held, 0.0)

    def with_(self, **changes: Any) -> ServingSetup:
        """A copy with some settings changed."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False, slots=True)
class RateTable:
    """Best throughput at each user rate, over layouts and concurrencies.

    Attributes:
        rates: tokens/s/user, ``(R,)``.
        tokens_per_second_per_gpu: output tokens, ``(A, R)``; 0 = the rate is out of reach.
        layout_index: layout that gives it, ``(A, R)``; -1 = none.
        concurrency: sequences in flight of one replica there, ``(A, R)``.
    """

    rates: FloatArray
    tokens_per_second_per_gpu: FloatArray
    layout_index: NDArray[np.intp]
    concurrency: FloatArray

    def area(self, axis: str = "log") -> FloatArray:
        """:func:`frontier_area` over the table's rates, ``(A,)``."""
        return frontier_area(self.tokens_per_second_per_gpu, self.rates, axis)


def throughput_at_rates(
    architectures: Architecture | ArchitectureBatch,
    setup: ServingSetup,
    rates: ArrayLike,
    *,
    allowed: BoolArray | None = None,
) -> RateTable:
    """Best tokens/s/GPU when every user gets at least each rate.

    Within one layout the step time is linear in the concurrency between grid points, so the result is continuous in
    the design; concurrency is capped by memory. An ITL goal of the workload tightens every rate.

    Args:
        architectures: designs, ``(A,)``.
        setup: deployment.
        rates: tokens/s/user, ``(R,)``.
        allowed: layouts each design may use, ``(A, P)``; ``None`` = all.

    Returns:
        arrays of shape ``(A, R)``; 0 where no layout reaches the rate. Equation: :func:`.operating.best_at_rates`.

    Raises:
        InvalidValueError: a rate that is not positive, something that is no design or setup, or ``allowed`` of another shape.
    """
    if not isinstance(setup, ServingSetup):
        raise InvalidValueError(f"setup must be a ServingSetup, got {shown(setup)}")
    b, wanted = as_batch(architectures), check_rates(rates)
    limits = setup.limits(b, allowed)
    grid, gpus = np.asarray(setup.concurrency), setup.layouts.gpus.astype(np.float64)
    shape = (len(b), len(wanted))
    found, index, load = np.zeros(shape), np.full(shape, -1, dtype=np.intp), np.zeros(shape)
    effective = np.maximum(wanted, 1.0 / setup.workload.max_itl_seconds)
    for piece in chunks(len(b), len(gpus) * len(grid)):
        part = b.take(piece)
        itl, held = price_points(part, setup)
        best, throughput = best_at_rates(itl, grid, limits[piece], gpus, effective, held)
        throughput = deployed(part, setup, throughput)
        index[piece] = np.argmax(throughput, axis=1)
        found[piece] = np.max(throughput, axis=1)
        load[piece] = np.take_along_axis(best, index[piece][:, None], axis=1)[:, 0]
    index[found <= 0] = -1
    return RateTable(wanted, found, index, np.where(found > 0, load, 0.0))


def price_points(b: ArchitectureBatch, setup: ServingSetup) -> tuple[FloatArray, FloatArray | None]:
    """ITL of every point in the setup's mode and the seconds a place is held per token where they differ, ``(A, P, C)``."""
    if setup.mode == "aggregated":
        from .aggregated import aggregated_seconds

        return aggregated_seconds(b, setup)
    plan = decode_plan(setup.layouts, setup.concurrency)
    return price_decode(b, setup.layouts, plan, setup.workload.decode_context, setup.step_options()).seconds, None


def deployed(b: ArchitectureBatch, setup: ServingSetup, throughput: FloatArray) -> FloatArray:
    """Tokens/s/GPU of the whole deployment from those of the decode GPUs; shape ``(A, ...)``."""
    if setup.mode != "disaggregated":
        return throughput
    from .disaggregated import with_prefill_pool

    return with_prefill_pool(b, setup, throughput)
