"""Batched products of MLA's absorbed projections (batch = heads): fit and held-out error.

Pre: q_nope [tokens, 128] by the head's K up-projection [128, 512]; post: the latent [tokens, 512] by its V up-projection
[512, 128] (DeepSeek-V3 report, section 2.1.1: qk_nope 128, v 128, kv_lora 512). Whole (heads, projection) pairs are held out.
"""

from __future__ import annotations

import numpy as np

from ..gemm_tiles import Tile
from ..profile import KernelProfile
from .fit import FitParameter
from .gemm import fit_rows, validate_rows
from .gemm_rows import DTYPES, GemmRows
from .interface import FamilyResult, ValidationRow
from .split import held_out
from .tables import MeasuredTables

# A few hundred rows on a 2 us timer grid: seven numbers (nine for FP8), one plain menu, the rest fixed.
_NUMBERS = (
    FitParameter("launch_seconds", 4e-6, 3e-7, 5e-5),
    FitParameter("bandwidth_efficiency", 0.8, 0.3, 1.0),
    FitParameter("sm_bandwidth_share", 3.0, 0.8, 10.0),
    FitParameter("utilisation", 0.7, 0.1, 1.0),
    FitParameter("wave_rounding", 0.5, 0.01, 1.0),
    FitParameter("epilogue_seconds_per_tile", 0.6e-6, 1e-9, 1e-5),
    FitParameter("combine_power", 2.5, 1.0, 12.0),
)
_QUANTISE = (FitParameter("quantise_efficiency", 0.5, 0.02, 1.0), FitParameter("quantise_minimum_k", 200.0, 16.0, 8000.0))
_FIXED = {"epilogue_seconds": 0.0, "split_seconds": 0.0, "small_utilisation": 1.0}
_MENU = (Tile(128, 256), Tile(128, 128), Tile(64, 128), Tile(64, 64))
_SHAPES = {"mla_gen_pre": (512, 128), "mla_gen_post": (128, 512)}  # op -> (N, K)


def read_bmm_rows(tables: MeasuredTables) -> list[GemmRows]:
    """Rows by number format; ``fp8`` rows of kernels that dequantise to BF16 are left out (they repeat the BF16 rows)."""
    frame = tables.read("mla_bmm", "mla_bmm")
    if frame is None:
        return []
    frame = frame[frame["op_name"].isin(list(_SHAPES)) & frame["bmm_dtype"].astype(str).isin(DTYPES) & (frame["latency"] > 0)]
    rows = []
    for name, part in frame.groupby("bmm_dtype"):
        dequantised = part["kernel_source"].astype(str).str.contains("dequant").to_numpy()
        excluded, note = int(dequantised.sum()), "FP8 weights dequantised to BF16: the BF16 kernel, priced as such"
        part = part[~dequantised]
        shapes = np.array([_SHAPES[op] for op in part["op_name"]], dtype=np.float64).reshape(-1, 2)
        heads, tokens, latency = (part[c].to_numpy(dtype=np.float64) for c in ("num_heads", "num_tokens", "latency"))
        held = held_out(heads, shapes[:, 0])
        rows.append(
            GemmRows(
                DTYPES[str(name)],
                tokens,
                shapes[:, 0],
                shapes[:, 1],
                latency * 1e-3,
                held,
                excluded,
                note * bool(excluded),
                heads,
            )
        )
    return rows


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every number format of the table."""
    where = tables.source("mla_bmm", "mla_bmm")
    return [
        fit_rows("bmm", tables, rows, where, numbers=_NUMBERS + _QUANTISE * (rows.format != "bf16"), fixed=_FIXED, menu=_MENU)
        for rows in read_bmm_rows(tables)
        if len(rows)
    ]


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Held-out (heads, projection) pairs, per number format."""
    return [validate_rows("bmm", tables, rows, profile) for rows in read_bmm_rows(tables)]
