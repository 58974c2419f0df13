"""Dense matrix products C[M, N] = A[M, K] B[K, N]: seconds and their parts, over arrays of shapes.

Ideal roofline (profile ``ideal``)::

    FLOP = 2 M N K      read = M K bA + N K bB      write = M N bC
    T = max(FLOP / F, (read + write) / BW)

Source: NVIDIA Technical Blog, "AI Model Co-Design: Hardware-Friendly LLM Design" (10 July 2026), Table 2. Fitted profiles
add launch, activation quantisation, tiles and waves (:mod:`.gemm_tiles`)::

    T = launch + quantise + norm_p(compute, memory) >= the ideal roofline

K is first rounded up to what the format's kernels accept (NVFP4: 32); stacks pad weights and activations alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .formats import get_format
from .gemm_model import GemmModel, broadcast_sizes, build_model, combine, memory_parts, model_seconds
from .gemm_tiles import GemmParameters, Tile, as_tile
from .gemm_waves import FloatArray, fastest_parts
from .profile import FamilyFit, KernelProfile, load_profile

TileLike = Tile | Sequence[float]


@dataclass(frozen=True, slots=True)
class GemmCost:
    """Time of GEMMs with its parts; arrays of one broadcast shape.

    Attributes:
        flop: 2 M N K of the product asked for, FLOP.
        read_bytes: A and B, B.
        write_bytes: C, B.
        math_seconds: main loop on the tensor cores, tile and wave padding included, s.
        read_seconds: reads at the reached bandwidth, s.
        write_seconds: writes at the reached bandwidth, s.
        quantise_seconds: activation-quantise kernel, s.
        epilogue_seconds: exposed epilogues of all waves, s.
        launch_seconds: fixed time, s.
        seconds: the GEMM's time (parts overlap: it is at most their sum), s.
        bound: what rules: ``math``, ``memory``, ``epilogue``, ``quantise`` or ``launch``.
        tile: index into the profile's menu, -1 where the profile has none.
        padded_k: K as the kernel runs it: rounded up to what the format's kernels accept
            (:attr:`.formats.NumberFormat.k_multiple`); bytes and times are those of the padded product.
    """

    flop: FloatArray
    read_bytes: FloatArray
    write_bytes: FloatArray
    math_seconds: FloatArray
    read_seconds: FloatArray
    write_seconds: FloatArray
    quantise_seconds: FloatArray
    epilogue_seconds: FloatArray
    launch_seconds: FloatArray
    seconds: FloatArray
    bound: NDArray[np.str_]
    tile: NDArray[np.intp]
    padded_k: FloatArray

    @property
    def memory_seconds(self) -> FloatArray:
        """Reads and writes, s."""
        return self.read_seconds + self.write_seconds


def gemm_parameters(profile: str | KernelProfile, format: str, *, family: str = "gemm") -> GemmParameters:
    """Parameters of ``family`` at ``format``; equal calls return the same object."""
    return _parameters(load_profile(profile), format, family)


@lru_cache(maxsize=512)
def _parameters(profile: KernelProfile, format: str, family: str) -> GemmParameters:
    get_format(format)
    return GemmParameters.from_mapping(_fit(profile, format, family).parameters)


def batched_format(profile: KernelProfile, format: str) -> str:
    """The format a stack's batched kernel runs for weights stored in ``format``.

    A profile whose ``bmm`` tables hold no kernel at the format's tensor-core rate dequantises to BF16.
    """
    fits = profile.families.get("bmm", {})
    rates = {get_format(name).math for name in fits}
    return format if not fits or get_format(format).math in rates else "bf16"


def _fit(profile: KernelProfile, format: str, family: str) -> FamilyFit:
    if family == "bmm" and not profile.families.get("bmm"):
        family = "gemm"  # a batched product is priced as the plain one until it has numbers of its own
    return profile.family(family, format)


@lru_cache(maxsize=512)
def _bound_model(
    profile: KernelProfile, format: str, output_format: str, family: str, tile: Tile | None, warm_l2: bool
) -> GemmModel:
    parameters = _parameters(profile, format, family)
    return build_model(profile, format, output_format, parameters, tile=tile, warm_l2=warm_l2)


def gemm_seconds(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    format: str,
    output_format: str = "bf16",
    profile: str | KernelProfile,
    tile: TileLike | None = None,
    warm_l2: bool = False,
) -> FloatArray:
    """Seconds of C[m, n] = A[m, k] B[k, n]; the arguments broadcast.

    Args:
        m: rows of A (tokens), > 0.
        n: columns of B, > 0.
        k: reduction length, > 0.
        format: number format of A and B, e.g. ``nvfp4``.
        output_format: number format of C.
        profile: profile or its name.
        tile: forces one kernel: a :class:`.gemm_tiles.Tile` or ``(tile_m, tile_n, cluster_m, cluster_n)``.
        warm_l2: operands may lie in L2, as in repeated measurements; serving never sets it.

    Raises:
        InvalidValueError: a size is not finite and positive, or the shapes do not broadcast.
        UnknownKeyError: no such format or profile.
    """
    model = _bind(profile, format, output_format, "gemm", tile, warm_l2)
    return model_seconds(model, 1.0, m, n, k)


def bmm_seconds(
    batch: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    format: str,
    output_format: str = "bf16",
    profile: str | KernelProfile,
    warm_l2: bool = False,
) -> FloatArray:
    """Seconds of ``batch`` products of one shape in one kernel (MLA's absorbed projections: batch = heads).

    Args:
        batch: products, any shape; all broadcast, further arguments and errors as :func:`gemm_seconds`.
        m: rows of A.
        n: columns of B.
        k: reduction length.
        format: number format of A and B; BF16 where the profile has no batched kernel of its rate
            (:func:`batched_format`).
        output_format: number format of C.
        profile: profile or its name.
        warm_l2: operands may lie in L2, as in repeated measurements; serving never sets it.
    """
    model = _bind(profile, format, output_format, "bmm", None, warm_l2)
    return model_seconds(model, batch, m, n, k)


def _bind(
    profile: str | KernelProfile,
    format: str,
    output_format: str,
    family: str,
    tile: TileLike | None,
    warm_l2: bool,
) -> GemmModel:
    loaded = load_profile(profile)
    if family == "bmm":
        format = batched_format(loaded, format)
    forced = None if tile is None else as_tile(tile, _parameters(loaded, format, family))
    return _bound_model(loaded, format, output_format, family, forced, bool(warm_l2))


def gemm_cost(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    format: str,
    output_format: str = "bf16",
    profile: str | KernelProfile,
    tile: TileLike | None = None,
    batch: ArrayLike = 1.0,
    family: str = "gemm",
    warm_l2: bool = False,
) -> GemmCost:
    """Time of GEMMs with its parts and ruling bound; arguments and errors as in :func:`gemm_seconds`.

    ``batch`` products of each shape run in one kernel; ``family`` is ``gemm`` or ``bmm``.
    """
    model = _bind(profile, format, output_format, family, tile, warm_l2)
    p = model.parameters
    shape, arrays = broadcast_sizes(batch, m, n, k, k_multiple=model.k_multiple)
    b, mm, nn, kk = (np.broadcast_to(a.reshape(shape) if a.ndim else a, shape).reshape(-1) for a in arrays)
    useful = np.broadcast_to(np.asarray(k, dtype=np.float64), shape).reshape(-1)
    flop = 2.0 * b * mm * nn * useful
    memory, read, write = memory_parts(model, b, mm, nn, kk, mm * kk)
    write_seconds = write * model.write_cost / model.bytes_per_second
    index = np.full(flop.shape, -1, dtype=np.intp)
    if model.tiles:
        main, epilogue, index = fastest_parts(b, mm, nn, kk, model.tiles, model.rates, p)
    else:
        main, epilogue = 2.0 * b * mm * nn * kk / model.flop_per_second, np.zeros_like(flop)
    quantise = b * mm * np.maximum(kk, p.quantise_minimum_k) * model.quantise_seconds_per_value
    quantise += kk * p.quantise_seconds_per_k + p.quantise_seconds
    launch = np.full(flop.shape, p.launch_seconds)
    seconds = combine(main + epilogue, memory, p.combine_power) + quantise + launch
    compute_rules = main + epilogue >= memory
    math_rules, epilogue_rules = np.where(compute_rules, main, 0.0), np.where(compute_rules, epilogue, 0.0)
    candidates = [math_rules, np.where(compute_rules, 0.0, memory), epilogue_rules, quantise, launch]
    return GemmCost(
        flop=flop.reshape(shape),
        read_bytes=read.reshape(shape),
        write_bytes=write.reshape(shape),
        math_seconds=main.reshape(shape),
        read_seconds=(memory - write_seconds).reshape(shape),
        write_seconds=write_seconds.reshape(shape),
        quantise_seconds=quantise.reshape(shape),
        epilogue_seconds=epilogue.reshape(shape),
        launch_seconds=launch.reshape(shape),
        seconds=seconds.reshape(shape),
        bound=np.array(["math", "memory", "epilogue", "quantise", "launch"])[np.argmax(candidates, axis=0)].reshape(shape),
        tile=index.reshape(shape),
        padded_k=kk.reshape(shape),
    )
