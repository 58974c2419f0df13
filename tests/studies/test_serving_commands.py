"""``estimate`` and ``validate --serving`` from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from shapefront.costmodel import ShapefrontError
from shapefront.studies.cli import app

RUN = CliRunner()


def shown(*arguments: str) -> Any:
    """The JSON that a command prints."""
    result = RUN.invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: str) -> str:
    """The message of a command that refuses its arguments."""
    result = RUN.invoke(app, list(arguments))
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, ShapefrontError) else result.output


def test_a_point_has_the_stable_names_and_adds_up() -> None:
    found = shown("estimate", "DeepSeek-R1", "--layout", "dpa=8,ep=8", "--concurrency", "64", "--profile", "ideal")
    assert {"hidden_size", "num_experts", "total_params", "active_params", "kv_bytes_per_token", "tpa", "ep", "gpus", "concurrency",
            "tokens_per_second_per_gpu", "tokens_per_second_per_user", "ttft_seconds", "itl_seconds", "breakdown", "bound"} <= set(found)
    assert found["kv_bytes_per_token"] == 35_136
    assert sum(found["breakdown"].values()) == pytest.approx(found["itl_seconds"], rel=1e-9)
    assert found["tokens_per_second_per_gpu"] == pytest.approx(64 / found["itl_seconds"] / 8, rel=1e-9)


@pytest.mark.parametrize("option", [("--concurrency", "64"), ("--context", "100000")])
def test_options_of_a_point_are_not_dropped_without_a_layout(option: tuple[str, str]) -> None:
    assert "name its --layout" in refused("estimate", "Llama-3.1-8B", *option)


def test_the_header_names_layout_gpu_and_formats() -> None:
    text = RUN.invoke(app, ["estimate", "Llama-3.1-8B", "--layout", "tpa=2", "--hardware", "h200", "--linear", "fp8"]).output
    assert "Llama-3.1-8B on tpa=2,tpf=2: h200," in text and "linear layers fp8, KV cache fp8" in text


def test_another_gpu_changes_the_price_and_the_former_flag_still_works() -> None:
    point = ("estimate", "Llama-3.1-8B", "--layout", "tpa=1", "--profile", "ideal", "--concurrency", "8")
    own, other = shown(*point, "--linear", "bf16"), shown(*point, "--linear", "bf16", "--hardware", "h200")
    assert (own["formats"]["ffn"], other["hardware"]) == ("bf16", "h200")
    assert other["itl_seconds"] > own["itl_seconds"]  # 4.8 TB/s instead of 8
    assert shown(*point, "--format", "bf16") == own


@pytest.mark.parametrize("command", ["estimate", "suggest", "check", "compare", "export"])
def test_every_command_names_the_formats_alike(command: str) -> None:
    text = RUN.invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert "--linear" in text and "--kv-format" in text and "--kv " not in text


def test_a_layout_that_does_not_divide_shows_the_dimensions_once() -> None:
    text = refused("estimate", "Qwen2.5-14B", "--layout", "tpa=3")  # 40 heads and 8 KV heads: two rules are broken
    assert text.count("must") == 2 and text.count("num_attention_heads=40") == 1
    assert "tpa, kvp, dpa (attention), tpf, ep (FFN) and pp" in refused("estimate", "Qwen2.5-14B", "--layout", "tp=8")


def test_without_a_layout_the_frontier_is_printed() -> None:
    found = shown("estimate", "Llama-3.1-8B", "--profile", "ideal")
    users = [point["tokens_per_second_per_user"] for point in found["frontier"]]
    assert users == sorted(users)
    assert found["frontier_area"] > 0
    assert found["tokens_per_second_per_user"] >= 20


def test_four_regimes_from_one_command() -> None:
    regimes = shown("estimate", "DeepSeek-R1", "--regimes")["regimes"]
    assert [(r["context"], r["goal"]) for r in regimes] == [
        (2048, "throughput"), (2048, "latency"), (131072, "throughput"), (131072, "latency")]  # fmt: skip
    for regime in regimes:
        assert sum(regime["shares"].values()) == pytest.approx(1.0)
    assert regimes[2]["shares"]["attention"] >= 0.6


def test_figure_9_and_its_schedule_as_data() -> None:
    rows = shown("estimate", "DeepSeek-R1", "--stages", "1,2,4", "--layout", "dpa=2,ep=2", "--input", "65536", "--schedule")["rows"]
    assert [row["gpus"] for row in rows] == [2, 4, 8]
    assert rows[0]["ttft_seconds"] > rows[1]["ttft_seconds"] > rows[2]["ttft_seconds"]
    assert len(rows[1]["schedule"]) == 2 * 8  # stages x chunks
    assert rows[1]["schedule"][-1]["end_seconds"] == pytest.approx(rows[1]["ttft_seconds"])


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
def test_other_modes_state_a_first_token_and_both_token_counts(mode: str) -> None:
    found = shown("estimate", "Llama-3.1-8B", "--mode", mode, "--profile", "ideal")
    assert found["ttft_seconds"] > 0
    assert found["input_output_tokens_per_second_per_gpu"] == pytest.approx(9 * found["tokens_per_second_per_gpu"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Llama-3.1-8B", "--layout", "tpa=3"), "does not divide"),
        (("DeepSeek-R1", "--stages", "2", "--layout", "dpa=2,ep=2", "--balanced-only"), "pp must divide num_hidden_layers=61"),
        (("DeepSeek-R1", "--layout", "dpa=2,ep=2", "--concurrency", "64", "--context", "2000000"), "takes at least 19 GPUs"),
        (("Llama-3.1-8B", "--mode", "aggregated", "--max-ttft", "1e-9"), "the best reachable"),
        (("DeepSeek-R1", "--mode", "disaggregated", "--gpu-budget", "7"), "contradictory pools"),
        (("Llama-3.1-8B", "--mode", "both"), "mode must be one of"),
        (("Llama-3.1-8B", "--wide-ep"), "no experts to spread"),
    ],
)
def test_refusals_state_the_way_out(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("estimate", *arguments)


def test_uneven_stages_are_named() -> None:
    result = RUN.invoke(app, ["estimate", "DeepSeek-R1", "--layout", "dpa=2,ep=2,pp=4"])
    assert "4.9% more layers than the mean" in result.output


def test_validate_serving_refuses_no_row_and_meets_its_goals() -> None:
    found = shown("validate", "--serving")
    assert found["refused"] == {}
    total = {row["mode"]: row for row in found["rows"] if row["system"] == "all"}
    assert total["disagg"]["median"] <= 0.06
    assert total["disagg"]["p90"] <= 0.15
    assert abs(total["disagg"]["bias"]) <= 0.04
    assert total["disagg"]["median"] < total["disagg"]["roofline_median"] / 2
    llama = [row for row in found["measurements"] if "Llama-3.1-70B" in row["model"]]
    errors = sorted(abs(row["error"]) for row in llama)
    assert errors[len(errors) // 2] <= 0.06
    assert {"family", "format", "stack", "n", "median", "p90", "bias", "spearman", "roofline_median", "three_number_median",
            "excluded"} <= set(found["rows"][0])  # fmt: skip


def test_validate_keeps_its_two_halves_apart() -> None:
    assert "belong to --serving" in refused("validate", "--each")
    assert "are for kernels" in refused("validate", "--serving", "--stack", "trtllm")
