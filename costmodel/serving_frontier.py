"""The frontier of one architecture: every layout x concurrency (x split) priced once, the non-dominated points kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .batch import ArchitectureBatch
from .decode import price_decode
from .errors import InvalidValueError, shown
from .layout import Layout
from .memory import as_batch, gpus_needed
from .operating import check_rates, frontier_area, log_rates, upper_envelope
from .profile import load_profile
from .serving import ServingSetup, throughput_at_rates
from .step_forward import CATEGORIES
from .step_options import constant_share
from .step_plan import decode_plan_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
AREA = (10.0, 200.0, 17)  # tokens/s/user: bounds and samples of the frontier area, in every command and study (design choice)


@dataclass(frozen=True, eq=False, slots=True)
class Points:
    """Operating points, every array of shape ``(N,)``.

    Attributes:
        layout_index: (decode) layout in the setup.
        concurrency: sequences in flight of one replica.
        itl_seconds: inter-token latency, s.
        ttft_seconds: time to first token of an unloaded system, s; NaN in mode ``decode``.
        tokens_per_second_per_gpu: output tokens over all GPUs of the deployment.
        input_output_tokens_per_second_per_gpu: prompt and output tokens together, as some public benchmarks count.
        prefill_layout_index: layout of the prefill pool; -1 = none.
        prefill_workers: replicas of the prefill pool; 0 = none. Fractions where no GPU budget asks for whole ones.
        decode_workers: replicas of the (decode) pool.
        breakdown: seconds of the decode step by category, ``(4, N)``, in the order of ``CATEGORIES``.
    """

    layout_index: IntArray
    concurrency: FloatArray
    itl_seconds: FloatArray
    ttft_seconds: FloatArray
    tokens_per_second_per_gpu: FloatArray
    input_output_tokens_per_second_per_gpu: FloatArray
    prefill_layout_index: IntArray
    prefill_workers: FloatArray
    decode_workers: FloatArray
    breakdown: FloatArray

    def __len__(self) -> int:
        return len(self.layout_index)

    @property
    def tokens_per_second_per_user(self) -> FloatArray:
        """1 / ITL."""
        return 1.0 / self.itl_seconds

    def take(self, index: Any) -> Points:
        """The points at ``index``."""
        fields = {name: getattr(self, name)[..., index] for name in self.__dataclass_fields__}
        return Points(**fields)


@dataclass(frozen=True, eq=False, slots=True)
class Frontier:
    """Non-dominated operating points by rising tokens/s/user.

    Attributes:
        architecture: the design.
        setup: its deployment.
        points: the frontier's points.
        evaluated: points priced.
        allowed: layouts that were allowed, ``(1, P)``, or ``None``.
    """

    architecture: Architecture
    setup: ServingSetup
    points: Points
    evaluated: int
    allowed: BoolArray | None = None

    def layout(self, index: int) -> Layout:
        """Layout of frontier point ``index``."""
        return self.setup.layouts.layout(int(self.points.layout_index[index]))

    @property
    def bound(self) -> NDArray[np.str_]:
        """Largest category of each point's step."""
        return np.asarray(np.asarray(CATEGORIES)[np.argmax(self.points.breakdown, axis=0)])

    def area(self, low: float = AREA[0], high: float = AREA[1], *, axis: str = "log", samples: int = AREA[2]) -> float:
        """Area between two user rates (see :func:`.operating.frontier_area`), from the continuous rate table."""
        rates = log_rates(low, high, samples)
        table = throughput_at_rates(self.architecture, self.setup, rates, allowed=self.allowed)
        return float(frontier_area(table.tokens_per_second_per_gpu, rates, axis)[0])

    def at_rate(self, rate: float) -> float:
        """Tokens/s/GPU when every user gets at least ``rate``; 0 out of reach."""
        table = throughput_at_rates(self.architecture, self.setup, check_rates([rate]), allowed=self.allowed)
        return float(table.tokens_per_second_per_gpu[0, 0])

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a point, by the stable names of tables and JSON."""
        p = self.points
        constant = self.setup.step_options().constant(self.architecture.attention)
        found = []
        for i in range(len(p)):
            row: dict[str, Any] = {
                **self.layout(i).to_dict(),
                "concurrency": float(p.concurrency[i]),
                "tokens_per_second_per_gpu": float(p.tokens_per_second_per_gpu[i]),
                "tokens_per_second_per_user": float(p.tokens_per_second_per_user[i]),
                "itl_seconds": float(p.itl_seconds[i]),
                "ttft_seconds": None if np.isnan(p.ttft_seconds[i]) else float(p.ttft_seconds[i]),
                "breakdown": {name: float(p.breakdown[j, i]) for j, name in enumerate(CATEGORIES)},
                "step_constant_seconds": constant_share(constant, float(p.breakdown[:, i].sum())),  # inside other
                "bound": str(self.bound[i]),
            }
            if self.setup.mode != "decode":
                row["input_output_tokens_per_second_per_gpu"] = float(p.input_output_tokens_per_second_per_gpu[i])
            if p.prefill_layout_index[i] >= 0:
                pool = self.setup.prefill_layouts or self.setup.layouts
                row["prefill_layout"] = pool.layout(int(p.prefill_layout_index[i])).to_dict()
                row["prefill_workers"] = float(p.prefill_workers[i])
                row["decode_workers"] = float(p.decode_workers[i])
            found.append(row)
        return found


def frontier(architecture: Architecture, setup: ServingSetup, *, allowed: BoolArray | None = None) -> Frontier:
    """Non-dominated points of ``architecture`` over all layouts, concurrencies and (disaggregated) splits.

    Each layout is also priced at exactly the concurrency its memory allows. TTFT and ITL goals of the workload are
    held.

    Args:
        architecture: one design.
        setup: its deployment: workload, layouts ``(P,)``, concurrencies ``(C,)``, formats, profile, mode.
        allowed: layouts it may use, ``(P,)`` or ``(1, P)``; ``None`` = all.

    Returns:
        the points by rising tokens/s/user; ``evaluated`` counts the P·(C + 1) that were priced.

    Raises:
        InvalidValueError: ``architecture`` or ``setup`` is something else, ``allowed`` has another shape, no layout holds
            the model and one sequence (says how many GPUs it takes), or none meets the goals (says the best reachable).
    """
    b = as_batch(architecture)
    if len(b) != 1 or not isinstance(setup, ServingSetup):
        raise InvalidValueError(f"frontier needs one design and a ServingSetup, got {len(b)} design(s) and {shown(setup)}")
    if allowed is not None:
        allowed = np.atleast_2d(np.asarray(allowed, dtype=bool))
    limits = setup.limits(b, allowed)
    _check_fits(architecture, setup, limits, allowed)
    points, usable = price_frontier(b, setup, limits[0])
    goals = setup.workload
    good = usable & (points.itl_seconds <= goals.max_itl_seconds) & ~(points.ttft_seconds > goals.max_ttft_seconds)
    if not np.any(good):
        raise InvalidValueError(_best_reachable(points, usable, setup))
    kept = upper_envelope(points.tokens_per_second_per_gpu, points.tokens_per_second_per_user, good)
    evaluated = len(setup.layouts) * (len(setup.concurrency) + 1)
    return Frontier(architecture, setup, points.take(kept), evaluated, allowed)


def price_frontier(b: ArchitectureBatch, setup: ServingSetup, limits: FloatArray) -> tuple[Points, BoolArray]:
    """Every point of one design and which of them memory allows."""
    if setup.mode == "aggregated":
        from .aggregated import aggregated_points

        return aggregated_points(b, setup, limits)
    grid = point_grid(setup, limits)
    plan = decode_plan_of(setup.layouts, grid)
    step = price_decode(b, setup.layouts, plan, setup.workload.decode_context, setup.step_options())
    usable = np.broadcast_to(grid <= limits[:, None], plan.shape)
    points = make_points(
        setup,
        grid,
        step.seconds[0],
        np.stack([step.gemm_seconds[0], step.attention_seconds[0], step.communication_seconds[0], step.other_seconds[0]]),
    )
    if setup.mode == "disaggregated":
        from .disaggregated import disaggregated_points

        return disaggregated_points(b, setup, points, usable.reshape(-1))
    return points, usable.reshape(-1)


def point_grid(setup: ServingSetup, limits: FloatArray) -> FloatArray:
    """Concurrencies of each layout, ``(P, C + 1)``: the setup's grid and the memory limit itself (inside the grid's range)."""
    grid = np.asarray(setup.concurrency)
    last = np.clip(limits, grid[0], grid[-1])[:, None]
    return np.concatenate([np.broadcast_to(grid, (len(limits), len(grid))), last], axis=1)


def make_points(setup: ServingSetup, grid: FloatArray, itl: FloatArray, breakdown: FloatArray) -> Points:
    """Points of a decode-only deployment from ``(P, C)`` arrays."""
    shape = itl.shape
    index = np.broadcast_to(np.arange(shape[0], dtype=np.intp)[:, None], shape).reshape(-1)
    load = np.ascontiguousarray(np.broadcast_to(grid, shape)).reshape(-1)
    seconds = itl.reshape(-1)
    throughput = load / (seconds * setup.layouts.gpus[index])
    both = throughput * (1.0 + setup.workload.input_tokens / setup.workload.output_tokens)
    none = np.full(seconds.shape, np.nan)
    return Points(
        index,
        load,
        seconds,
        none,
        throughput,
        both,
        np.full(seconds.shape, -1, dtype=np.intp),
        np.zeros_like(seconds),
        np.ones_like(seconds),
        breakdown.reshape(4, -1),
    )


def _check_fits(architecture: Architecture, setup: ServingSetup, limits: FloatArray, allowed: BoolArray | None) -> None:
    grid = setup.concurrency
    if np.any(limits >= grid[0]):
        return
    name = architecture.name or "the model"
    if allowed is not None and not np.any(allowed):
        raise InvalidValueError(f"{name}: no layout of the study divides it; add layouts or change its dimensions")
    hardware = load_profile(setup.profile).hardware
    need = gpus_needed(
        architecture,
        context=setup.workload.peak_context,
        concurrency=grid[0],
        formats=setup.formats,
        hardware=hardware,
        usable_fraction=setup.usable_fraction,
    )
    raise InvalidValueError(
        f"{name} does not fit: weights and {grid[0]:g} sequence(s) of {setup.workload.peak_context} tokens take at least "
        f"{need} GPUs of {hardware.name} memory ({setup.usable_fraction:.0%} usable), the largest layout has "
        f"{int(setup.layouts.gpus.max())}; "
        "allow more GPUs, KV parallelism (kvp) or pipeline stages (pp), a smaller context, or smaller formats"
    )


def _best_reachable(points: Points, usable: BoolArray, setup: ServingSetup) -> str:
    goals = setup.workload
    best_itl = float(np.min(points.itl_seconds[usable]))
    text = f"no operating point meets the goals: ITL <= {goals.max_itl_seconds:g} s"
    if np.isfinite(goals.max_ttft_seconds):
        text += f" and TTFT <= {goals.max_ttft_seconds:g} s"
    text += f"; the best reachable ITL is {best_itl:.4g} s"
    if np.any(np.isfinite(points.ttft_seconds[usable])):
        text += f", the best reachable TTFT {float(np.nanmin(points.ttft_seconds[usable])):.4g} s"
    return text + "; relax the goal, or allow more GPUs per replica"
