"""Links between GPUs: latency, efficiency and the message-size regimes of a collective.

Every collective is ``latency + wire bytes / link``: with neutral parameters (profile ``ideal``) the latency is
zero and the fastest algorithm rules; a fitted profile gives latency and efficiency per group size, in up to a few
regimes of message size (a library changes its algorithm there). Groups larger than the scale-up domain cross the
scale-out link.

References:
    [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
        Int. J. High Performance Computing Applications 19 (2005), section 4: log2(n) steps of recursive doubling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import common_shape, numbers
from .errors import InvalidValueError, check_keys
from .hardware import Hardware
from .profile import KernelProfile

Array = NDArray[np.float64]
BOUNDS = ("latency", "scale_up", "scale_out")
_FIELDS = ("ranks", "latency_seconds", "efficiency", "knee_bytes")
_TABLE = 128  # group sizes kept ready; larger ones are interpolated anew


@dataclass(frozen=True)
class CollectiveParameters:
    """Latency and link efficiency per group size and regime; the neutral default is the bare link.

    Each list runs over group sizes (``ranks``), and within one over its regimes of message size. Between group
    sizes values are linear in log2(ranks). Beyond the largest (inferred, no table reaches there) efficiency stays and
    latency grows per doubling, as the hops of a tree do: by what the last two sizes differ per doubling, but by no
    more than the mean hop of the largest, latency / log2(ranks) (a jump to another kernel is not a slope) [1].

    Attributes:
        ranks: group sizes the numbers below belong to.
        latency_seconds: fixed time, s; ranks x regimes.
        efficiency: share of the best algorithm's rate, in (0, 1]; ranks x regimes.
        knee_bytes: message size above which the next regime rules, B; ranks x (regimes - 1).
    """

    ranks: tuple[float, ...] = (2.0,)
    latency_seconds: tuple[float, ...] = (0.0,)
    efficiency: tuple[float, ...] = (1.0,)
    knee_bytes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.ranks)
        if not count or list(self.ranks) != sorted(set(self.ranks)) or self.ranks[0] < 1:
            raise InvalidValueError(f"collective parameters: ranks must rise from 1 or more, got {self.ranks}")
        right = len(self.latency_seconds) == len(self.efficiency) == count * self.regimes
        if not right or len(self.knee_bytes) != count * (self.regimes - 1):
            raise InvalidValueError(
                "collective parameters: latency_seconds and efficiency need ranks x regimes entries, knee_bytes one less "
                f"per rank, got {count} ranks, {len(self.latency_seconds)}, {len(self.efficiency)}, {len(self.knee_bytes)}"
            )
        if any(not 0 < e <= 1 for e in self.efficiency):
            raise InvalidValueError(f"collective parameters: efficiency must be in (0, 1], got {self.efficiency}")
        if any(x < 0 for x in (*self.latency_seconds, *self.knee_bytes)):
            raise InvalidValueError("collective parameters: latency_seconds and knee_bytes must be >= 0")

    @property
    def regimes(self) -> int:
        """Number of message-size regimes."""
        return len(self.latency_seconds) // len(self.ranks)

    def latency(self, regime: int, ranks: Array) -> Array:
        """Fixed time of ``regime`` at group size ``ranks``, s."""
        values = self.latency_seconds[regime :: self.regimes]
        inside = self._between(values, ranks)
        if len(values) < 2:
            return inside
        before, last = self.ranks[-2:]
        growth = max(0.0, values[-1] - values[-2]) / np.log2(last / before)
        hop = values[-1] / np.log2(last)
        return np.asarray(inside + min(growth, hop) * np.log2(np.maximum(ranks, last) / last))

    def rate(self, regime: int, ranks: Array) -> Array:
        """Efficiency of ``regime`` at group size ``ranks``."""
        return self._between(self.efficiency[regime :: self.regimes], ranks)

    def knee(self, regime: int, ranks: Array) -> Array:
        """Message size above which ``regime`` (>= 1) rules, B."""
        logs = np.log(self.knee_bytes[regime - 1 :: self.regimes - 1])
        return np.exp(self._between(logs, ranks)) * (1 + 1e-12)  # the knee itself belongs to the regime below

    @cached_property
    def by_rank(self) -> tuple[Array, Array, Array]:
        """Latency ``(regimes, N)``, rate ``(regimes, N)`` and knee ``(regimes - 1, N)`` of groups of 0 … N - 1 ranks (0 as 1)."""
        n = np.maximum(np.arange(_TABLE + 1, dtype=np.float64), 1.0)
        return self._interpolated(n, n)

    def at_ranks(self, ranks: Array, inside: Array) -> tuple[Array, Array, Array]:
        """Latency of all ``ranks``, rate and knee of those ``inside`` the domain, every regime on a new first axis."""
        whole = ranks.astype(np.intp) if ranks.size and ranks.max() <= _TABLE else None
        if whole is not None and np.all(whole == ranks):
            latency, rate, knee = self.by_rank
            near = inside.astype(np.intp)
            return latency[:, whole], rate[:, near], knee[:, near]
        return self._interpolated(ranks, inside)

    def _interpolated(self, ranks: Array, inside: Array) -> tuple[Array, Array, Array]:
        latency, rate = np.empty((self.regimes, *ranks.shape)), np.empty((self.regimes, *inside.shape))
        knee = np.empty((self.regimes - 1, *inside.shape))
        for regime in range(self.regimes):
            latency[regime], rate[regime] = self.latency(regime, ranks), self.rate(regime, inside)
            if regime:
                knee[regime - 1] = self.knee(regime, inside)
        return latency, rate, knee

    def _between(self, values: tuple[float, ...] | Array, ranks: Array) -> Array:
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.size == 1:
            return numbers.reshape(())
        return np.asarray(np.interp(np.log2(ranks), np.log2(self.ranks), numbers))


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
    lists = {k: tuple(float(x) for x in (v if isinstance(v, list | tuple) else [v])) for k, v in table.items()}
    return CollectiveParameters(**lists)


def checked(amount: ArrayLike, ranks: ArrayLike, name: str) -> tuple[Array, Array]:
    """Both as float arrays, each in its own shape.

    Args:
        amount: bytes or tokens, any shape.
        ranks: GPUs in the group, any shape.
        name: what ``amount`` is, for the message.

    Raises:
        InvalidValueError: a negative amount, a group below one rank, or shapes that do not broadcast.
    """
    found = {name: numbers(name, amount, ">= 0 and finite"), "ranks": numbers("ranks", ranks, ">= 1 and finite", low=1.0)}
    common_shape(found)
    return found[name], found["ranks"]


def domains_of(ranks: Array, hardware: Hardware) -> tuple[Array, Array]:
    """Ranks inside one scale-up domain, and the number of domains the group spans."""
    inside = np.minimum(ranks, hardware.scale_up_gpus)
    return inside, np.ceil(ranks / inside)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective to price: how much of a message crosses which link; arrays that broadcast.

    Attributes:
        size: message size that the library switches on, B.
        ranks: GPUs in the group.
        up_share: bytes each GPU sends over the scale-up link per byte of message.
        out_share: the same over the scale-out link.
        parameters: latency and efficiency per group size and regime.
        hardware: links.
    """

    size: Array
    ranks: Array
    up_share: Array
    out_share: Array
    parameters: CollectiveParameters
    hardware: Hardware

    def seconds(self) -> Array:
        """Latency + link time in the message-size regimes, never decreasing across a knee; the total of :meth:`cost`."""
        p, size, ranks = self.parameters, self.size, self.ranks
        inside = np.minimum(ranks, self.hardware.scale_up_gpus)
        latency, rate, knee = p.at_ranks(ranks, inside)
        per_byte = self.up_share / self.hardware.scale_up_bytes_per_second
        slope = per_byte / rate[0]
        seconds = np.asarray(size * slope)
        seconds += latency[0]
        floor: Array | float = 0.0
        for regime in range(1, p.regimes):
            floor = np.maximum(floor, latency[regime - 1] + slope * knee[regime - 1])  # the time reached before the knee
            slope = per_byte / rate[regime]
            later = np.asarray(size * slope)
            later += latency[regime]
            np.maximum(later, floor, out=later)
            np.copyto(seconds, later, where=size > knee[regime - 1])
        if np.any(self.out_share):
            seconds += size * (self.out_share / self.hardware.scale_out_bytes_per_second)
        return np.asarray(np.where(ranks > 1, seconds, 0.0)) if np.any(ranks <= 1) else seconds

    def cost(self) -> CollectiveCost:
        """The same with its parts; what a regime's floor adds counts as latency."""
        size, hardware, ranks = self.size, self.hardware, self.ranks
        inside = np.minimum(ranks, hardware.scale_up_gpus)
        _, rate, knee = self.parameters.at_ranks(ranks, inside)
        slope = self.up_share / (hardware.scale_up_bytes_per_second * rate[0])
        for regime in range(1, self.parameters.regimes):
            later = self.up_share / (hardware.scale_up_bytes_per_second * rate[regime])
            slope = np.where(size > knee[regime - 1], later, slope)
        seconds, up, out = self.seconds(), size * slope, size * (self.out_share / hardware.scale_out_bytes_per_second)
        latency = np.where(ranks > 1, np.maximum(seconds - up - out, 0.0), 0.0)
        return CollectiveCost(*np.broadcast_arrays(seconds, latency, up, out, size * self.up_share))


def price(
    size: Array, ranks: Array, up_share: Array, out_share: Array, p: CollectiveParameters, hardware: Hardware
) -> CollectiveCost:
    """:meth:`Transfer.cost` of one collective; arguments as :class:`Transfer`."""
    return Transfer(size, ranks, up_share, out_share, p, hardware).cost()
