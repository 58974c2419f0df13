"""Tile menus by serving stack and format: shapes and switches only; utilisation and epilogue are fitted.

Chosen on fit rows of the GB300 tables (never on held-out ones) among hand-written menus of tiles seen in public kernels:
64..256 wide, one- and two-SM tiles, split-K, kernels for small M only. Status: inferred from timing, not read from the
libraries. Where a library picks by a rule of M instead of by trying (CUTLASS FP8), a menu with ``max_m`` fits far better
than a free choice: its mean loss is 20 % lower for sglang FP8, 18 % lower for trtllm NVFP4.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..gemm_tiles import Tile


def _pair(tile_n: int, *, max_m: int = 0) -> Tile:
    """A two-SM tile of 256 rows (clusterMMA)."""
    return Tile(128, tile_n, 2, max_m=max_m)


_BLAS = (  # a vendor library that tries many kernels, split-K among them
    Tile(128, 256),
    Tile(128, 128),
    Tile(64, 128),
    Tile(64, 64),
    Tile(32, 64),
    Tile(128, 128, split_k=8),
    Tile(64, 64, split_k=32),
)
_RULE_OF_M = (  # two-SM tiles for large M, smaller tiles only up to a limit of M
    _pair(128),
    Tile(128, 128, max_m=256),
    Tile(128, 64, max_m=256),
    Tile(64, 64, max_m=64),
)
_DEEP = (Tile(128, 192), Tile(128, 128), Tile(64, 128), Tile(64, 64), Tile(32, 64), Tile(16, 64))  # DeepGEMM's block widths
_BOTH = (_pair(256), _pair(128), Tile(128, 256), Tile(128, 128), Tile(128, 64), Tile(64, 64), Tile(128, 128, split_k=32))
DEFAULT = _BLAS
MENUS: Mapping[tuple[str, str], tuple[Tile, ...]] = MappingProxyType(
    {
        ("sglang", "fp8"): _RULE_OF_M,
        ("vllm", "fp8"): (Tile(128, 128, 2, 2), _pair(128), Tile(128, 64, max_m=256), Tile(64, 64, max_m=64)),
        ("sglang", "fp8_block"): _DEEP,
        ("trtllm", "fp8_block"): _DEEP,
        ("sglang", "nvfp4"): _BOTH,
        ("vllm", "nvfp4"): (_pair(256), _pair(192), _pair(128), _pair(64), Tile(128, 128), Tile(128, 64), Tile(128, 32)),
        ("trtllm", "nvfp4"): (
            _pair(256),
            Tile(128, 256),
            Tile(128, 256, 2, 2, max_m=256),
            Tile(128, 64, max_m=64),
            Tile(64, 128, max_m=64),
        ),
    }
)
# K tile by format: FP8 block 128 (its scales), FP8 and NVFP4 256 (public kernels); 0 where none shows.
K_TILES: Mapping[str, float] = MappingProxyType({"nvfp4": 256.0, "fp8": 256.0, "fp8_block": 128.0})
_ULTRA_K_TILE = 768.0  # NVFP4 kernels of compute capability 10.3 (GB300, B300), which trtllm's timings show
_ULTRA_GPUS = ("gb300", "b300")
_LOOKED_AT = ("gb300", "b300", "gb200", "b200")  # compute capability 10.x: the same kernels


def menu_for(hardware: str, stack: str, number_format: str) -> tuple[Tile, ...]:
    """The menu of ``stack`` at ``number_format``; the default on GPUs and for stacks we have not looked at."""
    return MENUS.get((stack, number_format), DEFAULT) if hardware in _LOOKED_AT else DEFAULT


def k_tile_for(hardware: str, stack: str, number_format: str) -> float:
    """The K tile of ``stack`` at ``number_format`` on ``hardware``, 0 = none."""
    if (stack, number_format) == ("trtllm", "nvfp4") and hardware in _ULTRA_GPUS:
        return _ULTRA_K_TILE
    return K_TILES.get(number_format, 0.0)
