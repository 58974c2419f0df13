"""Links between GPUs: latency, efficiency and the two message-size regimes of a collective.

Every collective is ``latency + wire bytes / link``: with neutral parameters (profile ``ideal``) the latency is
zero and the fastest algorithm rules; a fitted profile gives latency and efficiency per group size, in two regimes
of message size. Groups larger than the scale-up domain cross the scale-out link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError, check_keys
from .hardware import Hardware
from .profile import KernelProfile

Array = NDArray[np.float64]
BOUNDS = ("latency", "scale_up", "scale_out")
_FIELDS = (
    "ranks",
    "latency_seconds",
    "efficiency",
    "knee_bytes",
    "large_latency_seconds",
    "large_efficiency",
)


@dataclass(frozen=True)
class CollectiveParameters:
    """Latency and link efficiency per group size; the neutral default is the bare link.

    Each is a tuple with one entry per measured group size (``ranks``), interpolated in log2(ranks) and held
    constant outside. Efficiency is a share of what the best algorithm allows, at most 1.

    Attributes:
        ranks: group sizes the numbers below belong to.
        latency_seconds: fixed time of the small-message regime, s.
        efficiency: share of the ideal rate in the small-message regime.
        knee_bytes: message size at which the library changes algorithm, B.
        large_latency_seconds: fixed time above the knee, s.
        large_efficiency: share of the ideal rate above the knee.
    """

    ranks: tuple[float, ...] = (2.0,)
    latency_seconds: tuple[float, ...] = (0.0,)
    efficiency: tuple[float, ...] = (1.0,)
    knee_bytes: tuple[float, ...] = (np.inf,)
    large_latency_seconds: tuple[float, ...] = (0.0,)
    large_efficiency: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if any(len(getattr(self, name)) != len(self.ranks) for name in _FIELDS):
            raise InvalidValueError("collective parameters: every list must have one entry per entry of 'ranks'")
        if any(not 0 < e <= 1 for e in (*self.efficiency, *self.large_efficiency)):
            raise InvalidValueError(f"collective parameters: efficiency must be in (0, 1], got {self.efficiency}")

    def at(self, name: str, ranks: Array) -> Array:
        """Value of parameter ``name`` at group size ``ranks``, linear in log2(ranks)."""
        values = getattr(self, name)
        if len(values) == 1:
            return np.asarray(values[0], dtype=np.float64)
        return np.asarray(np.interp(np.log2(np.maximum(ranks, 1)), np.log2(self.ranks), values))


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds of a collective and its parts, arrays of one shape.

    Attributes:
        seconds: total, s.
        latency_seconds: fixed part, s.
        scale_up_seconds: bytes over the scale-up link, s.
        scale_out_seconds: bytes over the scale-out link, s.
        wire_bytes: bytes each GPU sends over the scale-up link, B.
    """

    seconds: Array
    latency_seconds: Array
    scale_up_seconds: Array
    scale_out_seconds: Array
    wire_bytes: Array

    @property
    def communication_seconds(self) -> Array:
        """All of it: the name the step's breakdown uses."""
        return self.seconds

    @property
    def bound(self) -> NDArray[np.str_]:
        """What rules: ``latency``, ``scale_up`` or ``scale_out``."""
        parts = np.stack(np.broadcast_arrays(self.latency_seconds, self.scale_up_seconds, self.scale_out_seconds))
        return np.asarray(np.asarray(BOUNDS)[np.argmax(parts, axis=0)])


@lru_cache(maxsize=256)
def collective_parameters(profile: KernelProfile, family: str, operation: str) -> CollectiveParameters:
    """Parameters of ``operation`` in ``family`` of a profile (neutral where the profile has none)."""
    table = profile.family(family, operation).parameters
    return parse_parameters(table, f"{profile.name}: [{family}.{operation}]")


def parse_parameters(table: Any, where: str) -> CollectiveParameters:
    """Build :class:`CollectiveParameters` from a profile's table.

    Raises:
        UnknownKeyError: unknown keys.
    """
    check_keys(table, _FIELDS, where)
    if not table:
        return CollectiveParameters()
    lists = {k: tuple(float(x) for x in (v if isinstance(v, list | tuple) else [v])) for k, v in table.items()}
    n = len(lists.get("ranks", (2.0,)))
    neutral = CollectiveParameters()
    return CollectiveParameters(**{k: lists.get(k, getattr(neutral, k) * n) for k in _FIELDS})


def checked(amount: ArrayLike, ranks: ArrayLike, name: str) -> tuple[Array, Array]:
    """Both as float arrays; refuses negative amounts and groups below one rank."""
    amount, ranks = np.asarray(amount, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if amount.size and not amount.min() >= 0:
        raise InvalidValueError(f"{name} must be >= 0, got {amount.min()}")
    if ranks.size and not ranks.min() >= 1:
        raise InvalidValueError(f"ranks must be >= 1, got {ranks.min()}")
    return amount, ranks


def domains_of(ranks: Array, hardware: Hardware) -> tuple[Array, Array]:
    """Ranks inside one scale-up domain, and the number of domains the group spans."""
    inside = np.minimum(ranks, hardware.scale_up_gpus)
    return inside, np.ceil(ranks / inside)


def price(
    size: Array,
    ranks: Array,
    up_bytes: Array,
    out_bytes: Array,
    parameters: CollectiveParameters,
    hardware: Hardware,
) -> CollectiveCost:
    """Latency + link time in the two message-size regimes; never decreasing across the knee.

    ``size`` is the message the library switches on; ``up_bytes`` and ``out_bytes`` are what each GPU sends.
    """
    inside, _ = domains_of(ranks, hardware)
    active = ranks > 1
    ideal_up = up_bytes / hardware.scale_up_bytes_per_second
    out = out_bytes / hardware.scale_out_bytes_per_second
    latency = parameters.at("latency_seconds", inside)
    up = ideal_up / parameters.at("efficiency", inside)
    knee = parameters.at("knee_bytes", inside)
    if np.isfinite(parameters.knee_bytes).any():
        large = size > knee
        with np.errstate(invalid="ignore", divide="ignore"):
            at_knee = latency + up * np.where(size > 0, knee / size, 0.0)
        large_up = ideal_up / parameters.at("large_efficiency", inside)
        large_latency = np.maximum(parameters.at("large_latency_seconds", inside), at_knee - large_up)
        latency, up = np.where(large, large_latency, latency), np.where(large, large_up, up)
    latency = np.where(active, latency, 0.0)
    seconds = latency + up + out
    return CollectiveCost(*np.broadcast_arrays(seconds, latency, up, out, up_bytes))
