"""GEMM tile menu, clusters and waves: the compute side of :mod:`.gemm`.

A kernel covers C[M, N] with clusters of SMs; a cluster owns ``cluster_tile_m x cluster_tile_n`` outputs. With S
clusters resident at once the grid takes ``w = clusters / S`` waves. The last, partly filled wave costs a share
``wave_rounding`` of a full one (1: a whole wave; 0: idle SMs are fully used by the next kernel)::

    W = max(1, w + wave_rounding * (ceil(w) - w)) + tail_waves * clip(w - 1, 0, 1)
    T = W * (K c clip(w, 1 / split_k, 1) + E),   c = max(2 TM TN / (R u), (TM bA + TN bB) / B)

(without split-K the clip is 1). R: tensor-core peak of the cluster's SMs; u: utilisation; B: bandwidth at which those
SMs can load operands; E: epilogue and prologue that no main loop hides. Forms: NVIDIA co-design post, Fig. 4 and 5
(behaviour); the wave equation is the usual one (NVIDIA Deep Learning Performance guide, tile and wave quantisation).

Every entry of the menu is non-decreasing in M, N and K, hence so is the fastest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .checks import number
from .errors import InvalidValueError, check_keys, shown

_INFINITE = float("inf")
_MAX_TILE = 1 << 20  # no kernel comes near it


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel of the menu.

    Attributes:
        tile_m: rows of C one SM holds (one entry of the cluster grid).
        tile_n: columns of C one SM holds.
        cluster_m: SMs of a cluster along M.
        cluster_n: SMs of a cluster along N.
        fallback_n: SMs along N of the smaller cluster that covers the edge; 0 = none. The post's "4x2 CGA" is 4
            along N and 2 along M, with pairs (256 columns) as the fallback.
        split_k: most workers that may share one output tile's K, taken from the SMs the first wave leaves idle.
        max_m: the library takes this kernel only up to this M; 0 = always. A switch that the profile names: past it the
            menu is shorter, so the time can only rise.
        utilisation: share of the tensor-core peak in the main loop, (0, 1].
        epilogue_seconds: exposed time per wave, s.
    """

    tile_m: int
    tile_n: int
    cluster_m: int = 1
    cluster_n: int = 1
    fallback_n: int = 0
    split_k: int = 1
    max_m: int = 0
    utilisation: float = 1.0
    epilogue_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "cluster_m", "cluster_n", "split_k"):
            value = getattr(self, name)
            if not value >= 1 or value != int(value):
                raise InvalidValueError(f"a GEMM tile's {name} must be a whole number >= 1, got {value!r:.40}")
        if not self.max_m >= 0:
            raise InvalidValueError(f"a GEMM tile's max_m must be >= 0 (0 = no limit), got {self.max_m!r:.40}")
        if self.fallback_n and not (0 < self.fallback_n < self.cluster_n and self.cluster_n % self.fallback_n == 0):
            raise InvalidValueError(
                f"a GEMM tile's fallback_n must divide cluster_n and be smaller, got fallback_n={self.fallback_n}, "
                f"cluster_n={self.cluster_n}; use 0 for no fallback cluster"
            )
        if not 0 < self.utilisation <= 1:
            raise InvalidValueError(f"a GEMM tile's utilisation must lie in (0, 1], got {self.utilisation!r:.40}")
        if not 0 <= self.epilogue_seconds < _INFINITE:
            raise InvalidValueError(f"a GEMM tile's epilogue_seconds must be >= 0, got {self.epilogue_seconds!r:.40}")

    @property
    def sms(self) -> int:
        """SMs of one cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def rows(self) -> int:
        """Rows of C one cluster covers."""
        return self.tile_m * self.cluster_m

    @property
    def columns(self) -> int:
        """Columns of C one cluster covers."""
        return self.tile_n * self.cluster_n


@dataclass(frozen=True, slots=True)
class GemmParameters:
    """Parameters of the GEMM family; the defaults are the pure roofline.

    Attributes:
        launch_seconds: fixed time of the kernel, s.
        bandwidth_efficiency: share of the HBM datasheet bandwidth reached, (0, 1].
        write_efficiency: the same for writes; 0 = as ``bandwidth_efficiency``.
        quantise_efficiency: the same for the activation-quantise kernel; 0 = no such kernel.
        quantise_seconds: fixed time of the activation-quantise kernel, s.
        quantise_minimum_k: rows shorter than this cost that kernel as much as one of this length.
        quantise_seconds_per_k: time of that kernel per value of a row, which one worker scans, s.
        combine_power: p of (compute**p + memory**p)**(1/p); 0 = the hard maximum (perfect overlap).
        sm_bandwidth_share: operand-load bandwidth of one SM over its fair share of HBM; 0 = unlimited.
        k_tile: K is padded to a multiple of it; 0 = not padded.
        k_rounding: cost of the padding of K, [0, 1].
        droop: extra share of compute time of a long GEMM, whose power draw lowers the clock.
        droop_seconds: compute time at which half of ``droop`` applies, s.
        wave_rounding: cost of the empty part of the last wave, [0, 1].
        tail_waves: SMs that drift apart after the first wave end at different times: their cost in waves.
        fallback_penalty: extra time per output of a fallback cluster, fraction.
        l2_bytes: weights and activations up to this size may be found in L2 (``warm_l2`` only); 0 = never.
        l2_bandwidth_ratio: L2 over HBM bandwidth (``warm_l2`` only).
        tiles: the menu; empty = no tile or wave quantisation.
    """

    launch_seconds: float = 0.0
    bandwidth_efficiency: float = 1.0
    write_efficiency: float = 0.0
    quantise_efficiency: float = 0.0
    quantise_seconds: float = 0.0
    quantise_minimum_k: float = 0.0
    quantise_seconds_per_k: float = 0.0
    combine_power: float = 0.0
    sm_bandwidth_share: float = 0.0
    k_tile: float = 0.0
    k_rounding: float = 1.0
    droop: float = 0.0
    droop_seconds: float = 1e-3
    wave_rounding: float = 1.0
    tail_waves: float = 0.0
    fallback_penalty: float = 0.0
    l2_bytes: float = 0.0
    l2_bandwidth_ratio: float = 1.0
    tiles: tuple[Tile, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high, low_open in (
            ("launch_seconds", 0, _INFINITE, False),
            ("bandwidth_efficiency", 0, 1, True),
            ("write_efficiency", 0, 1, False),
            ("quantise_efficiency", 0, 1, False),
            ("quantise_seconds", 0, _INFINITE, False),
            ("quantise_minimum_k", 0, _INFINITE, False),
            ("quantise_seconds_per_k", 0, _INFINITE, False),
            ("combine_power", 0, _INFINITE, False),
            ("sm_bandwidth_share", 0, _INFINITE, False),
            ("k_tile", 0, _INFINITE, False),
            ("k_rounding", 0, 1, False),
            ("droop", 0, _INFINITE, False),
            ("droop_seconds", 0, _INFINITE, True),
            ("wave_rounding", 0, 1, False),
            ("tail_waves", 0, _INFINITE, False),
            ("fallback_penalty", 0, _INFINITE, False),
            ("l2_bytes", 0, _INFINITE, False),
            ("l2_bandwidth_ratio", 1, _INFINITE, False),
        ):
            value = getattr(self, name)
            if not (value > low if low_open else value >= low) or not value <= high or value == _INFINITE:
                bracket = "(" if low_open else "["
                raise InvalidValueError(f"GEMM parameter {name} must lie in {bracket}{low}, {high}], got {value!r:.40}")
        if self.tiles and all(tile.max_m for tile in self.tiles):
            raise InvalidValueError("the GEMM menu needs a tile without max_m, else large M has no kernel; add one")
        if 0 < self.combine_power < 1:
            raise InvalidValueError(f"GEMM parameter combine_power must be 0 (maximum) or >= 1, got {self.combine_power}")

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any]) -> GemmParameters:
        """Build from a profile's ``parameters``: scalars by name, the menu as equal-length lists ``tile_<field>``.

        ``menu_tile_m``, ``menu_tile_n``, … hold one number per menu entry; a scalar stands for all entries.

        Raises:
            UnknownKeyError: a parameter is unknown.
            InvalidValueError: a list has the wrong length or a value is out of range.
        """
        columns = {f"menu_{field.name}": field.name for field in fields(Tile)}
        scalars = [field.name for field in fields(cls) if field.name != "tiles"]
        check_keys(table, [*scalars, *columns], "GEMM parameters")
        menu: dict[str, list[float]] = {}
        length = len(table["menu_tile_m"]) if isinstance(table.get("menu_tile_m"), Sequence) else 0
        for key, name in columns.items():
            if key in table:
                value = table[key]
                menu[name] = list(value) if isinstance(value, Sequence) else [value] * length
                if len(menu[name]) != length:
                    raise InvalidValueError(
                        f"GEMM parameter {key} must have {length} numbers like menu_tile_m, got {len(menu[name])}"
                    )
        whole = {"tile_m", "tile_n", "cluster_m", "cluster_n", "fallback_n", "split_k", "max_m"}
        entries: list[dict[str, Any]] = [
            {name: int(values[i]) if name in whole else float(values[i]) for name, values in menu.items()} for i in range(length)
        ]
        tiles = tuple(Tile(**entry) for entry in entries)
        return cls(tiles=tiles, **{name: float(table[name]) for name in scalars if name in table})


def kernel_switches(parameters: GemmParameters) -> tuple[int, ...]:
    """The M past which the menu loses a kernel: where the time may jump."""
    return tuple(sorted({tile.max_m for tile in parameters.tiles if tile.max_m}))


def as_tile(tile: Tile | Sequence[float], parameters: GemmParameters) -> Tile:
    """Return a forced tile, taking what a plain tuple leaves out from the menu.

    Args:
        tile: a :class:`Tile`, or its first fields in order ``(tile_m, tile_n, cluster_m, cluster_n, fallback_n, split_k)``.
            A tuple without ``fallback_n`` gets half the cluster along N where that is a whole number of SMs.
        parameters: whose menu entry of nearest outputs per cluster lends utilisation and epilogue.

    Raises:
        InvalidValueError: not 2 to 6 whole numbers that make a tile.
    """
    if isinstance(tile, Tile):
        return tile
    if isinstance(tile, str) or not isinstance(tile, Sequence | np.ndarray) or not 2 <= len(tile) <= 6:
        raise InvalidValueError(
            f"a forced tile is (tile_m, tile_n, cluster_m, cluster_n, fallback_n, split_k), 2 to 6 numbers, got {shown(tile)}"
        )
    names = ("tile_m", "tile_n", "cluster_m", "cluster_n", "fallback_n", "split_k")
    read = [number(name, x, "a whole number", low=0, high=_MAX_TILE) for name, x in zip(names, tile, strict=False)]
    if any(x != int(x) for x in read):
        raise InvalidValueError(f"a forced tile holds whole numbers, got {shown(tile)}; round them")
    shape = [int(x) for x in read]
    if len(shape) == 4 and shape[3] > 1 and shape[3] % 2 == 0:
        shape.append(shape[3] // 2)
    bare = Tile(*shape)
    if not parameters.tiles:
        return bare
    nearest = min(parameters.tiles, key=lambda t: abs(math.log(t.rows * t.columns / (bare.rows * bare.columns))))
    return replace(bare, utilisation=nearest.utilisation, epilogue_seconds=nearest.epilogue_seconds)
