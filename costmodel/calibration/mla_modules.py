"""MLA kernels inside measured modules: a stack without kernel tables is checked on what the context adds to a module.

A module row holds the projections, norms and batched GEMMs around the kernel as well. They do not depend on the
context (decode) or on how the same number of tokens is cut into sequences (prefill), so two rows that differ only
there differ by the kernel alone: predicted = shorter row + T(longer) - T(shorter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .attention_rows import MLA_HELD_OUT_SALT, AttentionRows, check_columns, is_held_out, rows_from

if TYPE_CHECKING:
    from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
DOMINANT = 1.5  # rows counted: the context has added at least half of the shorter row's time
KERNELS = ("FLASHINFER_MLA", "TRTLLM_RAGGED", "FLASH_ATTN")  # those whose form is known from kernel tables
ARCHITECTURE = "DeepseekV3ForCausalLM"


@dataclass(frozen=True)
class ModuleRows:
    """Longer rows, each with the shortest row of the same module call.

    Attributes:
        longer: the rows that count.
        shorter: the row each of them is compared with; same order.
    """

    longer: AttentionRows
    shorter: AttentionRows

    def take(self, rows: NDArray[np.bool_]) -> ModuleRows:
        """Only ``rows``."""
        return ModuleRows(self.longer.take(rows), self.shorter.take(rows))


def module_rows(tables: MeasuredTables, kind: str) -> ModuleRows | None:
    """Pairs of module rows (``context`` or ``generation``) in which attention dominates; None without a table."""
    frame = tables.read("mla", f"mla_{kind}_module")
    if frame is None:
        return None
    source = tables.source("mla", f"mla_{kind}_module")
    check_columns(frame, ("num_heads", "architecture", "gemm_type", "kernel_source"), source)
    frame = frame[(frame["architecture"] == ARCHITECTURE) & frame["kernel_source"].isin(KERNELS)].copy()
    if frame.empty:
        return None
    frame["tokens"] = frame["batch_size"] * frame["isl"]
    same = ["kernel_source", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "tokens"]
    order = "step"
    if kind == "context":
        order = "isl"
    else:
        frame["step"] -= 1  # module tables count the new token in
    first = frame.loc[frame.groupby(same)[order].idxmin()]
    pairs = frame.merge(first, on=same, suffixes=("", "_first"))
    pairs = pairs[(pairs["latency"] > DOMINANT * pairs["latency_first"]) & (pairs[order] > pairs[f"{order}_first"])]
    if pairs.empty:
        return None
    held = np.array([is_held_out(h, salt=MLA_HELD_OUT_SALT) for h in pairs["num_heads"]], dtype=bool)
    shorter = pairs[same].copy()
    for name in ("batch_size", "isl", "step", "latency"):
        shorter[name] = pairs[f"{name}_first"]
    return ModuleRows(rows_from(pairs, held, {}, source), rows_from(shorter, held, {}, source))
