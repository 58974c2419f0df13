"""GEMM: the ideal roofline as published, limits, vector equals scalar, laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapefront.costmodel.errors import InvalidValueError, ShapefrontError
from shapefront.costmodel.formats import get_format
from shapefront.costmodel.gemm import batched_format, bmm_seconds, gemm_cost, gemm_parameters, gemm_seconds
from shapefront.costmodel.gemm_tiles import kernel_switches
from shapefront.costmodel.profile import load_profile, parse_profile, profile_names

# NVIDIA co-design post, Table 2: FFN-2, N=8192, K=512, NVFP4 in, FP8 out, GB300; microseconds (math, read, write).
TABLE_2 = {256: (0.14, 0.30, 0.26), 2048: (1.15, 0.37, 2.10), 16384: (9.16, 0.89, 16.8)}
MEASURED = [name for name in profile_names() if name not in ("ideal", "gb300-blog")]


@pytest.mark.parametrize("m", TABLE_2)
def test_table_2_of_the_post(m: int) -> None:
    cost = gemm_cost(m, 8192, 512, format="nvfp4", output_format="fp8", profile="ideal")
    math, read, write = TABLE_2[m]
    assert float(cost.math_seconds) * 1e6 == pytest.approx(math, abs=0.006)
    assert float(cost.read_seconds) * 1e6 == pytest.approx(read, abs=0.006)
    assert float(cost.write_seconds) * 1e6 == pytest.approx(write, abs=0.05 if write > 10 else 0.006)
    assert str(cost.bound) == "memory"  # the post: at no M is it compute-bound


def test_ideal_is_the_maximum_of_math_and_memory_by_hand() -> None:
    # M=N=K=1024 BF16: 2*1024^3 = 2.147e9 FLOP / 2.5e15 = 0.859 us; bytes 3*2*1024^2 = 6.29e6 / 8e12 = 0.786 us.
    assert float(gemm_seconds(1024, 1024, 1024, format="bf16", profile="ideal")) == pytest.approx(2 * 1024**3 / 2.5e15)
    # M=1: weights rule: (1024 + 1024*1024 + 1024) * 2 B / 8e12.
    thin = float(gemm_seconds(1, 1024, 1024, format="bf16", profile="ideal"))
    assert thin == pytest.approx((2 * 1024 + 1024**2) * 2 / 8e12)


def test_square_gemm_moves_3_h_squared_for_2_h_cubed() -> None:
    h = np.array([1024, 2048, 4096])
    cost = gemm_cost(h, h, h, format="bf16", profile="ideal")
    np.testing.assert_allclose(cost.read_bytes + cost.write_bytes, 3 * h.astype(float) ** 2 * 2)
    np.testing.assert_allclose(cost.flop, 2 * h.astype(float) ** 3)
    intensity = cost.flop / (cost.read_bytes + cost.write_bytes)
    np.testing.assert_allclose(intensity, h / 3)  # grows with H


def test_output_format_changes_only_the_write() -> None:
    wide = gemm_cost(4096, 4096, 64, format="nvfp4", output_format="bf16", profile="ideal")
    narrow = gemm_cost(4096, 4096, 64, format="nvfp4", output_format="fp8", profile="ideal")
    assert float(wide.write_seconds) == pytest.approx(2 * float(narrow.write_seconds))
    assert float(wide.read_bytes) == float(narrow.read_bytes)


@pytest.mark.parametrize("profile", ["ideal", "gb300-blog", *MEASURED])
@pytest.mark.parametrize("format", ["nvfp4", "fp8", "fp8_block", "bf16"])
def test_vector_equals_scalar_and_parts(profile: str, format: str) -> None:
    rng = np.random.default_rng(1)
    m, n, k = rng.integers(1, 9000, (3, 5000))  # more than one chunk
    vector = gemm_seconds(m, n, k, format=format, profile=profile)
    some = range(0, 5000, 250)
    scalar = [float(gemm_seconds(int(m[i]), int(n[i]), int(k[i]), format=format, profile=profile)) for i in some]
    np.testing.assert_allclose(vector[list(some)], scalar, rtol=1e-12)
    cost = gemm_cost(m, n, k, format=format, profile=profile)
    np.testing.assert_allclose(cost.seconds, vector, rtol=1e-12)
    parts = cost.math_seconds + cost.memory_seconds + cost.epilogue_seconds + cost.quantise_seconds + cost.launch_seconds
    assert np.all(cost.seconds <= parts * (1 + 1e-12))


def test_broadcasts() -> None:
    out = gemm_seconds(np.arange(1, 4)[:, None], np.array([256, 512]), 128, format="bf16", profile="gb300-blog")
    assert out.shape == (3, 2)
    assert gemm_seconds(np.empty(0), 1, 1, format="bf16", profile="ideal").shape == (0,)
    assert float(out[1, 1]) == float(gemm_seconds(2, 512, 128, format="bf16", profile="gb300-blog"))


@pytest.mark.parametrize("profile", ["ideal", "gb300-blog"])
def test_batched_product(profile: str) -> None:
    one = gemm_seconds(128, 512, 128, format="bf16", profile=profile)
    np.testing.assert_allclose(bmm_seconds(1, 128, 512, 128, format="bf16", profile=profile), one)
    many = bmm_seconds([1, 16, 64, 128], 128, 512, 128, format="bf16", profile=profile)
    assert np.all(np.diff(many) >= 0)
    if profile == "ideal":
        np.testing.assert_allclose(many, float(one) * np.array([1, 16, 64, 128]))


def test_bad_sizes_are_refused() -> None:
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidValueError, match="finite and positive"):
            gemm_seconds([16, bad], 128, 128, format="bf16", profile="ideal")
    with pytest.raises(ShapefrontError, match="unknown number format"):
        gemm_seconds(1, 1, 1, format="nvfp5", profile="ideal")


@pytest.mark.parametrize("profile", ["gb300-blog", *MEASURED])
@pytest.mark.parametrize("format", ["nvfp4", "fp8", "fp8_block", "bf16"])
def test_laws_over_random_shapes(profile: str, format: str) -> None:
    """Serving laws, 1e5 shapes (GB300) over M 1..1e6 and N, K to 262144: finite, >= ideal, non-decreasing, continuous."""
    rng = np.random.default_rng(7)
    size = 100_000 if profile.startswith("gb300") else 30_000
    m = np.floor(np.exp(rng.uniform(0, np.log(1e6), size)))
    n, k = np.floor(np.exp(rng.uniform(0, np.log(262_144), (2, size))))
    hardware = load_profile(profile).hardware.name
    time = gemm_seconds(m, n, k, format=format, profile=profile)
    ideal = gemm_seconds(m, n, k, format=format, profile=load_profile("ideal", hardware=hardware))
    assert np.all(np.isfinite(time)) and np.all(time > 0)
    assert np.all(time >= ideal * (1 - 1e-9))
    for grown in (
        (m + rng.integers(1, 300, size), n, k),
        (m, n + rng.integers(1, 300, size), k),
        (m, n, k + rng.integers(1, 300, size)),
    ):
        assert np.all(gemm_seconds(*grown, format=format, profile=profile) >= time * (1 - 1e-9))
    # Continuous: one more K inside the same K tile, or one more row inside the same tile rows and away from the kernel
    # switches the profile names, moves the time by less than 5 % (from 64 up, where a step of one is under 2 % of the size).
    parameters = gemm_parameters(profile, format)
    big = (m >= 64) & (n >= 64) & (k >= 64)
    multiple = get_format(format).k_multiple  # K is padded to it
    deep = big & ((k % multiple != 0) | (multiple == 1)) & (k % parameters.k_tile != 0 if parameters.k_tile else True)
    inside = big & np.all([m % tile.rows != 0 for tile in parameters.tiles], axis=0)
    inside &= ~np.isin(m, kernel_switches(parameters))
    assert deep.sum() > size // 5 and inside.sum() > size // 5
    assert np.all(gemm_seconds(m[deep], n[deep], k[deep] + 1, format=format, profile=profile) <= 1.05 * time[deep])
    assert np.all(gemm_seconds(m[inside] + 1, n[inside], k[inside], format=format, profile=profile) <= 1.05 * time[inside])


@given(
    m=st.integers(1, 10**6),
    n=st.integers(1, 262_144),
    k=st.integers(1, 262_144),
    format=st.sampled_from(["nvfp4", "fp8", "bf16"]),
)
def test_utilisation_never_exceeds_one(m: int, n: int, k: int, format: str) -> None:
    cost = gemm_cost(m, n, k, format=format, profile="gb300-blog")
    ideal = gemm_cost(m, n, k, format=format, profile="ideal")
    assert float(ideal.math_seconds) <= float(cost.seconds)
    assert float(cost.math_seconds) >= float(ideal.math_seconds) * (1 - 1e-12)


def test_batched_product_falls_back_to_the_kernel_the_stack_has() -> None:
    entry = {"status": "inferred", "source": "test", "parameters": {"launch_seconds": 5e-6}}
    profile = parse_profile({"name": "b", "hardware": "gb300", "bmm": {"bf16": entry}}, "test")
    assert batched_format(profile, "fp8") == batched_format(profile, "nvfp4") == "bf16"
    assert batched_format(load_profile("ideal"), "fp8") == "fp8"
    fp8 = bmm_seconds(16, 64, 512, 128, format="fp8", profile=profile)
    assert float(fp8) == float(bmm_seconds(16, 64, 512, 128, format="bf16", profile=profile)) > 5e-6


def test_no_format_of_a_fitted_profile_falls_to_the_pure_roofline() -> None:
    for name in profile_names():
        if name == "ideal":
            continue
        for number_format in ("nvfp4", "mxfp4", "fp8", "fp8_block", "bf16", "int4_g128"):
            assert gemm_parameters(name, number_format).launch_seconds > 0, (name, number_format)
    # No FP4 tensor cores: weight-only, the BF16 kernel reading 4.5-bit weights and 16-bit activations at the BF16 rate.
    assert gemm_parameters("h200-trtllm", "nvfp4") == gemm_parameters("h200-trtllm", "bf16")
    cost = gemm_cost(64, 4096, 8192, format="nvfp4", profile=load_profile("ideal", hardware="h200"))
    assert float(cost.read_bytes) == 64 * 8192 * 2 + 4096 * 8192 * 4.5 / 8
    assert float(cost.math_seconds) == pytest.approx(2 * 64 * 4096 * 8192 / 0.989e15, rel=1e-3)


@pytest.mark.parametrize(("number_format", "multiple"), [("nvfp4", 32), ("mxfp4", 32), ("mxfp8", 32), ("fp8", 16), ("fp8_block", 128)])
@pytest.mark.parametrize("profile", ["ideal", "gb300-trtllm"])
def test_k_is_padded_to_what_the_kernels_of_the_format_accept(number_format: str, multiple: int, profile: str) -> None:
    """513 values are priced as the next multiple; the FLOP stay those of the product asked for, 2·256·8192·513."""
    full = (513 // multiple + 1) * multiple
    asked, padded = (gemm_cost(256, 8192, k, format=number_format, profile=profile) for k in (513, full))
    assert float(asked.padded_k) == float(padded.padded_k) == full
    assert float(asked.flop) == 2 * 256 * 8192 * 513
    for name in ("seconds", "math_seconds", "read_bytes", "quantise_seconds"):
        assert float(getattr(asked, name)) == float(getattr(padded, name)), name
    assert float(gemm_seconds(256, 8192, 513, format=number_format, profile=profile)) == float(asked.seconds)


def test_bf16_takes_any_k() -> None:
    assert float(gemm_cost(256, 8192, 513, format="bf16", profile="ideal").padded_k) == 513
    short, long = (float(gemm_seconds(1, 8192, k, format="bf16", profile="ideal")) for k in (513, 514))
    assert short < long
