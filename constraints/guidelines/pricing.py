"""What a departure from a guideline costs: step times of neighbours at the design's own best operating points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...costmodel.architecture import Architecture
from ...costmodel.batch import ArchitectureBatch, group_by_kind
from ...costmodel.decode import decode
from ...costmodel.layout import Layout, LayoutBatch
from ...costmodel.prefill import prefill
from ...costmodel.profile import load_profile
from ...costmodel.serving import ServingSetup
from ..capacity import in_domain
from ..deployable import throughput_at_allowed
from ..divisibility import layout_allowed
from .finding import Draft, Prices

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a design serves a user rate best.

    Attributes:
        rate: tokens/s/user.
        layout: the layout.
        concurrency: sequences in flight of one replica.
        tokens_per_second_per_gpu: throughput there.
        seconds: decode step time there, s.
    """

    rate: float
    layout: Layout
    concurrency: float
    tokens_per_second_per_gpu: float
    seconds: float


class Pricer:
    """Prices departures of one design in one deployment.

    Attributes:
        design: the design.
        setup: deployment; its layouts are those considered.
        rates: user rates, tokens/s/user, ascending: throughput, latency.
        batch: the design as a batch of one.
        points: best operating point at each rate, None where no layout reaches it.
    """

    def __init__(self, design: Architecture, setup: ServingSetup, rates: Sequence[float]) -> None:
        self.design, self.setup, self.rates = design, setup, tuple(rates)
        self._tables: dict[Architecture, FloatArray] = {}
        self._steps: dict[tuple[Architecture, OperatingPoint], float] = {}
        self._prefill: dict[Architecture, float] = {}
        self.batch = ArchitectureBatch.from_architectures([design])
        self.points = self.best_points(setup)

    def allowed(self, batch: ArchitectureBatch, layouts: LayoutBatch) -> NDArray[np.bool_]:
        """Layouts that divide each design inside the scale-up domain, ``(A, P)``; shards need not be aligned here."""
        hardware = load_profile(self.setup.profile).hardware
        return np.asarray(layout_allowed(batch, layouts) & in_domain(layouts, hardware)[None, :])

    def best_points(self, setup: ServingSetup, mask: NDArray[np.bool_] | None = None) -> tuple[OperatingPoint | None, ...]:
        """Best operating point of the design at each rate; ``mask`` of shape ``(P,)`` narrows the layouts."""
        batch = self.batch
        allowed = self.allowed(batch, setup.layouts)
        if mask is not None:
            allowed = allowed & mask[None, :]
        if not allowed.any():
            return tuple(None for _ in self.rates)
        table = throughput_at_allowed(batch, setup, np.asarray(self.rates), allowed)
        found: list[OperatingPoint | None] = []
        for i, rate in enumerate(self.rates):
            index, load = int(table.layout_index[0, i]), float(table.concurrency[0, i])
            if index < 0:
                found.append(None)
                continue
            layout = setup.layouts.layout(index)
            seconds = float(self._decode(batch, layout, load, setup)[0])
            found.append(OperatingPoint(rate, layout, load, float(table.tokens_per_second_per_gpu[0, i]), seconds))
        return tuple(found)

    def step_on(self, point: OperatingPoint, layout: Layout) -> float:
        """The design's step time at a point's concurrency on another layout, s."""
        return float(self._decode(self.batch, layout, point.concurrency, self.setup)[0])

    def step_with_load(self, point: OperatingPoint, load: str) -> float:
        """The design's step time at a point under another routing, s."""
        workload = replace(self.setup.workload, load=load)
        return float(self._decode(self.batch, point.layout, point.concurrency, self.setup.with_(workload=workload))[0])

    def _decode(self, batch: ArchitectureBatch, layout: Layout, concurrency: float, setup: ServingSetup) -> FloatArray:
        step = decode(
            batch,
            layout,
            concurrency,
            context=setup.workload.decode_context,
            formats=setup.formats,
            profile=setup.profile,
            load=setup.workload.load,
            overlap=setup.overlap,
            **setup.options,
        )
        return np.asarray(step.seconds[:, 0, 0], dtype=np.float64)

    def prepare(self, drafts: Sequence[Draft]) -> None:
        """Price all designs that the drafts need in a few array calls."""
        steps: dict[Architecture, None] = {}
        tables: dict[Architecture, None] = {}
        for draft in drafts:
            if draft.price is None:
                neighbours = [d for d in (draft.low, draft.high) if d is not None]
                (tables if draft.reoptimise else steps).update(dict.fromkeys(neighbours))
            if draft.fixed is not None:
                tables[draft.fixed] = None
        self.throughput(list(tables))
        for point in {p for p in self.points if p is not None}:
            self.step_seconds(list(steps), point)
        neighbours = [d for draft in drafts if draft.price is None for d in (draft.low, draft.high) if d is not None]
        self.prefill_seconds([self.design, *neighbours])

    def throughput(self, designs: Sequence[Architecture]) -> FloatArray:
        """Best tokens/s/GPU at each rate with layouts chosen anew, ``(N, R)``; 0 where out of reach."""
        new = [d for d in dict.fromkeys(designs) if d not in self._tables]
        for where, batch in group_by_kind(new):
            allowed = self.allowed(batch, self.setup.layouts)
            table = throughput_at_allowed(batch, self.setup, np.asarray(self.rates), allowed)
            for row, position in enumerate(where):
                self._tables[new[position]] = table.tokens_per_second_per_gpu[row]
        return np.array([self._tables[d] for d in designs]).reshape(len(designs), len(self.rates))

    def step_seconds(self, designs: Sequence[Architecture], point: OperatingPoint) -> FloatArray:
        """Step time of other designs at one operating point, ``(N,)``, s."""
        new = [d for d in dict.fromkeys(designs) if (d, point) not in self._steps]
        for where, batch in group_by_kind(new):
            seconds = self._decode(batch, point.layout, point.concurrency, self.setup)
            for row, position in enumerate(where):
                self._steps[new[position], point] = float(seconds[row])
        return np.array([self._steps[d, point] for d in designs])

    def prefill_seconds(self, designs: Sequence[Architecture]) -> FloatArray:
        """Time of one prefill pass of the workload's prompts on the first point's layout, ``(N,)``, s; NaN without one."""
        layout = next((p.layout for p in self.points if p is not None), None)
        new = [d for d in dict.fromkeys(designs) if d not in self._prefill]
        for where, batch in group_by_kind(new):
            if layout is None or layout.pp > 1:
                seconds = np.full(len(batch), np.nan)
            else:
                passed = prefill(
                    batch,
                    layout,
                    input_tokens=self.setup.workload.input_tokens,
                    chunk_tokens=self.setup.chunk_tokens,
                    formats=self.setup.formats,
                    profile=self.setup.profile,
                    load=self.setup.workload.load,
                    overlap=self.setup.overlap,
                    **self.setup.options,
                )
                seconds = passed.chunk_seconds[:, 0].sum(axis=-1)
            for row, position in enumerate(where):
                self._prefill[new[position]] = float(seconds[row])
        return np.array([self._prefill[d] for d in designs])

    def prefill_cost(self, draft: Draft) -> float:
        """Share of the prefill's time that the neighbours save, as for a step; NaN where it cannot be told."""
        if draft.low is None or draft.price is not None:
            return math.nan
        designs = [draft.low] if draft.high is None else [draft.low, draft.high]
        times = self.prefill_seconds([self.design, *designs])
        return float(1.0 - self._on_line(draft, times[1:]) / times[0])

    def _on_line(self, draft: Draft, values: FloatArray) -> float:
        """The value at the design's own dimension on the line through its neighbours' values (the only one's where alone)."""
        if draft.low is None or draft.high is None:
            return float(values[0])
        low, high = getattr(draft.low, draft.along), getattr(draft.high, draft.along)
        weight = (getattr(self.design, draft.along) - low) / (high - low)
        return float(values[0] + weight * (values[1] - values[0]))

    def point_throughput(self) -> FloatArray:
        """The design's own best tokens/s/GPU at each rate, ``(R,)``; NaN where out of reach."""
        return np.array([math.nan if p is None else p.tokens_per_second_per_gpu for p in self.points])

    def price(self, draft: Draft) -> Prices:
        """Cost share and gain of a draft at each rate; NaN where they cannot be told."""
        if draft.price is not None:
            return draft.price(self)
        none = tuple(math.nan for _ in self.rates)
        return self._costs(draft), none if draft.fixed is None else self.gains(draft.fixed)

    def _costs(self, draft: Draft) -> tuple[float, ...]:
        low, high = draft.low, draft.high
        if low is None:
            return tuple(math.nan for _ in self.rates)
        designs = [low] if high is None else [low, high]
        if draft.reoptimise:
            own, values = self.point_throughput(), self.throughput(designs)
            with np.errstate(divide="ignore", invalid="ignore"):
                seconds = np.where(values > 0, 1.0 / values, np.nan)  # GPU seconds per token
                line = np.array([self._on_line(draft, seconds[:, i]) for i in range(len(self.rates))])
                return tuple((1.0 - line * own).tolist())
        found = []
        for point in self.points:
            if point is None:
                found.append(math.nan)
                continue
            expected = self._on_line(draft, self.step_seconds(designs, point))
            found.append(float(1.0 - expected / point.seconds))
        return tuple(found)

    def gains(self, fixed: Architecture) -> tuple[float, ...]:
        """Change of tokens/s/GPU at each rate when the design is replaced and layouts are chosen anew."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return tuple((self.throughput([fixed])[0] / self.point_throughput() - 1.0).tolist())
