"""Tile menus by serving stack and format: shapes and switches only; utilisation and epilogue are fitted.

Chosen on fit rows of the GB300 tables by coordinate search over tiles seen in public kernels (64..256 wide, one- and
two-SM tiles, split-K, kernels for small M); status: inferred from timing, not read from the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..gemm_tiles import Tile
from ..hardware import Hardware

DEFAULT: tuple[Tile, ...] = (
    Tile(128, 256),
    Tile(128, 128),
    Tile(128, 64),
    Tile(64, 64),
    Tile(128, 128, split_k=32),
    Tile(64, 64, split_k=32),
)
MENUS: Mapping[tuple[str, str], tuple[Tile, ...]] = MappingProxyType({})


def menu_for(stack: str, number_format: str, hardware: Hardware) -> tuple[Tile, ...]:
    """The menu of ``stack`` at ``number_format``; the default for stacks we have not looked at."""
    del hardware  # one menu a stack: the libraries carry the same tiles from GPU to GPU of a family
    return MENUS.get((stack, number_format), DEFAULT)
