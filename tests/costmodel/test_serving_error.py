from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, UnknownKeyError
from shapefront.costmodel.calibration.serving import (
    error_figures,
    fit_constant,
    held_out,
    predict,
    roofline_seconds,
    validate_serving,
)
from shapefront.costmodel.calibration.serving_rows import architecture_of, bundled_rows, formats_of, parse_row, read_rows

CELLS = {
    "id": "row", "system": "gb300", "backend": "sglang", "model_path": "deepseek-ai/DeepSeek-V3", "precision": "fp4", "mode": "disagg",
    "isl": "8192", "osl": "1024", "decode_batch_size": "16.0", "decode_tp_size": "4.0", "decode_attention_dp_size": "1.0",
    "decode_moe_tp_size": "4.0", "decode_moe_ep_size": "1.0", "tpot_ms": "12.0", "ttft_ms": "1175.0",
}  # fmt: skip


def test_every_bundled_row_is_used() -> None:
    rows, refused = read_rows()
    assert refused == {}
    assert len(rows) == 155
    assert sum(row.mode == "disagg" for row in rows) == 36


def test_concurrency_is_batch_per_rank_times_ranks() -> None:
    rows, _ = read_rows(only=["dsr1_gb300_sglang_fp4_disagg_8192x1024_c64_cfg569"])
    assert rows[0].layout == Layout(tpa=4, tpf=4)
    assert rows[0].batch == 15  # running, of the nominal 16
    wide, _ = read_rows()
    row = next(r for r in wide if r.expert_parallel and r.layout.dpa == 32)
    assert row.concurrency == row.batch * 32


def test_running_batch_is_derived_where_the_table_has_none() -> None:
    # 16·1024·12 ms / (1175 ms + 1024·12 ms) = 14.604
    assert parse_row("row", CELLS).batch == pytest.approx(16 * 1024 * 12 / (1175 + 1024 * 12))
    assert parse_row("row", CELLS | {"running_batch": "15"}).batch == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [({"decode_moe_tp_size": "8"}, "inconsistent layout"), ({"decode_batch_size": ""}, "batch and TPOT"), ({"tpot_ms": "0"}, "batch and TPOT"),
     ({"mode": "both"}, "mode must be agg or disagg"), ({"precision": "fp3"}, "unknown precision")],
)
def test_rows_that_cannot_be_used_say_why(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_row("row", CELLS | change)


def test_models_by_their_paths() -> None:
    assert architecture_of("deepseek-ai/DeepSeek-V3").num_experts == 256
    assert architecture_of("meta-llama/Llama-3.1-8B-Instruct").hidden_size == 4096
    assert architecture_of("nvidia/Qwen3-32B-NVFP4").num_hidden_layers == 64
    with pytest.raises(UnknownKeyError, match="unknown model"):
        architecture_of("nobody/nothing")


def test_formats_follow_the_checkpoint() -> None:
    deepseek, llama, oss = (architecture_of(n) for n in ("deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b"))
    assert formats_of(deepseek, "fp8").experts == "fp8_block"
    assert formats_of(llama, "fp8").ffn == "fp8"
    assert formats_of(oss, "fp4").qkv == "bf16"
    assert formats_of(oss, "fp8") == formats_of(oss, "fp4")  # released in MXFP4 only; FP8 in a table means the activations
    assert formats_of(oss, "bf16").experts == "bf16"
    assert formats_of(deepseek, "fp4").kv == "fp8"


def test_constant_is_the_weighted_median_residual() -> None:
    measured = np.array([1.0, 2.0, 4.0])
    predicted = measured - np.array([0.1, 0.3, 0.2])
    # weights 1, 1/2, 1/4 on residuals 0.1, 0.3, 0.2: half of 1.75 is reached at 0.1
    assert fit_constant(predicted, measured) == pytest.approx(0.1)
    grid = np.linspace(-1, 1, 2001)
    cost = [np.sum(np.abs(predicted + c - measured) / measured) for c in grid]
    assert grid[int(np.argmin(cost))] == pytest.approx(0.1)


def test_held_out_never_sees_its_own_configuration() -> None:
    rows, _ = read_rows()
    some = [predict(r) for r in rows if r.stack == "sglang" and r.mode == "disagg"][:6]
    seen: list[int] = []

    def fit(others: object) -> object:
        seen.append(len(others))  # type: ignore[arg-type]
        return lambda p: p.seconds

    held_out(some, fit, lambda p: p.row.configuration, lambda p: p.row.stack)  # type: ignore[arg-type]
    sizes = [sum(p.row.configuration != q.row.configuration for q in some) for p in some]
    assert seen == sizes
    assert max(sizes) < len(some)


def test_roofline_by_hand() -> None:
    # Llama-70B in FP8 on one H200: weights once and 16 sequences of 8704 tokens of 163,840 B over 4.8 TB/s.
    rows, _ = read_rows()
    row = next(r for r in rows if r.system == "h200" and r.stack == "trtllm" and r.layout == Layout() and r.batch == 16)
    design = row.architecture
    linear = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    weights = linear + 2 * 128256 * 8192 * 2 + (80 * 2 + 1) * 8192 * 2
    context = row.input_tokens + row.output_tokens / 2
    cache = 16 * context * 2 * 8 * 128 * 80
    assert design.num_hidden_layers == 80
    from shapefront.costmodel import load_profile

    assert roofline_seconds(row, load_profile("ideal", hardware="h200")) == pytest.approx((weights + cache) / 4.8e12, rel=1e-9)


def test_error_figures_by_hand() -> None:
    figures = error_figures(np.array([1.1, 2.0, 2.7]), np.array([1.0, 2.0, 3.0]))
    assert figures["median"] == pytest.approx(0.1)
    assert figures["bias"] == pytest.approx(0.0)
    assert figures["spearman"] == pytest.approx(1.0)
    assert math.isnan(error_figures(np.array([]), np.array([]))["median"])


def test_a_perfect_model_has_no_error(tmp_path: Path) -> None:
    # Rows made from the model's own predictions plus 1 ms: the constant is 1 ms and the held-out error 0.
    rows, _ = read_rows()
    wanted = {r.id: predict(r).seconds + 1e-3 for r in rows if r.stack == "sglang" and r.mode == "disagg"}
    lines = bundled_rows().read_text(encoding="utf-8").splitlines()
    columns = lines[0].split(",")
    tpot, running = columns.index("tpot_ms"), columns.index("running_batch")
    out = [lines[0]]
    for line in lines[1:]:
        cells = line.split(",")
        if cells[0] in wanted:
            assert cells[running]
            cells[tpot] = repr(wanted[cells[0]] * 1e3)
            out.append(",".join(cells))
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(out), encoding="utf-8")
    report = validate_serving(path)
    assert report.constants["sglang disagg"] == pytest.approx(1e-3, rel=1e-6)
    assert report.summary()["p90"] < 1e-9
    assert report.refused == {}


@pytest.mark.parametrize(("text", "message"), [("a,b\n1,2\n", "column 'system' is missing"), (None, "cannot be read")])
def test_refuses_a_table_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "rows.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError, match=message):
        read_rows(path)
