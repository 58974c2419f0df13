"""Compute time of the fastest tile of a menu, vectorised over shapes (equations in :mod:`.gemm_tiles`).

The work arrays of one chunk stay in the processor's cache; every operation is in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidValueError
from .gemm_tiles import GemmParameters, Tile

FloatArray = NDArray[np.float64]
CHUNK = 4096  # 32 KiB an array: a dozen of them fit a 1-2 MiB level-2 cache
FEW = 4096  # shapes x tiles up to which all tiles are priced in one array


@dataclass(frozen=True, slots=True)
class Rates:
    """What one (hardware, format, parameters) offers a GEMM.

    Attributes:
        sm_count: SMs.
        sm_flop_per_second: tensor-core peak of one SM, FLOP/s.
        sm_load_bytes_per_second: operand-load bandwidth of one SM, B/s; infinite = no limit.
        activation_bytes: bytes per value of A, scales included.
        weight_bytes: bytes per value of B, scales included.
    """

    sm_count: int
    sm_flop_per_second: float
    sm_load_bytes_per_second: float
    activation_bytes: float
    weight_bytes: float

    def slots(self, tile: Tile) -> int:
        """Clusters of ``tile`` that run at once (at least one)."""
        return max(1, self.sm_count // tile.sms)

    def seconds_per_k(self, tile: Tile) -> float:
        """Main-loop time per unit of K of one cluster: the slower of math and operand loads, s."""
        sms = min(tile.sms, self.sm_count)
        math_seconds = 2.0 * tile.rows * tile.columns / (sms * self.sm_flop_per_second * tile.utilisation)
        load_bytes = tile.rows * self.activation_bytes + tile.columns * self.weight_bytes
        return max(math_seconds, load_bytes / (sms * self.sm_load_bytes_per_second))


def waves(
    batch: FloatArray | float, m: FloatArray, n: FloatArray, tile: Tile, slots: int, p: GemmParameters
) -> tuple[FloatArray, FloatArray]:
    """Waves of ``tile``: (as the main loop sees them, as the epilogue sees them), each the shape of ``m``.

    They differ only for split-K, whose main loop may use the idle SMs of a first wave that is not full.
    """
    grid = m / tile.rows
    np.ceil(grid, out=grid)
    if tile.fallback_n:
        # ratio = fallback over full cluster along N; the edge uses fallback clusters while they are cheaper.
        ratio = tile.fallback_n / tile.cluster_n
        columns = n / tile.columns
        full = np.floor(columns)
        columns -= full
        columns *= 1.0 / ratio
        np.ceil(columns, out=columns)
        columns *= ratio * (1.0 + p.fallback_penalty)
        np.minimum(columns, 1.0, out=columns)
        columns += full
    else:
        columns = n / tile.columns
        np.ceil(columns, out=columns)
    grid *= columns
    grid *= batch
    grid *= 1.0 / slots
    count = columns
    # ceil of a product of rounded factors: 1e-9 of a wave keeps 16 * 19 / 19 at 16.
    np.subtract(grid, 1e-9, out=count)
    np.ceil(count, out=count)
    if p.wave_rounding < 1.0:
        count -= grid
        count *= p.wave_rounding
        count += grid
    np.maximum(count, 1.0, out=count)
    if p.tail_waves:
        tail = grid - 1.0
        np.clip(tail, 0.0, 1.0, out=tail)
        tail *= p.tail_waves
        count += tail
    if tile.split_k == 1:
        return count, count
    np.clip(grid, 1.0 / tile.split_k, 1.0, out=grid)
    grid *= count
    return grid, count


@dataclass(frozen=True, slots=True)
class Menu:
    """The tiles of one (hardware, format, parameters) as columns, each of shape ``(T, 1)``."""

    rows: FloatArray
    columns: FloatArray
    per_slot: FloatArray  # 1 / clusters that run at once
    fallback: FloatArray  # fallback over full cluster along N; 1 = none
    least_share: FloatArray  # 1 / split_k
    max_m: FloatArray
    seconds_per_k: FloatArray
    epilogue_seconds: FloatArray

    @classmethod
    def of(cls, tiles: tuple[Tile, ...], rates: Rates) -> Menu:
        """Columns of ``tiles``."""
        rows = [
            (
                t.rows, t.columns, 1.0 / rates.slots(t), t.fallback_n / t.cluster_n or 1.0, 1.0 / t.split_k, t.max_m or np.inf,
                rates.seconds_per_k(t), t.epilogue_seconds,
            )
            for t in tiles
        ]  # fmt: skip
        return cls(*(np.array(column, dtype=np.float64)[:, None] for column in zip(*rows, strict=True)))

    def __len__(self) -> int:
        return len(self.rows)


def fastest_at_once(
    batch: FloatArray | float, m: FloatArray, n: FloatArray, k: FloatArray, menu: Menu, p: GemmParameters
) -> FloatArray:
    """:func:`fastest` with all tiles in one array: the same equations, quicker for a few shapes, slower for many."""
    grid = np.ceil(m / menu.rows)
    columns = n / menu.columns
    full = np.floor(columns)
    edge = np.ceil((columns - full) * (1.0 / menu.fallback)) * (menu.fallback * (1.0 + p.fallback_penalty))
    grid *= full + np.minimum(edge, 1.0)
    grid *= batch * menu.per_slot
    count = np.ceil(grid - 1e-9)
    if p.wave_rounding < 1.0:
        count = grid + p.wave_rounding * (count - grid)
    count = np.maximum(count, 1.0)
    if p.tail_waves:
        count += p.tail_waves * np.minimum(np.maximum(grid - 1.0, 0.0), 1.0)
    share = np.minimum(np.maximum(grid, menu.least_share), 1.0)
    time = (padded(k, p) * menu.seconds_per_k * share + menu.epilogue_seconds) * count
    return drooped(np.min(np.where(m > menu.max_m, np.inf, time), axis=0), p)


def fastest(
    batch: FloatArray | float,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    tiles: tuple[Tile, ...],
    rates: Rates,
    p: GemmParameters,
) -> FloatArray:
    """Compute time of the fastest tile, s, same shape as ``m``."""
    k = padded(k, p)
    best: FloatArray | None = None
    for tile in tiles:
        main, count = waves(batch, m, n, tile, rates.slots(tile), p)
        time = k * rates.seconds_per_k(tile)
        if main is count:
            time += tile.epilogue_seconds
            time *= count
        else:
            time *= main
            count *= tile.epilogue_seconds
            time += count
        if tile.max_m:
            time[m > tile.max_m] = np.inf
        if best is None:
            best = time
        else:
            np.minimum(best, time, out=best)
    if best is None:
        raise InvalidValueError("a GEMM menu needs at least one tile, got none; give the profile one")
    return drooped(best, p)


def fastest_parts(
    batch: FloatArray | float,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    tiles: tuple[Tile, ...],
    rates: Rates,
    p: GemmParameters,
) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Main-loop seconds, epilogue seconds and index of the fastest tile, each the shape of ``m``."""
    k = padded(k, p)
    main, epilogue = [], []
    for tile in tiles:
        loops, count = waves(batch, m, n, tile, rates.slots(tile), p)
        if tile.max_m:
            count = np.where(m > tile.max_m, np.inf, count)
        main.append(loops * k * rates.seconds_per_k(tile))
        epilogue.append(count * tile.epilogue_seconds if tile.epilogue_seconds else np.where(np.isinf(count), np.inf, 0.0))
    index = np.argmin(np.add(main, epilogue), axis=0)
    pick = index[None]
    chosen_main = np.take_along_axis(np.array(main), pick, 0)[0]
    chosen_epilogue = np.take_along_axis(np.array(epilogue), pick, 0)[0]
    # The droop is the tensor cores' own: it counts as math.
    chosen_main = drooped(chosen_main + chosen_epilogue, p) - chosen_epilogue
    return chosen_main, chosen_epilogue, np.asarray(index, dtype=np.intp)


def padded(k: FloatArray, p: GemmParameters) -> FloatArray:
    """K with the cost of its padding to a multiple of ``k_tile``, same shape as ``k``."""
    if not p.k_tile:
        return k
    whole = np.ceil(k / p.k_tile)
    whole *= p.k_tile
    whole -= k
    whole *= p.k_rounding
    whole += k
    return whole


def drooped(compute: FloatArray, p: GemmParameters) -> FloatArray:
    """Compute time at the clock a long GEMM can hold: T (1 + droop T / (T + droop_seconds)), s."""
    if not p.droop:
        return compute
    share = compute + p.droop_seconds
    np.divide(compute, share, out=share)
    share *= p.droop
    share += 1.0
    share *= compute
    return share
