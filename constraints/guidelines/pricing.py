"""What a departure from a guideline costs: step times of neighbours at the design's own best operating points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...costmodel.architecture import Architecture
from ...costmodel.batch import ArchitectureBatch, group_by_kind
from ...costmodel.decode import decode
from ...costmodel.layout import Layout, LayoutBatch
from ...costmodel.profile import load_profile
from ...costmodel.serving import ServingSetup, throughput_at_rates
from ..capacity import in_domain
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
        table = throughput_at_rates(batch, setup, np.asarray(self.rates), allowed=allowed)
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

    def prepare(self, drafts: Iterable[Draft]) -> None:
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

    def throughput(self, designs: Sequence[Architecture]) -> FloatArray:
        """Best tokens/s/GPU at each rate with layouts chosen anew, ``(N, R)``; 0 where out of reach."""
        new = [d for d in dict.fromkeys(designs) if d not in self._tables]
        for where, batch in group_by_kind(new):
            allowed = self.allowed(batch, self.setup.layouts)
            table = throughput_at_rates(batch, self.setup, np.asarray(self.rates), allowed=allowed)
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
        weight = 0.0
        if high is not None:
            ends = getattr(low, draft.along), getattr(high, draft.along)
            weight = (getattr(self.design, draft.along) - ends[0]) / (ends[1] - ends[0])
        designs = [low] if high is None else [low, high]
        if draft.reoptimise:
            own, values = self.point_throughput(), self.throughput(designs)
            with np.errstate(divide="ignore", invalid="ignore"):
                seconds = np.where(values > 0, 1.0 / values, np.nan)  # GPU seconds per token
                line = seconds[0] if high is None else seconds[0] + weight * (seconds[1] - seconds[0])
                return tuple((1.0 - line * own).tolist())
        found = []
        for point in self.points:
            if point is None:
                found.append(math.nan)
                continue
            times = self.step_seconds(designs, point)
            expected = times[0] if high is None else times[0] + weight * (times[1] - times[0])
            found.append(float(1.0 - expected / point.seconds))
        return tuple(found)

    def gains(self, fixed: Architecture) -> tuple[float, ...]:
        """Change of tokens/s/GPU at each rate when the design is replaced and layouts are chosen anew."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return tuple((self.throughput([fixed])[0] / self.point_throughput() - 1.0).tolist())
