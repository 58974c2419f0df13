"""AIConfigurator's own interpolation, asked through its engine on tables from which the held-out shapes are removed.

The package ``aiconfigurator-core`` prices an operation by interpolating its measured tables. :class:`Peer` copies the
tables of one (hardware, stack) to a scratch folder without the rows of held-out shapes and of kernels that are not
compared, so that both models have seen the same rows, and asks the package's compiled engine for the held-out ones.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shapefront.costmodel.calibration import MeasuredTables
from shapefront.costmodel.calibration.attention_rows import DECODE_KERNELS, LARGE_HEAD_KERNELS, PREFILL_KERNELS, is_held_out
from shapefront.costmodel.calibration.moe import KERNELS, held_out_group
from shapefront.costmodel.calibration.split import gemm_held_out

Floats = np.ndarray[Any, np.dtype[np.float64]]
QUANT = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
TABLES = {
    "gemm": "gemm",
    "context_attention": "attention",
    "generation_attention": "attention",
    "moe": "moe",
}


def held_rows(name: str, frame: pd.DataFrame) -> Any:
    """Rows of a table that no model may have seen, as the calibration splits them."""
    if name == "gemm":
        return gemm_held_out(frame["n"], frame["k"])
    keys = ["hidden_size", "inter_size", "num_experts", "topk"]
    judge: Callable[..., bool] = held_out_group
    if name != "moe":
        keys, judge = ["num_heads", "num_key_value_heads", "head_dim", "window_size"], is_held_out
    groups = list(frame[keys].astype(int).itertuples(index=False, name=None))
    known = {group: judge(*group) for group in set(groups)}
    return np.array([known[group] for group in groups], dtype=bool)


def same_kernel(name: str, frame: pd.DataFrame, stack: str) -> Any:
    """Rows of the kernels that are compared: interpolating towards a fallback kernel would be no fair test."""
    everything = np.ones(len(frame), dtype=bool)
    if name == "gemm":
        return everything
    if name == "moe":
        sources = "|".join(s for k in KERNELS.get(stack, ()) if ":" not in k.name for s in k.sources)
        return frame["kernel_source"].str.contains(sources).to_numpy() if sources else everything
    kept = PREFILL_KERNELS if name.startswith("context") else DECODE_KERNELS
    return frame["kernel_source"].isin([*kept, *LARGE_HEAD_KERNELS]).to_numpy()


class Peer:
    """The engine of ``aiconfigurator-core`` over tables without held-out rows."""

    def __init__(self, tables: MeasuredTables, scratch: Path, version: str) -> None:
        """Copy the fit rows to ``scratch`` and open the package's database on them."""
        from aiconfigurator_core.sdk import common, engine, perf_database

        logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
        root = tables.root
        if root is None:
            raise SystemExit("the comparison needs the measured tables of aiconfigurator-core")
        systems = root.parents[1]
        for path in systems.glob("*.yaml"):
            shutil.copy(path, scratch)
        for name, family in TABLES.items():
            source = root / family / tables.stack / version / f"{name}_perf.parquet"
            if not source.is_file():
                continue
            target = scratch / "data" / root.name / family / tables.stack / version
            target.mkdir(parents=True, exist_ok=True)
            frame = pd.read_parquet(source)
            frame[same_kernel(name, frame, tables.stack) & ~held_rows(name, frame)].to_parquet(target / source.name)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(source.with_name("collection_meta.yaml"), target)
        self._engine = engine
        self.database = perf_database.get_database(
            root.name, tables.stack, version, systems_paths=str(scratch), allow_unlisted_version=True, shared_layer=False
        )
        self.database.set_default_database_mode(common.DatabaseMode.HYBRID)  # its scaling rules where no table reaches
        self.handle = engine._probe_handle_for(self.database, None)

    def _ask(self, asked: Iterable[tuple[list[int], list[Any], dict[str, Any]]], count: int) -> tuple[Floats, float]:
        """Seconds per row (NaN where refused), and the processor seconds of the engine's calls alone."""
        seconds, spent, warm = np.full(count, np.nan), 0.0, False
        for rows, operations, shape in asked:
            self._engine._resolve_attention_lane_orders(operations, self.database, None)
            text = self._engine.build_ops_json(operations)
            if not warm:  # the first question loads the table
                with contextlib.suppress(Exception):
                    self.handle.evaluate_ops_json(text, **shape)
                warm = True
            begin = time.process_time()
            with contextlib.suppress(Exception):  # no data near the shape: counted as refused
                found = self.handle.evaluate_ops_json(text, **shape)
                seconds[rows] = [entry[1] * 1e-3 for entry in found]
            spent += time.process_time() - begin
        return seconds, spent

    def gemm(self, format: str, m: Floats, n: Floats, k: Floats) -> tuple[Floats, float]:
        """GEMMs; all (n, k) of one m go into one call, as the layers of a model do."""
        from aiconfigurator_core.sdk import common
        from aiconfigurator_core.sdk.operations.gemm import GEMM

        mode = common.GEMMQuantMode[QUANT[format]]

        def asked() -> Iterable[tuple[list[int], list[Any], dict[str, Any]]]:
            for size in np.unique(m):
                rows = np.flatnonzero(m == size).tolist()
                operations = [GEMM(str(i), 1.0, int(n[i]), int(k[i]), mode) for i in rows]
                yield rows, operations, {"is_context": True, "batch_size": 1, "s": 1, "x": int(size)}

        return self._ask(asked(), m.size)

    def attention(self, prefill: bool, format: str, kv_format: str, c: dict[str, Floats]) -> tuple[Floats, float]:
        """Prefill or decode attention, one call a row (each has its own batch and length)."""
        from aiconfigurator_core.sdk import common
        from aiconfigurator_core.sdk.operations.attention import ContextAttention, GenerationAttention

        cache, math = common.KVCacheQuantMode[QUANT[kv_format]], common.FMHAQuantMode[QUANT[format]]

        def asked() -> Iterable[tuple[list[int], list[Any], dict[str, Any]]]:
            for i in range(c["batch"].size):
                heads, kv, size, window = (int(c[name][i]) for name in ("heads", "kv_heads", "head_dim", "window"))
                if prefill:
                    operation = ContextAttention("a", 1.0, heads, kv, cache, math, window_size=window, head_size=size)
                    length = int(c["new_tokens"][i])
                else:
                    operation = GenerationAttention("a", 1.0, heads, kv, cache, window_size=window, head_size=size)
                    length = int(c["context"][i])
                yield [i], [operation], {"is_context": prefill, "batch_size": int(c["batch"][i]), "s": length}

        return self._ask(asked(), c["batch"].size)

    def moe(self, format: str, c: dict[str, Floats], load: Any) -> tuple[Floats, float]:
        """Experts, one call a row; ``inner`` is the width already divided by its tensor ranks."""
        from aiconfigurator_core.sdk import common
        from aiconfigurator_core.sdk.operations.moe import MoE

        mode = common.MoEQuantMode[QUANT[format]]

        def asked() -> Iterable[tuple[list[int], list[Any], dict[str, Any]]]:
            for i in range(c["tokens"].size):
                sizes = [int(c[name][i]) for name in ("h", "inner", "k", "e", "tp", "ep")]
                sizes[1] *= sizes[4]
                operation = MoE("m", 1.0, *sizes, mode, str(load[i]), 1)
                yield [i], [operation], {"is_context": True, "batch_size": 1, "s": 1, "x": int(c["tokens"][i])}

        return self._ask(asked(), c["tokens"].size)
