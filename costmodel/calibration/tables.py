"""Measured kernel tables: those of ``aiconfigurator-core`` (optional, Apache-2.0) and a user's own CSV or parquet.

``aiconfigurator-core`` keeps ``systems/data/<system>/<family>/<stack>/<version>/<file>_perf.parquet``; the files are read
directly, the package is never imported. Latencies are in milliseconds unless a family module says otherwise.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError, UnknownKeyError, did_you_mean
from ..hardware import Hardware, load_hardware

if TYPE_CHECKING:
    import pandas as pd

STACKS = ("trtllm", "sglang", "vllm")
_MAX_BYTES = 1_000_000_000
_SYSTEMS = {
    "gb300": "gb300",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "b200": "b200_sxm",
    "h200": "h200_sxm",
    "h100": "h100_sxm",
}  # our name -> folder


@dataclass(frozen=True)
class MeasuredTables:
    """Where the measured rows of one (hardware, stack) are.

    Attributes:
        hardware: the GPU.
        stack: serving stack.
        root: folder of the system, or None where only a user's table exists.
        table: a user's own table of GEMMs, or None.
        version: only tables of this version, or None for the newest of each.
    """

    hardware: Hardware
    stack: str
    root: Path | None = None
    table: Path | None = None
    version: str | None = None

    def versions(self, family: str, file: str, *, stack: str | None = None) -> list[str]:
        """Versions that hold ``family/<stack>/<version>/<file>_perf.parquet``, oldest first."""
        if self.root is None:
            return []
        paths = (self.root / family / (stack or self.stack)).glob(f"*/{file}_perf.parquet")
        found = sorted((path.parent.name for path in paths), key=_version_key)
        return found if self.version is None else [name for name in found if name == self.version]

    def read(self, family: str, file: str, *, stack: str | None = None, version: str | None = None) -> pd.DataFrame | None:
        """Rows of one table, newest version unless named; None where there is none.

        Args:
            family: folder, e.g. ``gemm``, ``attention``, ``comm``.
            file: file name without ``_perf.parquet``, e.g. ``context_attention``.
            stack: folder other than the tables' own stack, e.g. ``nccl``.
            version: a version folder.
        """
        found = self.versions(family, file, stack=stack)
        if not found or self.root is None:
            return None
        path = self.root / family / (stack or self.stack) / (version or found[-1]) / f"{file}_perf.parquet"
        return read_parquet(path)

    def source(self, family: str, file: str, *, stack: str | None = None) -> str:
        """The table in words, for a profile's ``source``."""
        if self.root is None:
            return str(self.table.name if self.table else "no table")
        newest = (self.versions(family, file, stack=stack) or ["?"])[-1]
        return f"aiconfigurator-core systems/data/{self.root.name}/{family}/{stack or self.stack}/{newest}/{file}_perf.parquet"


def _version_key(version: str) -> tuple[Any, ...]:
    return tuple((0, int(part), "") if part.isdigit() else (-1, 0, part) for part in re.findall(r"\d+|[a-z]+", version))


def read_parquet(path: Path) -> pd.DataFrame:
    """Rows of a parquet file.

    Raises:
        InvalidValueError: pandas has no parquet engine.
    """
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError:
        raise InvalidValueError(
            f"{path.name}: reading parquet needs pyarrow, which is not installed: pip install 'shapefront[silicon]'"
        ) from None


def tables_root() -> Path:
    """Folder ``systems/data`` of the installed ``aiconfigurator-core``.

    Raises:
        InvalidValueError: it is not installed.
    """
    spec = importlib.util.find_spec("aiconfigurator_core")
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        root = Path(place) / "systems" / "data"
        if root.is_dir():
            return root
    raise InvalidValueError(
        "measured tables need the package aiconfigurator-core, which is not installed: pip install 'shapefront[silicon]', "
        "or give a table of your own"
    )


def open_tables(hardware: str, stack: str, table: str | Path | None = None) -> MeasuredTables:
    """Locate the tables of one (hardware, stack), or a user's own table.

    Raises:
        UnknownKeyError: no such hardware or stack.
        InvalidValueError: no table can be found or read.
    """
    gpu = load_hardware(hardware)
    if table is not None:
        path = Path(table)
        if not path.is_file():
            raise InvalidValueError(f"{path}: no such file; give a CSV or parquet with columns m, n, k, dtype, latency (ms)")
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidValueError(
                f"{path}: {path.stat().st_size} bytes is more than the {_MAX_BYTES} a table may have; split it"
            )
        return MeasuredTables(gpu, stack, None, path)
    if stack not in STACKS:
        raise UnknownKeyError(f"unknown serving stack '{stack[:60]}'{did_you_mean(stack, STACKS)}")
    root = tables_root() / _SYSTEMS.get(gpu.name, gpu.name)
    if not root.is_dir():
        raise InvalidValueError(
            f"no measured tables for hardware '{gpu.name}' (there are: {', '.join(_SYSTEMS)}); give a table of your own"
        )
    return MeasuredTables(gpu, stack, root)
