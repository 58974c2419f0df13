"""What a search maximises: throughput at a user rate, frontier area, quality, or the user's own figure."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..constraints.quality import Law, check_law, loss_above_reference
from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError
from ..costmodel.checks import number, numbers
from ..costmodel.errors import shown
from ..costmodel.operating import log_rates
from ..costmodel.serving_frontier import AREA

FloatArray = NDArray[np.float64]
THROUGHPUT_RATE, LATENCY_RATE = 20.0, 100.0  # tokens/s/user: the project's default objectives (design choice)
AXES = ("log", "linear")
AREA_RATES = tuple(log_rates(*AREA).tolist())  # tokens/s/user of the frontier area


@dataclass(frozen=True, eq=False)
class Context:
    """What an objective may read about a block of designs.

    Attributes:
        batch: the designs, ``(A,)``.
        rates: user rates of the throughput table, tokens/s/user, ``(R,)``.
        throughput: best tokens/s/GPU with every user at >= the rate, ``(A, R)``; 0 where no layout reaches it.
        train_tokens: D of the quality laws.
        reference: the study's reference model.
        point: for ``layout_mode="suggest"``: tokens/s/GPU and tokens/s/user at the suggested point, ``(A, 2)``.
    """

    batch: ArchitectureBatch
    rates: FloatArray
    throughput: FloatArray
    train_tokens: float
    reference: Architecture
    point: FloatArray | None = None

    def at(self, rate: float) -> FloatArray:
        """Throughput at one of the table's rates, ``(A,)``."""
        return self.throughput[:, int(np.argmin(np.abs(self.rates - rate)))]


@dataclass(frozen=True)
class Objective:
    """Base of all objectives; larger is better.

    Attributes:
        name: stable name in results.
    """

    name: str = ""
    bounded: ClassVar[str] = ""  # "throughput": rises with the throughput table; "design": exact without pricing; "": unknown

    @property
    def rates(self) -> tuple[float, ...]:
        """User rates the objective reads, tokens/s/user."""
        return ()

    @property
    def reference_point(self) -> float:
        """Its coordinate of the hypervolume's reference point, in units of :meth:`scale`."""
        return 0.0

    def scale(self, reference_value: float) -> float:
        """Unit of the objective in the hypervolume: the reference model's value (1 if that is not positive)."""
        return reference_value if reference_value > 0 else 1.0

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """Objective of each design ``(A,)`` (NaN where it failed) and the failures' messages ("" = none)."""
        raise NotImplementedError


@dataclass(frozen=True)
class ThroughputAt(Objective):
    """Best tokens/s/GPU while every user gets at least ``rate`` tokens/s; the layouts are swept."""

    rate: float = THROUGHPUT_RATE
    bounded: ClassVar[str] = "throughput"

    def __post_init__(self) -> None:
        number("a user rate", self.rate, "above 0 and below 1e6 tokens/s", above=True, high=999_999.0)
        if not self.name:
            object.__setattr__(self, "name", f"tokens_per_second_per_gpu_at_{self.rate:g}")

    @property
    def rates(self) -> tuple[float, ...]:
        """User rates the objective reads, tokens/s/user."""
        return (self.rate,)

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        return context.at(self.rate), []


@dataclass(frozen=True)
class FrontierArea(Objective):
    """Area under the frontier of tokens/s/GPU over ln(tokens/s/user) between the first and last rate."""

    name: str = "frontier_area"
    area_rates: tuple[float, ...] = AREA_RATES
    axis: str = "log"
    bounded: ClassVar[str] = "throughput"

    def __post_init__(self) -> None:
        rates = numbers("area_rates", self.area_rates, "above 0 and below 1e6 tokens/s", above=True, high=999_999.0)
        if rates.ndim != 1 or len(rates) < 2 or not (np.diff(rates) > 0).all():
            raise InvalidValueError(f"area_rates must be two or more rising user rates, got {shown(self.area_rates)}")
        if self.axis not in AXES if isinstance(self.axis, str) else True:
            raise InvalidValueError(f"axis must be one of {', '.join(AXES)}, got {shown(self.axis)}")
        object.__setattr__(self, "area_rates", tuple(rates.tolist()))

    @property
    def rates(self) -> tuple[float, ...]:
        """User rates the objective reads, tokens/s/user."""
        return self.area_rates

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        from ..costmodel.serving import frontier_area

        at = [int(np.argmin(np.abs(context.rates - rate))) for rate in self.area_rates]
        return np.asarray(frontier_area(context.throughput[:, at], context.rates[at], axis=self.axis)), []


