"""Shipped GEMM profiles against measured rows they never saw, and what a profile says about itself."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from shapefront.costmodel.calibration import validate
from shapefront.costmodel.calibration.tables import STACKS
from shapefront.costmodel.gemm import gemm_parameters, gemm_seconds
from shapefront.costmodel.profile import load_profile, profile_names

REFERENCE = Path(__file__).parents[1] / "reference" / "gemm_measured.csv"
# Goals on held-out rows, GB300, median and 90th percentile of the absolute relative error.
GOALS = {"nvfp4": (0.07, 0.18), "fp8_block": (0.07, 0.18), "fp8": (0.08, 0.25), "bf16": (0.08, 0.25)}
FITTED = [name for name in profile_names() if load_profile(name).stack in STACKS and load_profile(name).families["gemm"]]


def reference_rows() -> list[dict[str, str]]:
    lines = [line for line in REFERENCE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def test_reference_file_names_its_source_and_stays_small() -> None:
    text = REFERENCE.read_text()
    assert "aiconfigurator-core 0.12" in text and "Apache-2.0" in text
    assert 100 <= len(reference_rows()) <= 200


@pytest.mark.parametrize("stack", STACKS)
def test_shipped_profile_against_measured_sample(stack: str) -> None:
    rows = [row for row in reference_rows() if row["stack"] == stack]
    profile = load_profile(f"gb300-{stack}")
    wrong, bar = [], []
    for number_format in {row["format"] for row in rows}:
        part = [row for row in rows if row["format"] == number_format]
        m, n, k = (np.array([float(row[c]) for row in part]) for c in ("m", "n", "k"))
        measured = np.array([float(row["microseconds"]) for row in part]) * 1e-6
        wrong.append(np.abs(gemm_seconds(m, n, k, format=number_format, profile=profile) / measured - 1))
        bar.append(np.abs(gemm_seconds(m, n, k, format=number_format, profile="ideal") / measured - 1))
    # 54-72 rows: allow the sample two points above the goal of the pooled formats; the roofline is several times worse.
    assert np.median(np.concatenate(wrong)) < 0.09
    assert np.median(np.concatenate(bar)) > 5 * np.median(np.concatenate(wrong))


@pytest.mark.parametrize("name", FITTED)
def test_profile_carries_what_it_was_fitted_on(name: str) -> None:
    for number_format, fit in load_profile(name).families["gemm"].items():
        assert fit.status == "fitted" and "rows fitted" in fit.source
        assert fit.fit["rows"] > 1000 and fit.held_out["rows"] > 1000
        assert set(fit.valid) == {"m", "n", "k"}
        assert fit.pairs["rows"] > 1000 and 0 < fit.pairs["median"] < fit.pairs["p90"]
        parameters = gemm_parameters(name, number_format)
        assert all(0 < tile.utilisation <= 1 for tile in parameters.tiles)
        assert 0 < parameters.bandwidth_efficiency <= 1


@pytest.mark.parametrize("name", [n for n in FITTED if n.startswith("gb300-")])
def test_gb300_profiles_meet_the_goals_on_held_out_rows(name: str) -> None:
    for number_format, fit in load_profile(name).families["gemm"].items():
        median, p90 = GOALS[number_format]
        assert fit.held_out["median"] <= median, (name, number_format)
        assert fit.held_out["p90"] <= p90, (name, number_format)


@pytest.mark.silicon
@pytest.mark.slow
def test_validate_agrees_with_the_profile_and_beats_the_simple_models() -> None:
    pytest.importorskip("aiconfigurator_core")
    fits = load_profile("gb300-trtllm").families["gemm"]
    rows = validate("gb300", "trtllm", families=("gemm",))
    assert {row["format"] for row in rows} == set(fits)
    for row in rows:
        assert row["n"] == fits[row["format"]].held_out["rows"] and row["excluded"] == 0
        assert row["median"] == pytest.approx(fits[row["format"]].held_out["median"], abs=0.002)
        assert row["median"] < 0.7 * row["three_number_median"] < row["roofline_median"]


@pytest.mark.silicon
def test_excluded_rows_are_listed_not_dropped() -> None:
    pytest.importorskip("aiconfigurator_core")
    (row,) = [row for row in validate("gb300", "vllm", families=("gemm",)) if row["format"] == "fp8_block"]
    assert row["n"] == 0 and row["excluded"] > 30_000 and "pathological" in row["note"]
    assert row["median"] is None
