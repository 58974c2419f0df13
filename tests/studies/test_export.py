"""Exporting a result or a model: round trips, the published schema, operating points, refusals."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel import InvalidValueError, Layout, UnknownKeyError
from shapefront.costmodel.models import load_model
from shapefront.studies.cli import main
from shapefront.studies.export import (
    FORMATS,
    TABLES,
    deployment_of,
    design_formats,
    disaggregated_deployment,
    export_design,
    export_result,
    operating_point,
)
from shapefront.studies.exporters import sglang, trtllm, vllm
from shapefront.studies.exporters.huggingface import same_design
from shapefront.studies.exporters.tables import markdown, result_schema
from shapefront.studies.hf_config import read_config
from shapefront.studies.result import FORMAT_VERSION, Result
from shapefront.studies.study import Study


@pytest.fixture(scope="module")
def result() -> Result:
    return Study.load("moe-30b-a3b").run(trials=24, seed=0)


@pytest.fixture(scope="module")
def folder(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.export(tmp_path_factory.mktemp("result") / "out")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_written(result: Result, format: str, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    done = export_result(result, format, tmp_path / format)
    assert done.files and all(file.stat().st_size > 100 for file in done.files)
    if format not in TABLES:
        assert {file.parent.name for file in done.files} == {f"rank-{row['rank']:02d}" for row in result.ranked_rows}


def test_configs_read_back_are_the_ranked_designs(result: Result, tmp_path: Path) -> None:
    done = export_result(result, "hf", tmp_path)
    for row, file in zip(result.ranked_rows, done.files, strict=True):
        assert same_design(read_config(str(file)), result.architecture(row["architecture_id"]))


def test_csv_and_parquet_hold_the_same_numbers(result: Result, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pandas as pd

    export_result(result, "csv", tmp_path)
    export_result(result, "parquet", tmp_path)
    text = list(csv.DictReader(io.StringIO((tmp_path / "pareto.csv").read_text())))
    table = pd.read_parquet(tmp_path / "pareto.parquet")
    assert [float(row["tokens_per_second_per_gpu"]) for row in text] == table["tokens_per_second_per_gpu"].tolist()
    ranked = pd.read_parquet(tmp_path / "ranked.parquet")
    ids = [row["architecture_id"] for row in result.ranked_rows]
    assert ranked["architecture_id"].tolist()[: len(ids)] == ids


def test_json_follows_its_published_schema(result: Result, tmp_path: Path) -> None:
    export_result(result, "json", tmp_path)
    schema = json.loads((tmp_path / "result.schema.json").read_text())
    written = json.loads((tmp_path / "result.json").read_text())
    assert schema == result_schema()
    assert schema["version"] == schema["properties"]["format"]["const"] == FORMAT_VERSION == written["format"]
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(written)
    broken = {**written, "architectures": [{**written["reference"], "attention": "linear"}]}
    with pytest.raises(jsonschema.ValidationError, match="linear"):
        jsonschema.Draft202012Validator(schema).validate(broken)
    assert Result.load(tmp_path / "result.json").data == written


def test_markdown_is_one_table_with_the_reference_last(result: Result) -> None:
    lines = [line for line in markdown(result).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(result.ranked_rows) + 1
    assert len({line.count("|") for line in lines}) == 1
    assert "Qwen3-30B-A3B" in lines[-1] and "| H′ |" not in lines[0]  # no dense layer: no such column


def _row(frontier: list[tuple[float, float]], at: list[tuple[float, int | None]] = []) -> dict[str, Any]:  # noqa: B006
    points = [{"tokens_per_second_per_user": user, "tokens_per_second_per_gpu": gpu} for user, gpu in frontier]
    rates = [{"rate": rate, "gpus": gpus, "tokens_per_second_per_gpu": 7.0} for rate, gpus in at]
    return {"architecture_id": "a001", "frontier": points, "at_rates": rates}


def test_operating_point_is_the_best_with_at_least_the_rate() -> None:
    row = _row([(30.0, 90.0), (60.0, 50.0), (200.0, 5.0)])
    assert operating_point(row, 25.0)["tokens_per_second_per_gpu"] == 90.0
    assert operating_point(row, 31.0)["tokens_per_second_per_gpu"] == 50.0
    with pytest.raises(InvalidValueError, match="gives every user 201 tokens/s; the highest is 200"):
        operating_point(row, 201.0)
    priced = _row([(30.0, 90.0)], [(20.0, 8), (25.0, None)])
    assert operating_point(priced, 20.0)["tokens_per_second_per_gpu"] == 7.0  # the study's own rate, off the grid
    assert operating_point(priced, 25.0)["tokens_per_second_per_gpu"] == 90.0  # out of the table: the frontier's


def test_deployment_is_the_results_operating_point(result: Result) -> None:
    row = result.ranked_rows[0]
    deployment = deployment_of(result, row, rate=50.0, replicas=3)
    point = next(point for point in row["at_rates"] if point["rate"] == 50.0)
    (pool,) = deployment.pools
    assert pool.layout.gpus == point["gpus"] and pool.concurrency == point["concurrency"] and pool.replicas == 3
    assert deployment.max_tokens == 8192 + 1024 and deployment.gpus_per_node == 4  # GB300: 4 GPUs a tray
    assert deployment.formats.experts == "nvfp4" and "gb300" in deployment.note
    assert design_formats(result, row) == deployment.formats


def test_disaggregated_points_become_two_pools(result: Result) -> None:
    row = dict(result.ranked_rows[0])
    point = dict(row["frontier"][0])
    point |= {"prefill_layout": Layout(dpa=2, ep=2).to_dict(), "prefill_workers": 3.0, "decode_workers": 2.0}
    row |= {"frontier": [point], "at_rates": []}
    decode, prefill = (
        next(p for p in deployment_of(result, row, rate=20.0, replicas=2).pools if p.role == role)
        for role in ("decode", "prefill")
    )
    assert prefill.replicas == 3 and decode.replicas == 2 and prefill.layout.gpus == 2


@pytest.mark.parametrize("server", ["vllm", "sglang", "trtllm"])
def test_disaggregated_pools_stay_within_the_budget(result: Result, server: str, tmp_path: Path) -> None:
    row = result.ranked_rows[0]
    module = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}[server]
    deployment = disaggregated_deployment(result, row, module.refusals, rate=50.0, gpu_budget=48)
    prefill, decode = deployment.pools
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert 0 < prefill.gpus + decode.gpus <= 48
    assert module.refusals(deployment.architecture, decode, True) == module.refusals(deployment.architecture, prefill, True) == []
    done = export_result(result, server, tmp_path, ids=["a001"], rate=50.0, disaggregated=True, gpu_budget=48)
    names = {file.name for file in done.files}
    assert {f"{server}-prefill.sh", f"{server}-decode.sh"} <= names
    assert ("trtllm-disaggregated.yaml" in names) == (server == "trtllm")


def test_a_layout_the_server_cannot_run_is_replaced_and_said(result: Result, tmp_path: Path) -> None:
    row = dict(result.ranked_rows[0])
    row["at_rates"] = [{**point, "tpa": 2, "dpa": 4, "ep": 8, "tpf": 1, "gpus": 8} for point in row["at_rates"]]
    changed = Result({**result.data, "architectures": [row]})
    done = export_result(changed, "trtllm", tmp_path)  # TensorRT-LLM: attention is data parallel on all GPUs or on none
    assert done.files and "cannot run the layout tpa=2,dpa=4,ep=8" in done.notes[0] and "written for" in done.notes[0]
    assert "which this server cannot run" in (tmp_path / "rank-01" / "trtllm.yaml").read_text()


def test_refusals_name_the_way_out(result: Result, tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError, match=r"unknown export format 'csvs' \(did you mean 'csv'\?\)"):
        export_result(result, "csvs", tmp_path)
    with pytest.raises(UnknownKeyError, match="no architecture 'a999'"):
        export_result(result, "hf", tmp_path, ids=["a999"])
    with pytest.raises(InvalidValueError, match="needs a layout and a concurrency"):
        export_design(load_model("Qwen3-30B-A3B"), "vllm", tmp_path)
    with pytest.raises(InvalidValueError, match="is a table of a whole result"):
        export_design(load_model("Qwen3-30B-A3B"), "csv", tmp_path)
    with pytest.raises(InvalidValueError, match="llama cannot express this design"):
        export_design(load_model("Qwen3-30B-A3B"), "hf", tmp_path, family="llama")
    assert not list(tmp_path.iterdir())


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(["export", *arguments])
    code = done.value.code
    assert isinstance(code, int)
    return code


def test_the_command_on_a_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(folder), "--format", "sglang", "--rate", "50", "--id", "a001", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    (file,) = printed["files"]
    assert file.endswith("export/sglang/rank-01/sglang.sh") and Path(file).stat().st_mode & 0o100
    assert _run(str(folder), "--format", "xlsx") == 2
    assert "unknown export format 'xlsx'" in capsys.readouterr().err


def test_the_command_on_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "o")
    assert _run("DeepSeek-R1", "-f", "vllm", "--layout", "dpa=16,ep=16", "--concurrency", "2000", "--out", out) == 0
    assert "--data-parallel-size 16" in (tmp_path / "o" / "vllm.sh").read_text()
    assert _run("DeepSeek-R1", "-f", "hf", "--out", out) == 0
    assert same_design(read_config(str(tmp_path / "o" / "config.json")), load_model("DeepSeek-R1"))
    capsys.readouterr()
    assert _run("DeepSeek-R1", "-f", "csv") == 2
    assert "give a folder written by 'shapefront run'" in capsys.readouterr().err
    assert _run("DeepSeek-R1", "-f", "vllm", "--layout", "dpa=3,ep=4", "--concurrency", "1") == 2
    assert "tpa*kvp*dpa must equal tpf*ep" in capsys.readouterr().err