@dataclass(frozen=True)
class QualityGain(Objective):
    """−(Q − Q_ref), nats/token: predicted loss below the reference model's (laws and caveats: constraints.quality).

    Hypervolume: unit 0.01 nats/token, reference point −5 units (0.05 nats/token worse than the reference model).

    Attributes:
        law: size law (see ``constraints.quality.size_loss``): a published law's name or a user's own.
    """

    name: str = "quality"
    law: Law = "default"
    bounded: ClassVar[str] = "design"

    def __post_init__(self) -> None:
        check_law(self.law)

    @property
    def reference_point(self) -> float:
        """Its coordinate of the hypervolume's reference point."""
        return -5.0

    def scale(self, reference_value: float) -> float:
        """Its unit in the hypervolume."""
        return 0.01

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        change = loss_above_reference(context.batch, context.reference, context.train_tokens, self.law)
        return np.asarray(-change, dtype=np.float64), []


@dataclass(frozen=True)
class PointThroughput(Objective):
    """tokens/s/GPU at the suggested layout and concurrency (``layout_mode="suggest"``)."""

    name: str = "tokens_per_second_per_gpu"

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        return _point(context)[:, 0], []


@dataclass(frozen=True)
class PointInteractivity(Objective):
    """tokens/s/user at the suggested layout and concurrency (``layout_mode="suggest"``)."""

    name: str = "tokens_per_second_per_user"

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        return _point(context)[:, 1], []


def _point(context: Context) -> FloatArray:
    if context.point is None:
        raise InvalidValueError('this objective needs layout_mode="suggest"; with "sweep" use a throughput at a user rate')
    return context.point


@dataclass(frozen=True)
class UserObjective(Objective):
    """A figure of the user's own, larger is better.

    ``function(architecture, figures)`` gets the scalar design and a mapping of its figures (``total_params``,
    ``active_params``, ``throughput``: user rate → tokens/s/GPU) and returns a finite number. An exception, a NaN, an
    infinity or a time-out fails that design alone, with its message.

    Attributes:
        function: module-level callable (workers must be able to import it).
        timeout_seconds: time allowed per design; ``None`` = no limit. A function that overruns is abandoned, not killed.
    """

    function: Callable[[Architecture, Mapping[str, Any]], float] | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not callable(self.function):
            got = f"{self.name!r:.60} and {self.function!r:.60}"
            raise InvalidValueError(f"a user objective needs a name and a callable, got {got}")

    def values(self, context: Context) -> tuple[FloatArray, list[str]]:
        """The objective of each design, ``(A,)``."""
        out = np.full(len(context.batch), np.nan)
        errors = [""] * len(context.batch)
        for i in range(len(context.batch)):
            design = context.batch.architecture(i)
            table = dict(zip(context.rates.tolist(), context.throughput[i].tolist(), strict=True))
            figures = {"total_params": design.total_params, "active_params": design.active_params, "throughput": table}
            out[i], errors[i] = self._one(design, figures)
        return out, errors

    def _one(self, design: Architecture, figures: Mapping[str, Any]) -> tuple[float, str]:
        result: list[Any] = []

        def call() -> None:
            try:
                result.append(float(self.function(design, figures)))  # type: ignore[misc]
            except Exception as error:
                result.append(f"{type(error).__name__}: {error}"[:500])

        if self.timeout_seconds is None:
            call()
        else:
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join(self.timeout_seconds)
        if not result:
            return math.nan, f"objective '{self.name}' took more than {self.timeout_seconds:g} s"
        if isinstance(result[0], str):
            return math.nan, f"objective '{self.name}' failed: {result[0]}"
        if not math.isfinite(result[0]):
            return math.nan, f"objective '{self.name}' returned {result[0]}; it must return a finite number"
        return result[0], ""


def default_objectives(layout_mode: str = "sweep") -> tuple[Objective, ...]:
    """tokens/s/GPU at 20 and at 100 tokens/s/user; with suggested layouts tokens/s/GPU and tokens/s/user."""
    if layout_mode == "suggest":
        return (PointThroughput(), PointInteractivity())
    return (ThroughputAt(rate=THROUGHPUT_RATE), ThroughputAt(rate=LATENCY_RATE))
