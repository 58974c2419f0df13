"""Batched products of MLA's absorbed projections (batch = heads): fit and held-out error.

Pre: q_nope [tokens, 128] by the head's K up-projection [128, 512]; post: the latent [tokens, 512] by its V up-projection
[512, 128] (DeepSeek-V3 report, section 2.1.1: qk_nope 128, v 128, kv_lora 512). Whole (heads, projection) pairs are held out.
"""

from __future__ import annotations

import numpy as np

from ..profile import KernelProfile
from .gemm import fit_rows, validate_rows
from .gemm_rows import DTYPES, GemmRows
from .interface import FamilyResult, ValidationRow
from .split import held_out
from .tables import MeasuredTables

_SHAPES = {"mla_gen_pre": (512, 128), "mla_gen_post": (128, 512)}  # op -> (N, K)


def read_bmm_rows(tables: MeasuredTables) -> list[GemmRows]:
    """Rows by number format; kernels that dequantise FP8 weights to BF16 count as measured, under ``fp8``."""
    frame = tables.read("mla_bmm", "mla_bmm")
    if frame is None:
        return []
    frame = frame[frame["op_name"].isin(list(_SHAPES)) & frame["bmm_dtype"].astype(str).isin(DTYPES) & (frame["latency"] > 0)]
    rows = []
    for name, part in frame.groupby("bmm_dtype"):
        shapes = np.array([_SHAPES[op] for op in part["op_name"]], dtype=np.float64)
        heads, tokens, latency = (part[c].to_numpy(dtype=np.float64) for c in ("num_heads", "num_tokens", "latency"))
        held = held_out(heads, shapes[:, 0])
        rows.append(GemmRows(DTYPES[str(name)], tokens, shapes[:, 0], shapes[:, 1], latency * 1e-3, held, batch=heads))
    return rows


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every number format of the table."""
    where = tables.source("mla_bmm", "mla_bmm")
    return [fit_rows("bmm", tables, rows, where) for rows in read_bmm_rows(tables)]


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Held-out (heads, projection) pairs, per number format."""
    return [validate_rows("bmm", tables, rows, profile) for rows in read_bmm_rows(tables)]
