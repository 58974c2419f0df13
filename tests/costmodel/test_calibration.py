"""Calibration plumbing: the split, the robust fit, error figures, pairs, TOML, tables and their refusals."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shapefront.costmodel.calibration import calibrate, open_tables, validate, write_profile
from shapefront.costmodel.calibration.bmm import read_bmm_rows
from shapefront.costmodel.calibration.fit import FitParameter, fit_log_time
from shapefront.costmodel.calibration.gemm_rows import read_gemm_rows
from shapefront.costmodel.calibration.pairs import pair_errors
from shapefront.costmodel.calibration.report import errors, three_number_prediction
from shapefront.costmodel.calibration.split import gemm_held_out, held_out
from shapefront.costmodel.calibration.toml import profile_toml
from shapefront.costmodel.errors import InvalidValueError, ShapefrontError, UnknownKeyError
from shapefront.costmodel.gemm import gemm_seconds
from shapefront.costmodel.profile import load_profile, parse_profile


def write_table(path: Path, **changes: object) -> Path:
    """A user's table priced by the gb300-blog profile (so the truth is known), with columns replaced."""
    rng = np.random.default_rng(3)
    m = 2 ** rng.integers(0, 14, 600)
    n, k = 256 * rng.integers(1, 64, (2, 600))
    seconds = gemm_seconds(m, n, k, format="nvfp4", profile="gb300-blog")
    frame = pd.DataFrame({"m": m, "n": n, "k": k, "dtype": "nvfp4", "latency": seconds * 1e3})
    for name, value in changes.items():
        if value is None:
            frame = frame.drop(columns=name)
        else:
            frame[name] = value(frame[name]) if callable(value) else value
    frame.to_csv(path, index=False)
    return path


def test_held_out_is_fixed_whole_and_near_its_share() -> None:
    n, k = np.meshgrid(np.arange(128, 12800, 128), np.arange(128, 12800, 128))
    mask = held_out(n, k)
    assert 0.38 < mask.mean() < 0.42
    np.testing.assert_array_equal(mask, held_out(n, k))
    assert not np.array_equal(mask, held_out(k, n))  # (n, k) and (k, n) are different sites
    # The same shape always falls on the same side, whatever stands beside it.
    assert bool(held_out(512, 768)) == bool(held_out(np.array([1, 512]), np.array([1, 768]))[1])
    assert gemm_held_out([3072, 128, 128, 10240], [128, 5120, 3072, 10240]).all()
    assert held_out(n, k, share=0.0).sum() == 0


def test_fit_recovers_a_line_and_resists_outliers() -> None:
    # t = 2 + 3 x with 5 % of the points ten times too slow. Plain least squares in log time would be 0.05 ln(10) = 12 % off.
    x = np.linspace(1, 50, 200)
    t = 2.0 + 3.0 * x
    t[::20] *= 10
    found = fit_log_time(lambda p: p["a"] + p["b"] * x, [FitParameter("a", 1, 0.01, 100), FitParameter("b", 1, 0.01, 100)], t)
    assert found.values["a"] == pytest.approx(2, rel=0.08)
    assert found.values["b"] == pytest.approx(3, rel=0.02)
    assert 0 <= found.standard_errors["b"] < 0.1


def test_fit_refuses_fewer_rows_than_parameters() -> None:
    with pytest.raises(InvalidValueError, match="a fit of 2 parameters needs at least as many rows, got 1"):
        fit_log_time(lambda p: np.array([p["a"] + p["b"]]), [FitParameter(c, 1, 0.1, 10) for c in "ab"], np.array([1.0]))


