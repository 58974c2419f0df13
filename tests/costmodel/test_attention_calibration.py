"""Calibration of attention and MLA: known numbers come back, groups stay whole, fallbacks are counted, bad tables refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shapefront.costmodel.attention import attention_decode_seconds, attention_prefill_seconds
from shapefront.costmodel.calibration import MeasuredTables, attention, mla
from shapefront.costmodel.calibration.attention_rows import is_held_out, read_rows
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.hardware import load_hardware
from shapefront.costmodel.profile import parse_profile

TRUTH: dict[str, Any] = {
    "name": "truth",
    "hardware": "gb300",
    "attention_prefill": {
        "bf16_kv_bf16": {
            "status": "fitted",
            "source": "made up for a test",
            "parameters": {
                "overlap": 0.0, "tile_rows": 128.0, "launch_seconds": 8e-6, "math_efficiency": 0.7, "exp_efficiency": 1.5,
                "query_factor": 4.0, "tile_seconds": 1e-6, "tail": 0.8, "wave": 1.5, "wave_share": 0.4,
            },
        }
    },
    "attention_decode": {
        "bf16": {
            "status": "fitted",
            "source": "made up for a test",
            "parameters": {
                "launch_seconds": 7e-6, "memory_efficiency": 0.85, "block_seconds": 2e-6, "free_keys": 256.0, "key_seconds": 2e-9,
                "split_seconds": 3e-7, "partial_seconds": 1e-7, "activation_factor": 3.0, "wide_group": 16.0, "wide_block_factor": 1.5,
            },
        }
    },
}  # fmt: skip


def table(kind: str, **changes: Any) -> pd.DataFrame:
    """A table in the tables' own columns, priced by TRUTH (serving branch: nothing warm)."""
    rng = np.random.default_rng(8)
    n = 1500
    kv = 2 ** rng.integers(0, 4, n)
    heads = kv * rng.choice([1, 4, 8, 32], n)
    batch, tokens = 2 ** rng.integers(0, 9, n), 2 ** rng.integers(4, 14, n)
    profile = parse_profile(TRUTH, "test")
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv, "head_dim": 128, "kv_format": "bf16", "profile": profile}
    prefill = kind == "context"
    seconds = attention_prefill_seconds(batch, tokens, **sizes) if prefill else attention_decode_seconds(batch, tokens, **sizes)
    frame = pd.DataFrame(
        {
            "kernel_source": "torch_flow",
            "batch_size": batch,
            "isl": tokens if prefill else 1,
            "step": 0 if prefill else tokens - 1,
            "num_heads": heads,
            "num_key_value_heads": kv,
            "head_dim": 128,
            "window_size": 0,
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": "bfloat16",
            "latency": seconds * 1e3,
        }
    )
    return frame.assign(**changes)


def tables(folder: Path, **frames: pd.DataFrame) -> MeasuredTables:
    """Tables of GB300/trtllm that hold these frames."""
    for name, frame in frames.items():
        place = folder / "attention" / "trtllm" / "9.9"
        place.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(place / f"{name}_attention_perf.parquet")
    return MeasuredTables(load_hardware("gb300"), "trtllm", folder)


def test_known_numbers_come_back(tmp_path: Path) -> None:
    found = attention.fit(tables(tmp_path, context=table("context"), generation=table("generation")))
    assert [(r.family, r.format) for r in found] == [("attention_prefill", "bf16_kv_bf16"), ("attention_decode", "bf16")]
    for result in found:  # times without noise: what is left is how far the search went
        assert result.fit["median"] < 0.01 and result.held_out["median"] < 0.015
        assert 0.2 < result.held_out["rows"] / (result.fit["rows"] + result.held_out["rows"]) < 0.6
    decode = found[1].parameters
    assert decode["memory_efficiency"] == pytest.approx(0.85, rel=0.02)
    assert decode["launch_seconds"] == pytest.approx(7e-6, rel=0.05)


def test_an_fp8_cache_costs_the_same_in_either_math_format() -> None:
    # sglang's table has FP8 math only, and measured kernels run FP8 math whenever the cache is FP8 (faster than BF16's peak)
    sizes: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "profile": "gb300-sglang"}
    tokens = np.array([128, 2048, 16_384])
    sixteen = attention_prefill_seconds(4, tokens, **sizes, format="bf16")
    np.testing.assert_allclose(sixteen, attention_prefill_seconds(4, tokens, **sizes, format="fp8"), rtol=1e-3)


