import copy
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel import (
    FORMATS,
    InvalidValueError,
    TensorFormats,
    UnknownKeyError,
    get_format,
    hardware_names,
    load_hardware,
)
from shapefront.costmodel.attention import attention_decode_seconds
from shapefront.costmodel.hardware import STATUSES, data_directory, parse_hardware, read_toml
from shapefront.costmodel.profile import parse_profile

# The table of dense peaks as published; PFLOP/s NVFP4, FP8, BF16, TB/s, SMs, domain.
PUBLISHED = {
    "gb300": (15, 5, 2.5, 8, 152, 72),
    "b300": (14, 4.5, 2.25, 7.7, 148, 8),
    "gb200": (10, 5, 2.5, 8, 152, 72),
    "b200": (9, 4.5, 2.25, 7.7, 148, 8),
    "h200": (0, 1.979, 0.989, 4.8, 132, 8),
    "h100": (0, 1.979, 0.989, 3.35, 132, 8),
}


def gb300() -> dict[str, Any]:
    return read_toml(data_directory("hardware") / "gb300.toml")


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_peaks_as_published(name: str) -> None:
    hw = load_hardware(name)
    got = (hw.nvfp4_flop_per_second / 1e15, hw.fp8_flop_per_second / 1e15, hw.bf16_flop_per_second / 1e15)
    assert got == pytest.approx(PUBLISHED[name][:3])
    assert (hw.memory_bytes_per_second / 1e12, hw.sm_count, hw.scale_up_gpus) == pytest.approx(PUBLISHED[name][3:])


def test_every_number_has_source_unit_and_status() -> None:
    for name in hardware_names():
        for key, quantity in load_hardware(name).quantities.items():
            assert quantity.source.strip() and quantity.unit and quantity.status in STATUSES, (name, key)


def test_a_user_file_works_and_hopper_runs_fp4_at_fp8_rate(tmp_path: Path) -> None:
    text = (data_directory("hardware") / "h100.toml").read_text().replace('name = "h100"', 'name = "mine"')
    path = tmp_path / "mine.toml"
    path.write_text(text)
    hw = load_hardware(path)
    assert hw.name == "mine"
    assert hw.peak_flop_per_second("nvfp4") == hw.fp8_flop_per_second


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("memory_bytes", {"value": float("nan"), "unit": "B", "source": "x", "status": "measured"}, "finite number"),
        ("memory_bytes", {"value": 0, "unit": "B", "source": "x", "status": "measured"}, "must be positive"),
        ("memory_bytes", {"value": 1.0, "unit": "GB", "source": "x", "status": "measured"}, "unit must be 'B'"),
        ("memory_bytes", {"value": 1.0, "unit": "B", "source": " ", "status": "measured"}, "source must name"),
        ("memory_bytes", {"value": 1.0, "unit": "B", "source": "x", "status": "guess"}, "status must be one of"),
        ("memory_bytes", 3.0, "must be a table"),
        ("sm_count", {"value": 1.5, "unit": "1", "source": "x", "status": "measured"}, "whole number"),
    ],
)
def test_bad_numbers_are_refused(key: str, value: object, message: str) -> None:
    table = copy.deepcopy(gb300())
    table[key] = value
    with pytest.raises(InvalidValueError, match=message):
        parse_hardware(table, "mine.toml")


def test_unknown_and_missing_keys_are_named() -> None:
    table = gb300()
    table["memory_byte"] = table.pop("memory_bytes")
    with pytest.raises(UnknownKeyError, match=r"unknown key .memory_byte. .did you mean 'memory_bytes'"):
        parse_hardware(table, "mine.toml")
    del table["memory_byte"]
    with pytest.raises(UnknownKeyError, match="'memory_bytes' is missing"):
        parse_hardware(table, "mine.toml")
    with pytest.raises(UnknownKeyError, match="did you mean 'gb300'"):
        load_hardware("gb30")


def test_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(InvalidValueError, match="more than"):
        load_hardware(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="UTF-8"):
        load_hardware(path)
    path.write_text("a = [" * 5000)
    with pytest.raises(InvalidValueError, match="not valid TOML"):
        load_hardware(path)
    with pytest.raises(InvalidValueError, match="no such file"):
        load_hardware(tmp_path / "none.toml")


def test_bits_with_scales() -> None:
    # NVFP4: 4 bits + one 8-bit scale per 16 values; MXFP4: + 8/32; INT4: + 16/128; FP8-block: + 32/128 and 32/128^2
    bits = {name: (f.activation_bits, f.weight_bits) for name, f in FORMATS.items()}
    assert bits["nvfp4"] == (4.5, 4.5)
    assert bits["mxfp4"] == (4.25, 4.25)
    assert bits["mxfp8"] == (8.25, 8.25)
    assert bits["int4_g128"] == (16, 4.125)
    assert bits["fp8_block"] == (8.25, 8 + 32 / 16384)
    with pytest.raises(UnknownKeyError, match="did you mean 'nvfp4'"):
        get_format("nvfp")
    with pytest.raises(UnknownKeyError):
        TensorFormats(kv="fp3")


@pytest.mark.parametrize("value", [1e-300, 1e300, 10**400, 0.5])
def test_a_quantity_beyond_anything_physical_is_refused(value: float) -> None:
    """1e-300 FLOP/s is finite and positive, and overflows in the first product."""
    table = gb300()
    table["bf16_flop_per_second"]["value"] = value
    with pytest.raises(InvalidValueError, match=r"bf16_flop_per_second\.value must be positive"):
        parse_hardware(table, "mine.toml")


PROFILE: dict[str, Any] = {"name": "mine", "hardware": "gb300"}
FIT: dict[str, Any] = {"status": "fitted", "source": "a test"}


@pytest.mark.parametrize(
    ("family", "fit", "message"),
    [
        ("gemm", {"parameters": {"launch_seconds": [1e-6]}}, "launch_seconds must be one number, got a list"),
        ("moe", {"parameters": {"launch_seconds": [1e-6]}}, "launch_seconds must be one number, got a list"),
        ("attention_decode", {"parameters": {"head_sizes": []}}, "got an empty list"),
        ("gemm", {"parameters": {"launch_seconds": 1e308}}, "finite number of at most 1e"),
        ("gemm", {"parameters": {"launch_seconds": 10**400}}, "finite number of at most 1e"),
        ("gemm", {"parameters": {}, "valid": {"k": 3}}, "valid.k must be .low, high."),
        ("gemm", {"parameters": {}, "valid": {"k": [2, 1]}}, "low must be at most high"),
        ("gemm", {"parameters": {}, "valid": {"k": ["x", 1]}}, "valid.k must be a finite number"),
    ],
)
def test_a_profile_names_what_it_cannot_hold(family: str, fit: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_profile({**PROFILE, family: {"bf16": FIT | fit}}, "mine.toml")


def test_head_sizes_start_at_one() -> None:
    """Parameters are interpolated over the logarithm of the head size."""
    sizes = {"parameters": {"head_sizes": [0.0, 128.0]}}
    profile = parse_profile({**PROFILE, "attention_decode": {"bf16": FIT | sizes}}, "mine.toml")
    with pytest.raises(InvalidValueError, match="rising list of sizes from 1"):
        attention_decode_seconds(1, 4096, heads=8, kv_heads=1, head_dim=128, kv_format="bf16", profile=profile)
