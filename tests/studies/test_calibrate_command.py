"""``calibrate`` and ``validate`` from the command line: what is printed, what is written, what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from shapefront.costmodel import ShapefrontError
from shapefront.costmodel.profile import load_profile
from shapefront.studies.cli import app

RUN = CliRunner()
FIGURES = {
    "family",
    "format",
    "stack",
    "n",
    "median",
    "p90",
    "bias",
    "spearman",
    "roofline_median",
    "three_number_median",
    "excluded",
}
needs_tables = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the measured tables of aiconfigurator-core"
)


def write_table(path: Path, **changes: Any) -> Path:
    """GEMMs of a made-up machine: 3 us + max(math at 85 %, bytes at 90 %), BF16 on the GB300 datasheet; columns replaced."""
    m, n, k = (
        x.ravel().astype(float)
        for x in np.meshgrid(2 ** np.arange(0, 14, 2), 512 * np.arange(1, 13, 2), 512 * np.arange(1, 13, 2))
    )
    seconds = 3e-6 + np.maximum(2 * m * n * k / (0.85 * 2.5e15), 2 * (m * k + n * k + m * n) / (0.9 * 8e12))
    frame = pd.DataFrame({"m": m, "n": n, "k": k, "dtype": "bf16", "latency": seconds * 1e3})
    for name, value in changes.items():
        frame = frame.drop(columns=name) if value is None else frame.assign(**{name: value})
    frame.to_csv(path, index=False)
    return path


def invoke(*arguments: object) -> Any:
    """Run a command."""
    return RUN.invoke(app, [str(argument) for argument in arguments])


def test_calibrate_prints_confidence_errors_and_range_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    result = invoke(
        "calibrate", "--hardware", "gb300", "--stack", "mine", "--table", write_table(tmp_path / "t.csv"), "--out", out
    )
    assert result.exit_code == 0, result.output
    for words in (
        "launch_seconds",
        "± (95 %)",
        "not identified",
        "fitted over m 1 to 4,096",
        "extrapolates",
        "held-out rows",
        "sign right",
    ):
        assert words in result.output
    assert "1/1 fitting gemm" in result.stderr
    held = load_profile(out).family("gemm", "bf16").held_out
    assert held["median"] < 0.1


def test_calibrate_as_json_gives_intervals_around_the_values(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "t.csv"), tmp_path / "mine.toml"
    result = invoke("calibrate", "--hardware", "gb300", "--stack", "mine", "--table", table, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert found["profile"] == str(out) and row["family"] == "gemm" and row["format"] == "bf16"
    low, high = row["interval_95"]["launch_seconds"]
    assert 0 <= low <= row["parameters"]["launch_seconds"] <= high
    assert row["fit"]["rows"] + row["held_out"]["rows"] == 252  # 7 x 6 x 6 shapes
    assert result.stderr == ""  # progress is for people


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": None}, "columns k are missing"),
        ({"latency": 0.0}, "latency must be a positive number"),
        ({"latency": -1.0}, "latency must be a positive number"),
        ({"latency": 1e4}, "the unit looks like"),
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
    ],
)
def test_calibrate_refuses_a_bad_table_and_writes_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    out = tmp_path / "mine.toml"
    table = write_table(tmp_path / "t.csv", **changes)
    result = invoke("calibrate", "--hardware", "gb300", "--stack", "mine", "--table", table, "--out", out)
    assert isinstance(result.exception, ShapefrontError) and message in str(result.exception)
    assert list(tmp_path.iterdir()) == [table]


def test_calibrate_refuses_few_rows_and_empty_tables(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv")
    for rows, message in ((4, "needs at least as many rows"), (0, "the table has no rows")):
        pd.read_csv(table).head(rows).to_csv(table, index=False)
        result = invoke("calibrate", "--hardware", "gb300", "--stack", "mine", "--table", table, "--out", tmp_path / "mine.toml")
        assert isinstance(result.exception, ShapefrontError) and message in str(result.exception)
    assert list(tmp_path.iterdir()) == [table]


def test_the_target_is_checked_before_the_fit(tmp_path: Path) -> None:
    for out, message in ((tmp_path / "x.json", "must end in .toml"), (tmp_path / "no" / "x.toml", "no such folder")):
        result = invoke("calibrate", "--hardware", "gb300", "--stack", "trtllm", "--out", out)
        assert message in str(result.exception)
    result = invoke("calibrate", "--hardware", "gb300", "--stack", "trtllm", "--family", "gem", "--out", tmp_path / "x.toml")
    assert "unknown kernel family 'gem'" in str(result.exception)


def test_without_the_tables_both_commands_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def missing(name: str, package: str | None = None) -> Any:
        return None if name == "aiconfigurator_core" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    for command in (["calibrate", "--out", str(tmp_path / "x.toml")], ["validate"]):
        result = invoke(*command, "--hardware", "gb300", "--stack", "trtllm")
        assert isinstance(result.exception, ShapefrontError)
        assert "pip install 'shapefront[silicon]'" in str(result.exception)
    assert not list(tmp_path.iterdir())
    # A table of one's own needs none of it.
    out = tmp_path / "mine.toml"
    done = invoke("calibrate", "--hardware", "gb300", "--stack", "mine", "--table", write_table(tmp_path / "t.csv"), "--out", out)
    assert done.exit_code == 0 and out.is_file()


def test_without_a_parquet_reader_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    table = tmp_path / "t.parquet"
    table.write_bytes(b"PAR1")
    result = invoke("calibrate", "--hardware", "gb300", "--stack", "mine", "--table", table, "--out", tmp_path / "x.toml")
    assert "needs pyarrow" in str(result.exception) and "shapefront[silicon]" in str(result.exception)


@pytest.mark.silicon
@needs_tables
def test_validate_prints_every_figure_beside_the_two_bars() -> None:
    result = invoke(
        "validate", "--hardware", "gb300", "--stack", "trtllm", "--family", "bmm", "--family", "collectives", "--json"
    )
    rows = json.loads(result.stdout)["rows"]
    assert all(set(row) >= FIGURES for row in rows)
    by_name = {(row["family"], row["format"]): row for row in rows}
    # The FP8 products of this stack repeat the BF16 kernel: none is scored, all are counted.
    assert (
        by_name["bmm", "fp8"]["n"] == 0 and by_name["bmm", "fp8"]["excluded"] == 424 and by_name["bmm", "fp8"]["median"] is None
    )
    for row in rows:
        if row["n"] and row["family"] != "bmm":
            assert row["median"] < row["three_number_median"] < row["roofline_median"]
    table = invoke("validate", "--hardware", "gb300", "--stack", "trtllm", "--family", "bmm").output
    for words in ("roofline %", "three numbers %", "excluded", "dequantised to BF16"):
        assert words in table


@pytest.mark.silicon
@needs_tables
def test_calibrate_from_the_installed_tables_agrees_with_the_shipped_profile(tmp_path: Path) -> None:
    out = tmp_path / "p.toml"
    result = invoke("calibrate", "--hardware", "gb300", "--stack", "trtllm", "--family", "elementwise", "--out", out)
    assert result.exit_code == 0, result.output
    ours, shipped = (load_profile(name).family("elementwise").held_out["median"] for name in (out, "gb300-trtllm"))
    assert ours == pytest.approx(shipped, rel=1e-3)


@pytest.mark.silicon
@needs_tables
def test_validate_on_another_version_of_the_stack() -> None:
    arguments = ("validate", "--hardware", "gb300", "--stack", "trtllm", "--family", "collectives", "--json")
    newest, older = (json.loads(invoke(*arguments, *more).stdout)["rows"] for more in ((), ("--version", "1.3.0rc10")))
    rows = {row["format"]: row["n"] for row in older if row["family"] == "all_reduce"}
    # The older table stops at 4 GPUs: fewer held-out rows than the newest, and no NCCL table carries its version.
    assert 0 < rows["default"] < next(row["n"] for row in newest if row["family"] == "all_reduce")
    assert not [row for row in older if row["family"] == "collective"]
    assert "no measured table of version '9.9'" in str(invoke(*arguments, "--version", "9.9").exception)
