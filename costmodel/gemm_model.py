"""GEMM time of one bound (hardware, format, parameters): the arithmetic behind :mod:`.gemm`, chunked to fit the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .checks import common_shape, numbers
from .formats import get_format
from .gemm_tiles import GemmParameters, Tile
from .gemm_waves import CHUNK, FEW, FloatArray, Menu, Rates, fastest, fastest_at_once
from .profile import KernelProfile


@dataclass(frozen=True, slots=True)
class GemmModel:
    """Everything a call needs that does not depend on the shapes."""

    parameters: GemmParameters
    rates: Rates
    tiles: tuple[Tile, ...]
    flop_per_second: float
    bytes_per_second: float
    output_bytes: float
    write_cost: float
    quantise_seconds_per_value: float
    warm_l2: bool
    menu: Menu | None
    k_multiple: int


def build_model(
    profile: KernelProfile,
    format: str,
    output_format: str,
    parameters: GemmParameters,
    *,
    tile: Tile | None = None,
    warm_l2: bool = False,
) -> GemmModel:
    """Bind ``parameters`` to a profile's hardware (used by the calibration with parameters still being fitted)."""
    hardware, number = profile.hardware, profile.hardware.number_format(format)
    peak = hardware.peak_flop_per_second(number.math)
    bandwidth = hardware.memory_bytes_per_second
    share = parameters.sm_bandwidth_share
    rates = Rates(
        sm_count=hardware.sm_count,
        sm_flop_per_second=peak / hardware.sm_count,
        sm_load_bytes_per_second=share * bandwidth / hardware.sm_count if share else float("inf"),
        activation_bytes=number.activation_bytes,
        weight_bytes=number.weight_bytes,
    )
    quantise = 0.0
    if parameters.quantise_efficiency:
        # Reads 16-bit activations, writes them in the GEMM's format.
        quantise = (2.0 + number.activation_bytes) / (bandwidth * parameters.quantise_efficiency)
    tiles = (tile,) if tile is not None else parameters.tiles
    return GemmModel(
        parameters=parameters,
        rates=rates,
        tiles=tiles,
        menu=Menu.of(tiles, rates) if tiles else None,
        flop_per_second=peak,
        bytes_per_second=bandwidth * parameters.bandwidth_efficiency,
        write_cost=parameters.bandwidth_efficiency / (parameters.write_efficiency or parameters.bandwidth_efficiency),
        output_bytes=get_format(output_format).activation_bytes,
        quantise_seconds_per_value=quantise,
        warm_l2=warm_l2,
        k_multiple=number.k_multiple,
    )


def broadcast_sizes(*sizes: ArrayLike, k_multiple: int = 1) -> tuple[tuple[int, ...], list[FloatArray]]:
    """Broadcast shape of (batch, m, n, k), and each as a flat float64 array of that size (scalars stay 0-d).

    K is rounded up to ``k_multiple``: what the kernel reads, quantises and multiplies.

    Raises:
        InvalidValueError: a size is not finite and positive, or the shapes do not broadcast.
    """
    found = {}
    for name, size in zip(("batch", "m", "n", "k"), sizes, strict=True):
        found[name] = numbers(f"GEMM size {name}", size, "finite and positive", above=True, way_out="leave out empty products")
    shape = common_shape(found)
    if k_multiple > 1:
        found["k"] = np.asarray(np.ceil(found["k"] * (1.0 / k_multiple)) * k_multiple)
    return shape, [
        a if a.ndim == 0 else np.ascontiguousarray(a if a.shape == shape else np.broadcast_to(a, shape)).reshape(-1)
        for a in found.values()
    ]


def model_seconds(model: GemmModel, batch: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> FloatArray:
    """Seconds of a bound model; see :func:`gemm_seconds` and :func:`bmm_seconds`."""
    shape, arrays = broadcast_sizes(batch, m, n, k, k_multiple=model.k_multiple)
    size = int(np.prod(shape))
    out = np.empty(size)
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        b, mm, nn, kk = (a if a.ndim == 0 else a[start:stop] for a in arrays)
        out[start:stop] = chunk_seconds(model, b, mm, nn, kk, stop - start)
    return out.reshape(shape)


def chunk_seconds(model: GemmModel, batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, size: int) -> FloatArray:
    """Seconds of up to ``CHUNK`` shapes; 0-d arguments count for all ``size`` of them."""
    p = model.parameters
    m, n, k = (np.full(size, a) if a.ndim == 0 else a for a in (m, n, k))
    if model.menu is None:
        compute = m * n * k * batch * (2.0 / model.flop_per_second)
    elif size * len(model.menu) <= FEW:
        compute = fastest_at_once(batch, m, n, k, model.menu, p)
    else:
        compute = fastest(batch, m, n, k, model.tiles, model.rates, p)
    mk = m * k
    memory, _, _ = memory_parts(model, batch, m, n, k, mk)
    total = combine(compute, memory, p.combine_power)
    if model.quantise_seconds_per_value:
        if p.quantise_minimum_k:
            mk = m * np.maximum(k, p.quantise_minimum_k)
        mk *= batch
        mk *= model.quantise_seconds_per_value
        total += mk
    if p.quantise_seconds_per_k:
        total += k * p.quantise_seconds_per_k
    fixed = p.launch_seconds + p.quantise_seconds
    if fixed:
        total += fixed
    return total


def memory_parts(
    model: GemmModel, batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, mk: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Memory seconds, read bytes, write bytes of one batch of shapes."""
    p = model.parameters
    read = n * k
    read *= model.rates.weight_bytes
    read += mk * model.rates.activation_bytes
    read *= batch
    write = m * n
    write *= model.output_bytes * batch
    seconds = write * model.write_cost
    seconds += read
    if model.warm_l2 and p.l2_bytes:
        # Least-recently-used cache: all hits up to its size, none at twice its size, linear between (inferred).
        hit = np.clip(2.0 - read / p.l2_bytes, 0.0, 1.0)
        seconds -= hit * read * (1.0 - 1.0 / p.l2_bandwidth_ratio)
    seconds *= 1.0 / model.bytes_per_second
    return seconds, read, write


def combine(compute: FloatArray, memory: FloatArray, power: float) -> FloatArray:
    """norm_p of compute and memory (in place where it can); power 0 = the maximum."""
    if power == 0.0:
        return np.maximum(compute, memory, out=compute)
    if power == 1.0:
        return np.add(compute, memory, out=compute)
    high = np.maximum(compute, memory)
    np.minimum(compute, memory, out=compute)
    compute /= high
    if power in (2.0, 4.0):
        compute *= compute
        if power == 4.0:
            compute *= compute
        compute += 1.0
        np.sqrt(compute, out=compute)
        if power == 4.0:
            np.sqrt(compute, out=compute)
    else:
        compute **= power
        compute += 1.0
        compute **= 1.0 / power
    compute *= high
    return compute
