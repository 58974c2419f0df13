"""Tile menus by serving stack and format: shapes and switches only; utilisation and epilogue are fitted.

Chosen on fit rows of the GB300 tables by coordinate search over tiles seen in public kernels (64..256 wide, one- and
two-SM tiles, split-K, kernels for small M); status: inferred from timing, not read from the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..gemm_tiles import Tile

DEFAULT: tuple[Tile, ...] = (
    Tile(128, 256),
    Tile(128, 128),
    Tile(128, 64),
    Tile(64, 64),
    Tile(128, 128, split_k=32),
    Tile(64, 64, split_k=32),
)
MENUS: Mapping[tuple[str, str], tuple[Tile, ...]] = MappingProxyType({})
# K tile by format: FP8 128 (cuBLASLt, DeepGEMM), NVFP4 256, 768 in the SM103 kernels (CUTLASS examples); 0 where none shows.
K_TILES: Mapping[str, float] = MappingProxyType({"nvfp4": 256.0, "fp8": 256.0, "fp8_block": 128.0})


def menu_for(stack: str, number_format: str) -> tuple[Tile, ...]:
    """The menu of ``stack`` at ``number_format``; the default for stacks we have not looked at."""
    return MENUS.get((stack, number_format), DEFAULT)


def k_tile_for(stack: str, number_format: str) -> float:
    """The K tile of ``stack`` at ``number_format``, 0 = none."""
    del stack
    return K_TILES.get(number_format, 0.0)
