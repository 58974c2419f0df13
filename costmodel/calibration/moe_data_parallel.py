"""Expert kernels behind an all-to-all (attention data-parallel): CUTLASS NVFP4 and DeepGEMM FP8-block tables.

``wideep_moe`` (trtllm, NVFP4, CUTLASS) and ``wideep_generation_moe`` (sglang, FP8-block, masked DeepGEMM) time one
rank with its own tokens. sglang runs the same CUTLASS kernel in NVFP4, which its own tables lack, so the trtllm table
stands in. The sglang table has one shape only: whole group sizes (EP) are held out there instead of shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..moe_load import POWER_LAWS
from .split import held_out

if TYPE_CHECKING:
    import pandas as pd

    from .moe_rows import Rows
    from .tables import MeasuredTables


def read_data_parallel(tables: MeasuredTables) -> list[tuple[str, Rows, str]]:
    """(profile entry, cleaned rows, source) of the kernels that data-parallel attention meets."""
    found = []
    if tables.stack in ("trtllm", "sglang"):
        frame = tables.read("moe", "wideep_moe", stack="trtllm")
        if frame is not None:
            name = f"{frame['moe_dtype'].iloc[0]}:cutlass"  # NVFP4 on Blackwell, FP8-block before
            found.append((name, _rows(frame), tables.source("moe", "wideep_moe", stack="trtllm")))
    if tables.stack == "sglang":
        frame = tables.read("moe", "wideep_generation_moe")
        if frame is not None:
            found.append(("fp8_block:deepgemm", _rows(frame), tables.source("moe", "wideep_generation_moe")))
    return found


def _rows(frame: pd.DataFrame) -> Rows:
    from .moe_rows import Rows, held_out_group

    known = frame["distribution"].isin(["uniform", *POWER_LAWS])
    d = frame[known]
    names = {"tokens": "num_tokens", "h": "hidden_size", "e": "num_experts", "k": "topk", "ep": "moe_ep_size"}
    columns = {ours: d[theirs].to_numpy(np.float64) for ours, theirs in names.items()}
    columns["inner"] = (d["inter_size"] / d["moe_tp_size"]).to_numpy(np.float64)
    shapes = [tuple(map(int, s)) for s in d[["hidden_size", "inter_size", "num_experts", "topk"]].to_numpy()]
    held = np.array([held_out_group(*s) for s in shapes])
    if len(set(shapes)) == 1:
        held = held_out(columns["ep"].astype(np.int64), share=0.4)
    excluded = {"of other routings (load-balanced slots, other exponents)": int((~known).sum())}
    load, gated = d["distribution"].to_numpy(str), np.ones(len(d), bool)
    return Rows(columns, gated, load, d["latency"].to_numpy(np.float64) * 1e-3, held, excluded)