def test_groups_are_held_out_whole_and_for_ever(tmp_path: Path) -> None:
    # The split is a promise to readers of the error table: these groups were never fitted.
    assert is_held_out(32, 8, 128, 0) and is_held_out(64, 64, 64, 0)
    assert [h for h in (1, 2, 4, 8, 16, 32, 64, 128) if is_held_out(h, salt=7)] == [2, 4, 128]
    rows = read_rows(tables(tmp_path, context=table("context")), "context")
    assert rows is not None
    keys = rows.columns["heads"] * 1000 + rows.columns["kv_heads"]
    for key in np.unique(keys):
        assert len(set(rows.held[keys == key])) == 1


def test_fallback_kernels_are_left_out_and_counted(tmp_path: Path) -> None:
    frame = table("generation")
    frame.loc[:99, "kernel_source"] = "triton"
    frame.loc[100:129, ["num_heads", "num_key_value_heads"]] = (64, 1)
    rows = read_rows(tables(tmp_path, generation=frame), "generation")
    assert rows is not None and rows.seconds.size == 1500 - 130
    assert sum(rows.excluded.values()) == 130
    assert "100 rows: kernel triton" in rows.describe_excluded() and "30 rows: 64 or more" in rows.describe_excluded()


def test_no_table_no_family(tmp_path: Path) -> None:
    empty = tables(tmp_path)
    assert attention.fit(empty) == [] and mla.fit(empty) == [] and mla.validate(empty, parse_profile(TRUTH, "test")) == []


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        (table("context").drop(columns="step"), UnknownKeyError, "key 'step' is missing"),
        (table("context", latency=-1.0), InvalidValueError, "latency must be positive, got -1"),
        (table("context", latency=5e4), InvalidValueError, "latency must be in milliseconds, its median is 50000"),
        (table("context", kv_cache_dtype="fp5"), InvalidValueError, "kv_cache_dtype must be one of bfloat16, fp8, got 'fp5'"),
        (table("context").head(20), InvalidValueError, "a fit needs at least 60 rows of one head size"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, frame: pd.DataFrame, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attention.fit(tables(tmp_path, context=frame))


@pytest.mark.silicon
@pytest.mark.parametrize("stack", ["trtllm", "sglang", "vllm"])
def test_goals_on_all_held_out_rows(stack: str) -> None:
    pytest.importorskip("aiconfigurator_core")
    from shapefront.costmodel.calibration import validate

    goals = {
        ("attention_prefill", False): (0.03, 0.08) if stack == "trtllm" else (0.05, 0.14),
        ("attention_prefill", True): (0.06, 0.20),
        ("attention_decode", False): (0.055, 0.18) if stack == "sglang" else (0.05, 0.13),
        ("attention_decode", True): (0.055, 0.18) if stack == "sglang" else (0.05, 0.13),
        ("mla_prefill", False): (0.04, 0.12),
        ("mla_decode", False): (0.065, 0.18),
    }
    rows = validate("gb300", stack, families=("attention", "mla"))
    assert len(rows) >= 6
    for row in rows:
        median, p90 = goals[row["family"], row["format"].endswith("window")]
        assert row["median"] <= median and row["p90"] <= p90, row
        assert row["median"] < row["three_number_median"] or "modules" in row["note"]


def test_hopper_runs_another_kernel_for_one_query_head(tmp_path: Path) -> None:
    frame = table("generation")
    many = read_rows(tables(tmp_path, generation=frame), "generation")
    assert many is not None
    single = many.columns["heads"] == many.columns["kv_heads"]
    assert 0 < single.sum() < single.size
    h200 = replace(tables(tmp_path, generation=frame), hardware=load_hardware("h200"))
    parts = attention.kernels_of(h200, many, "fp8")
    assert [(name, rows.seconds.size) for rows, name in parts] == [
        ("fp8", int((~single).sum())),
        ("fp8:mha", int(single.sum())),
    ]
    assert [name for _, name in attention.kernels_of(tables(tmp_path, generation=frame), many, "fp8")] == ["fp8"]


def test_the_kernel_for_one_query_head_prices_those_shapes_alone() -> None:
    entry = {"status": "inferred", "source": "a test"}
    profile = parse_profile(
        {
            "name": "two", "hardware": "h200",
            "attention_decode": {
                "fp8": {**entry, "parameters": {"launch_seconds": 1e-5}},
                "fp8:mha": {**entry, "parameters": {"launch_seconds": 3e-5}},
            },
        },
        "test",
    )  # fmt: skip
    # One sequence, one key: launches alone show (the bytes take nanoseconds).
    seconds = attention_decode_seconds(1, 1, heads=[8, 16, 8], kv_heads=[8, 8, 1], head_dim=128, profile=profile)
    np.testing.assert_allclose(seconds, [3e-5, 1e-5, 1e-5], rtol=0.01)
    alone = attention_decode_seconds(1, 1, heads=8, kv_heads=8, head_dim=128, profile=profile)
    assert float(alone) == float(seconds[0])