def test_errors_by_hand() -> None:
    # Relative errors +10 %, -20 %, +30 %, 0 %: median of |.| = (10 + 20)/2 = 15 %, signed median = (0 + 10)/2 = 5 %.
    figures = errors(np.array([1.1, 1.6, 3.9, 4.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert figures["rows"] == 4
    assert figures["median"] == pytest.approx(0.15)
    assert figures["bias"] == pytest.approx(0.05)
    assert figures["spearman"] == pytest.approx(1.0)


def test_three_number_prediction_finds_its_own_numbers() -> None:
    rng = np.random.default_rng(0)
    math, memory = np.exp(rng.uniform(-14, -7, (2, 400)))
    truth = 5e-6 + np.maximum(math / 0.5, memory / 0.8)
    fit_rows = np.arange(400) < 300
    np.testing.assert_allclose(three_number_prediction(math, memory, truth, fit_rows), truth, rtol=0.01)


def test_pairs_by_hand() -> None:
    # m neighbours at (n, k) = (1, 1): measured 1 -> 2, predicted 1 -> 3: ratio error 3/2 - 1 = 0.5, right sign.
    # n neighbours at (m, k) = (1, 1): measured 1 -> 1.2, predicted 1 -> 0.9: |0.75 - 1| = 0.25, wrong sign.
    sizes = {"m": np.array([1.0, 2.0, 1.0]), "n": np.array([1.0, 1.0, 5.0]), "k": np.ones(3)}
    found = pair_errors(sizes, np.array([1.0, 3.0, 0.9]), np.array([1.0, 2.0, 1.2]))
    assert found["rows"] == 2 and found["sign_rows"] == 2
    assert found["sign"] == pytest.approx(0.5)
    assert found["median_m"] == pytest.approx(0.5)
    assert found["median_n"] == pytest.approx(0.25)
    assert "median_k" not in found
    assert pair_errors({"m": np.ones(1)}, np.ones(1), np.ones(1)) == {}


def test_toml_round_trip() -> None:
    table = {
        "name": 'x "y"',
        "hardware": "gb300",
        "provenance": {"date": "2026-01-01", "odd key": 3},
        "gemm": {
            "nvfp4": {"status": "fitted", "source": "s", "parameters": {"launch_seconds": 4.25e-6, "menu_tile_m": [128, 64]}}
        },
    }
    assert tomllib.loads(profile_toml(table)) == table


def test_user_table_calibrates_and_writes_a_profile(tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv")
    result = calibrate("gb300", "mine", table)
    (family,) = result.families
    assert family.family == "gemm" and family.format == "nvfp4"
    assert family.fit["rows"] + family.held_out["rows"] == len(pd.read_csv(table).drop_duplicates(["m", "n", "k"]))
    # The truth comes from another menu of the same model: the fit must come close on shapes it never saw.
    assert family.held_out["median"] < 0.05
    path = write_profile(result, tmp_path / "mine.toml")
    profile = load_profile(path)
    assert profile.stack == "mine" and profile.provenance["tables"] == "mine.csv"
    assert profile.family("gemm", "nvfp4").parameters["launch_seconds"] == pytest.approx(
        family.parameters["launch_seconds"], rel=1e-4
    )
    # Written numbers are rounded to five digits: prices agree to that.
    fresh = gemm_seconds([16, 4096], 4096, 4096, format="nvfp4", profile=result.profile())
    np.testing.assert_allclose(gemm_seconds([16, 4096], 4096, 4096, format="nvfp4", profile=profile), fresh, rtol=1e-3)
    assert list(tmp_path.glob("*.tmp")) == []


def test_write_profile_keeps_other_families(tmp_path: Path) -> None:
    result = calibrate("gb300", "mine", write_table(tmp_path / "mine.csv"))
    path = tmp_path / "p.toml"
    old = {"name": "old", "hardware": "gb300", "moe": {"fp8": {"status": "fitted", "source": "s", "parameters": {"a": 1.0}}}}
    path.write_text(profile_toml(old))
    write_profile(result, path, keep=True)
    kept = tomllib.loads(path.read_text())
    assert kept["moe"]["fp8"]["parameters"] == {"a": 1.0} and "nvfp4" in kept["gemm"]
    assert list(kept).index("gemm") < list(kept).index("moe")  # one order of families, whatever was fitted last
    once = path.read_text()
    write_profile(result, path, keep=True)
    assert path.read_text() == once
    with pytest.raises(InvalidValueError, match="cannot be written"):
        write_profile(result, tmp_path / "no" / "p.toml")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": None}, InvalidValueError, "columns k are missing"),
        ({"latency": None}, InvalidValueError, "columns latency are missing"),
        (
            {"latency": lambda c: c.where(c.index != 7, 0.0)},
            InvalidValueError,
            "latency must be a positive number, got .*0.0.* in row 8",
        ),
        ({"latency": lambda c: -c}, InvalidValueError, "latency must be a positive number"),
        ({"latency": lambda c: c.astype(object).where(c.index != 2, "fast")}, InvalidValueError, "got 'fast' in row 3"),
        ({"m": lambda c: c.where(c.index != 0, 0)}, InvalidValueError, "m must be a positive number"),
        ({"latency": lambda c: c * 1e3}, InvalidValueError, "the unit looks like us"),
        ({"latency": lambda c: c * 1e-3}, InvalidValueError, "the unit looks like s, not ms"),
        ({"latency": lambda c: c.where(c.index % 10 != 0, c * 1e3)}, InvalidValueError, "mixes units"),
        ({"dtype": "nvfp5"}, UnknownKeyError, "unknown dtype 'nvfp5'.*nvfp4"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, changes: dict[str, object], error: type[Exception], message: str) -> None:
    table = write_table(tmp_path / "bad.csv", **changes)
    with pytest.raises(error, match=message):
        calibrate("gb300", "mine", table)


def test_too_few_rows_and_missing_files_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "few.csv"
    pd.read_csv(write_table(table)).head(6).to_csv(table, index=False)
    with pytest.raises(InvalidValueError, match="needs at least as many rows"):
        calibrate("gb300", "mine", table)
    with pytest.raises(InvalidValueError, match="no such file"):
        calibrate("gb300", "mine", tmp_path / "none.csv")
    garbage = tmp_path / "x.parquet"
    garbage.write_bytes(b"not parquet")
    with pytest.raises(InvalidValueError, match="cannot be read as parquet"):
        calibrate("gb300", "mine", garbage)
    with pytest.raises(UnknownKeyError, match="unknown serving stack 'tensorrt'"):
        open_tables("gb300", "tensorrt")
    with pytest.raises(ShapefrontError, match="unknown hardware"):
        open_tables("gb301", "trtllm")
    with pytest.raises(InvalidValueError, match="no fitted profile"):
        validate("h100", "trtllm", families=("gemm",))


def test_half_of_a_result_is_never_written(tmp_path: Path) -> None:
    result = calibrate("gb300", "mine", write_table(tmp_path / "mine.csv"))
    broken = type(result)(
        result.hardware, result.stack, (type(result.families[0])("gemm", "nvfp4", {"a": float("nan")}, "s"),), {}
    )
    with pytest.raises(InvalidValueError, match="finite"):
        write_profile(broken, tmp_path / "broken.toml")
    assert not (tmp_path / "broken.toml").exists()


def test_importing_calibration_pulls_in_no_heavy_package() -> None:
    code = "import sys, shapefront.costmodel.calibration as c; print(sorted({'scipy', 'pandas', 'pyarrow'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_parse_profile_accepts_what_calibrate_makes(tmp_path: Path) -> None:
    result = calibrate("gb300", "mine", write_table(tmp_path / "mine.csv"))
    assert parse_profile(result.as_table(), "here").family("gemm", "nvfp4").status == "fitted"


@pytest.mark.silicon
@pytest.mark.parametrize("stack", ["trtllm", "sglang", "vllm"])
def test_measured_rows_are_read_with_their_exclusions(stack: str) -> None:
    pytest.importorskip("aiconfigurator_core")
    rows = {part.format: part for part in read_gemm_rows(open_tables("gb300", stack))}
    assert set(rows) == {"bf16", "fp8", "fp8_block", "nvfp4"}
    for part in rows.values():
        assert part.excluded == 0 or (stack, part.format) == ("vllm", "fp8_block")
        if len(part):
            sites = set(zip(part.n[part.held_out], part.k[part.held_out], strict=True))
            assert not sites & set(zip(part.n[~part.held_out], part.k[~part.held_out], strict=True))
            assert part.held_out.mean() > 0.4


@pytest.mark.silicon
def test_batched_rows_carry_the_absorbed_projections() -> None:
    pytest.importorskip("aiconfigurator_core")
    rows = {part.format: part for part in read_bmm_rows(open_tables("gb300", "trtllm"))}
    # 28 token counts x 8 head counts x 2 projections, less the rows that were not measured; FP8 repeats the BF16 kernel.
    assert len(rows["bf16"]) == 424 and rows["bf16"].excluded == 0
    assert len(rows["fp8"]) == 0 and rows["fp8"].excluded == 424 and "dequantised" in rows["fp8"].note
    assert set(zip(rows["bf16"].n, rows["bf16"].k, strict=True)) == {(512.0, 128.0), (128.0, 512.0)}
    assert 0.2 < rows["bf16"].held_out.mean() < 0.6


@pytest.mark.parametrize("stack", ["", "../x", 'a"\nb = 1', "a b", "x" * 65])
def test_a_stack_name_is_a_name(tmp_path: Path, stack: str) -> None:
    """It becomes the profile's name, and its file's where no other is given."""
    path = tmp_path / "table.csv"
    path.write_text("m,n,k,dtype,latency\n1,128,128,bf16,0.01\n")
    with pytest.raises(InvalidValueError, match="a stack's name has letters"):
        calibrate("gb300", stack, path)


def test_a_users_table_holds_gemms_alone_and_an_empty_dtype_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("m,n,k,dtype,latency\n1,128,128,bf16,0.01\n1,128,128,,0.01\n")
    with pytest.raises(InvalidValueError, match="a table of your own holds GEMMs, got families moe"):
        calibrate("gb300", "mine", path, ["moe"])
    with pytest.raises(UnknownKeyError, match="unknown dtype 'nan'"):
        calibrate("gb300", "mine", path)


def test_a_table_of_ten_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "sparse.csv", "wb") as file:
        file.truncate(10**10)
    with pytest.raises(InvalidValueError, match="10000000000 bytes is more than"):
        calibrate("gb300", "mine", tmp_path / "sparse.csv")
