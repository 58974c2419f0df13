"""Measured attention rows: which kernel a stack serves with, what is left out and why, and which groups are held out.

Columns of the tables: ``isl`` is per sequence, ``step`` the past length (2**n - 1), ``window_size`` caps the keys,
latencies in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValueError, check_keys

if TYPE_CHECKING:
    import pandas as pd

    from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
HELD_OUT_SALT, HELD_OUT_PERCENT = 164, 36
# The salt was chosen on group counts alone: of every (head size, window) in the tables 24 to 48 % of the groups are held out.
MLA_HELD_OUT_SALT = 7  # the first salt that holds out 3 or 4 of the 8 head counts, one of them above 16
FORMATS = MappingProxyType({"bfloat16": "bf16", "fp8": "fp8"})
# Kernels a stack serves with; the others in its tables are fallbacks for shapes these do not take.
PREFILL_KERNELS = ("torch_flow", "trtllm_mha", "fa3", "vllm_flashinfer_trtllmprefill", "vllm_flashinfer", "vllm_flash_attn_fa3")
DECODE_KERNELS = ("torch_flow", "trtllm_mha", "fa3", "vllm_flashinfer_trtllmdecode", "vllm_flashinfer", "vllm_flash_attn_fa3")
LARGE_HEAD_KERNELS = MappingProxyType({"torch_flow_flashinfer": 512})  # the stack's kernel for this head size only
FALLBACK_GROUP = 64  # trtllm decode at or above this many query heads a KV head falls back to a kernel 5 to 26 times slower
HOPPER_FALLBACK_GROUP = 48  # the same on Hopper: 32 heads are the XQA kernel's, 48 run 2 to 4 times slower


def is_held_out(*keys: int, salt: int = HELD_OUT_SALT) -> bool:
    """Whether the group named by whole numbers is held out: a fixed SHA-256 hash of ``salt/key/key/…``."""
    text = "/".join(str(int(key)) for key in (salt, *keys))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True)
class AttentionRows:
    """Rows of one attention table that are used.

    Attributes:
        columns: name -> values (``batch new_tokens context heads kv_heads head_dim window``), float64.
        seconds: measured time, s.
        format: attention format of each row.
        kv_format: cache format of each row.
        held: rows of held-out groups.
        excluded: reason -> number of rows left out.
        source: the table in words.
    """

    columns: Mapping[str, FloatArray]
    seconds: FloatArray
    format: NDArray[Any]
    kv_format: NDArray[Any]
    held: BoolArray
    excluded: Mapping[str, int]
    source: str

    def take(self, rows: BoolArray) -> AttentionRows:
        """Only ``rows``."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        parts = (self.seconds[rows], self.format[rows], self.kv_format[rows], self.held[rows])
        return AttentionRows(columns, *parts, self.excluded, self.source)

    def describe_excluded(self) -> str:
        """The reasons and counts in one line."""
        return "; ".join(f"{count} rows: {reason}" for reason, count in self.excluded.items() if count)


def read_rows(tables: MeasuredTables, kind: str) -> AttentionRows | None:
    """Rows of ``context`` (prefill) or ``generation`` (decode) attention; None where there is no table.

    Raises:
        UnknownKeyError: a column is missing.
        InvalidValueError: a latency is not positive, or a format is unknown.
    """
    frame = tables.read("attention", f"{kind}_attention")
    if frame is None:
        return None
    source = tables.source("attention", f"{kind}_attention")
    check_columns(frame, ("num_heads", "num_key_value_heads", "head_dim", "window_size", "kernel_source"), source)
    kernels = PREFILL_KERNELS if kind == "context" else DECODE_KERNELS
    main = frame["kernel_source"].isin(kernels)
    for name, size in LARGE_HEAD_KERNELS.items():
        main |= (frame["kernel_source"] == name) & (frame["head_dim"] == size)
    others = frame["kernel_source"][~main].value_counts()
    excluded = {f"kernel {name}, not the one the stack serves with": int(count) for name, count in others.items()}
    frame = frame[main]
    if kind == "generation" and tables.stack == "trtllm":
        least = FALLBACK_GROUP if tables.hardware.nvfp4_flop_per_second else HOPPER_FALLBACK_GROUP
        fallback = frame["num_heads"] // frame["num_key_value_heads"] >= least
        excluded[f"{least} or more query heads a KV head, a fallback kernel"] = int(fallback.sum())
        frame = frame[~fallback]
    groups = frame[["num_heads", "num_key_value_heads", "head_dim", "window_size"]]
    known = {key: is_held_out(*key) for key in set(groups.itertuples(index=False, name=None))}
    held = np.array([known[key] for key in groups.itertuples(index=False, name=None)], dtype=bool)
    return rows_from(frame, held, excluded, source, kv_heads="num_key_value_heads", head_dim="head_dim", window="window_size")


def check_columns(frame: pd.DataFrame, names: tuple[str, ...], source: str) -> None:
    """Refuse a table without the columns every attention table has, or with latencies that are not positive."""
    needed = ("batch_size", "isl", "step", "kv_cache_dtype", "latency", *names)
    check_keys([c for c in frame.columns if c in needed], needed, source, required=needed)
    latency = frame["latency"].to_numpy(dtype=float)
    if not (np.isfinite(latency) & (latency > 0)).all():
        raise InvalidValueError(f"{source}: latency must be positive, got {latency.min():g}; remove the failed rows")
    if latency.size and not 1e-3 < np.median(latency) < 1e3:
        raise InvalidValueError(
            f"{source}: latency must be in milliseconds, its median is {np.median(latency):g}; convert the column"
        )


def rows_from(frame: pd.DataFrame, held: BoolArray, excluded: dict[str, int], source: str, **optional: str) -> AttentionRows:
    """Columns of a checked table as arrays; ``optional`` maps our names to table columns.

    Raises:
        InvalidValueError: an unknown number format.
    """
    names = {"batch": "batch_size", "new_tokens": "isl", "heads": "num_heads", **optional}
    columns = {ours: frame[theirs].to_numpy(dtype=float) for ours, theirs in names.items()}
    columns["context"] = frame["step"].to_numpy(dtype=float) + 1.0
    formats = []
    for name in ("attn_dtype", "kv_cache_dtype"):
        found = frame[name if name in frame.columns else "mla_dtype"]
        unknown = set(found) - set(FORMATS)
        if unknown:
            raise InvalidValueError(f"{source}: {name} must be one of {', '.join(FORMATS)}, got {sorted(unknown)[0]!r}")
        formats.append(found.map(dict(FORMATS)).to_numpy(dtype=str))
    seconds = frame["latency"].to_numpy(dtype=float) * 1e-3
    return AttentionRows(columns, seconds, formats[0], formats[1], held, excluded, source)
