"""Measured GEMM rows, checked: columns, values, units, number formats; and what is left out, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValueError, UnknownKeyError, did_you_mean
from ..gemm import gemm_seconds
from ..hardware import Hardware
from ..profile import KernelProfile, load_profile
from .split import gemm_held_out
from .tables import MeasuredTables, read_parquet

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]

DTYPES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
}  # name in a table -> our number format
EXCLUDED = {
    ("vllm", "fp8_block"): "vllm fp8_block measures a fallback with a floor of 55-240 us, not the GEMM (pathological kernel)",
}
NOTES = {
    (
        "vllm",
        "fp8",
    ): "at M = 1 these tables run a kernel some 14 us slower than at M = 2; not modelled, as time must not fall with M",
}
_LAUNCH = 3e-6  # a typical kernel floor, only for the guess of a table's unit (inferred)


@dataclass(frozen=True, slots=True)
class GemmRows:
    """Rows of one number format: sizes, seconds, and which the fit must not see; arrays of one length.

    ``batch``: products of one shape in one kernel (1 for plain GEMMs).
    """

    format: str
    m: FloatArray
    n: FloatArray
    k: FloatArray
    seconds: FloatArray
    held_out: NDArray[np.bool_]
    excluded: int = 0
    note: str = ""
    batch: FloatArray | float = 1.0

    def __len__(self) -> int:
        return int(self.m.size)


def ideal_on(hardware: Hardware) -> KernelProfile:
    """The pure roofline on any hardware, a user's own included."""
    return KernelProfile("ideal", "pure roofline", hardware, "ideal", {}, load_profile("ideal").families)


def read_gemm_rows(tables: MeasuredTables) -> list[GemmRows]:
    """Rows by number format, excluded formats with no rows but their count and reason.

    Raises:
        InvalidValueError: columns missing, a size or latency not positive, or latencies not in milliseconds.
        UnknownKeyError: a user's table has a dtype we do not know.
    """
    frame = tables.read("gemm", "gemm") if tables.table is None else _user_frame(tables.table)
    if frame is None:
        return []
    if tables.table is None:
        frame = frame.rename(columns={"gemm_dtype": "dtype"})
        frame = frame[frame["dtype"].astype(str).isin(DTYPES)]
    frame = _checked(frame, tables.hardware, tables.source("gemm", "gemm"))
    result = []
    for name in sorted(frame["format"].unique()):
        part = frame[frame["format"] == name]
        key = (tables.stack, str(name))
        reason = EXCLUDED.get(key, "") if tables.table is None else ""
        count = len(part) if reason else 0
        if reason:
            part = part.iloc[:0]
        m, n, k, seconds = (part[c].to_numpy(dtype=np.float64) for c in ("m", "n", "k", "seconds"))
        result.append(GemmRows(str(name), m, n, k, seconds, gemm_held_out(n, k), count, reason or NOTES.get(key, "")))
    return result


def _user_frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except InvalidValueError:
        raise
    except Exception as error:  # a parser's own errors are many; the user needs one
        raise InvalidValueError(
            f"{path}: cannot be read as {'parquet' if path.suffix == '.parquet' else 'CSV'} ({error})"
        ) from None
    return frame.rename(columns={"gemm_dtype": "dtype"})


def _checked(frame: pd.DataFrame, hardware: Hardware, where: str) -> pd.DataFrame:
    import pandas as pd

    needed = ("m", "n", "k", "dtype", "latency")
    missing = [c for c in needed if c not in frame.columns]
    if missing:
        raise InvalidValueError(
            f"{where}: columns {', '.join(missing)} are missing; a table has {', '.join(needed)} (latency in ms)"
        )
    if frame.empty:
        raise InvalidValueError(f"{where}: the table has no rows; a fit needs a few hundred shapes")
    frame = frame[list(needed)].copy()
    for column in ("m", "n", "k", "latency"):
        values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=np.float64)
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            row = int(np.argmax(bad))
            raise InvalidValueError(
                f"{where}: {column} must be a positive number, got {str(frame[column].iloc[row])[:40]!r} in row {row + 1} "
                f"({int(bad.sum())} such rows); drop or measure them again"
            )
        frame[column] = values
    names = frame["dtype"].map(str)  # astype would leave an empty cell NaN
    for name in names.unique():
        if name not in DTYPES:
            raise UnknownKeyError(f"{where}: unknown dtype '{name[:60]}'{did_you_mean(name, DTYPES)}")
    frame["format"] = names.map(DTYPES)
    frame["seconds"] = frame["latency"] * 1e-3
    _check_units(frame, hardware, where)
    return frame.drop_duplicates(["format", "m", "n", "k"])


def _check_units(frame: pd.DataFrame, hardware: Hardware, where: str) -> None:
    """Refuse a table whose latencies, read as milliseconds, are about 1000 times off what the hardware can do."""
    ideal = ideal_on(hardware)
    for name in frame["format"].unique():
        part = frame[frame["format"] == name]
        bound = gemm_seconds(part["m"], part["n"], part["k"], format=str(name), profile=ideal) + _LAUNCH
        ratio = part["seconds"].to_numpy() / bound
        median = float(np.median(ratio))
        guesses = [g for g, low, high in (("ns", 1e5, np.inf), ("us", 1e2, 1e5), ("s", 0.0, 0.03)) if low < median <= high]
        if guesses:
            raise InvalidValueError(
                f"{where}: the median {name} latency, read as ms, is {median:.3g} times what {hardware.name} needs; "
                f"the unit looks like {guesses[0]}, not ms: convert the column to ms"
            )
        odd = float(np.mean((ratio > 300) | (ratio < 0.01)))
        if odd > 0.02:
            raise InvalidValueError(
                f"{where}: {odd:.0%} of the {name} latencies are about 1000 times off the others; the table mixes units "
                f"(ms with us or s): convert all to ms"
            )
