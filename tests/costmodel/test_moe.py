"""Routed experts: hand-computed roofline, limiting cases, vector equals scalar, parameters and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.moe import MoeParameters, default_kernel, moe_cost, moe_seconds
from shapefront.costmodel.moe_parameters import moe_parameters
from shapefront.costmodel.profile import KernelProfile, parse_profile

R1: dict[str, Any] = {"hidden_size": 7168, "moe_intermediate_size": 2048, "num_experts": 256, "top_k": 8}


def profile_with(stack: str = "trtllm", **entries: dict[str, float]) -> KernelProfile:
    """A profile on GB300 with given MoE numbers; ``nvfp4__cutlass`` stands for ``nvfp4:cutlass``."""
    moe = {
        name.replace("__", ":"): {"status": "fitted", "source": "test", "parameters": parameters}
        for name, parameters in entries.items()
    }
    return parse_profile({"name": "test", "hardware": "gb300", "stack": stack, "moe": moe}, "test")


def test_memory_bound_by_hand() -> None:
    # DeepSeek-R1, NVFP4 (4.5 bits), EP 8, one token: 8 choices over 8 ranks = 1 row, 1 expert on the slowest rank.
    # weights 3 * 7168 * 2048 * 0.5625 B = 24,772,608 B; activations in 0.5625 * (7168 + 2048) = 5,184 B,
    # out 0.5625 * 2048 + 2 * 7168 = 15,488 B; sum 24,793,280 B / 8e12 B/s = 3.09916 us.
    cost = moe_cost(1, **R1, ep=8, format="nvfp4", profile="ideal")
    assert cost.read_bytes == pytest.approx(24_772_608 + 5_184)
    assert cost.write_bytes == pytest.approx(15_488)
    assert cost.seconds == pytest.approx(3.09916e-6)
    assert cost.bound == "memory"


def test_math_bound_by_hand() -> None:
    # 1,048,576 tokens, EP 1: R = 8,388,608 rows; FLOP = 6 * R * 7168 * 2048 = 7.3887e17; / 15e15 = 49.258 ms.
    cost = moe_cost(2**20, **R1, format="nvfp4", profile="ideal")
    assert cost.flop == pytest.approx(6 * 2**23 * 7168 * 2048)
    assert cost.seconds == pytest.approx(0.0492581, rel=1e-5)
    assert cost.bound == "math"
    assert cost.experts == pytest.approx(256)


def test_top_k_of_all_experts_is_a_dense_ffn() -> None:
    # k = E = 1: every token goes to the one expert; FLOP and bytes are those of a dense gated FFN.
    cost = moe_cost(512, hidden_size=4096, moe_intermediate_size=8192, num_experts=1, top_k=1, format="bf16", profile="ideal")
    assert cost.flop == pytest.approx(6 * 512 * 4096 * 8192)
    assert cost.read_bytes == pytest.approx(3 * 4096 * 8192 * 2 + 512 * 2 * (4096 + 8192))


def test_ungated_experts_have_two_of_three_matrices() -> None:
    gated, plain = (moe_cost(2**18, **R1, format="fp8", gated=g, profile="ideal") for g in (True, False))
    assert plain.flop == pytest.approx(gated.flop * 2 / 3)
    assert plain.seconds == pytest.approx(gated.seconds * 2 / 3)


def test_tensor_parallel_divides_the_width() -> None:
    whole = moe_seconds(64, **{**R1, "moe_intermediate_size": 512}, format="nvfp4", profile="ideal")
    shard = moe_seconds(64, **R1, tp=4, format="nvfp4", profile="ideal")
    assert shard == pytest.approx(float(whole))


def test_more_ranks_never_cost_more_and_imbalance_never_less() -> None:
    ranks = np.array([1, 2, 4, 8, 16, 32, 64])
    seconds = moe_seconds(4096, **R1, ep=ranks, format="nvfp4", profile="ideal")
    assert (np.diff(seconds) < 0).all()
    for load in (1.5, "power_law_1.01", "power_law_1.2"):
        uneven = moe_seconds(4096, **R1, ep=ranks[3:], format="nvfp4", load=load, profile="ideal")
        assert (uneven > seconds[3:]).all()  # below EP 8 a power law's idle experts save more weights than its peak costs
    # A factor of 2 on compute-bound rows doubles the time: T = R * const.
    one, two = (moe_seconds(2**20, **R1, ep=8, format="nvfp4", load=f, profile="ideal") for f in (1.0, 2.0))
    assert two == pytest.approx(2 * float(one))


def test_vector_equals_scalar() -> None:
    rng = np.random.default_rng(7)
    tokens, h = rng.integers(1, 9000, 40), 128 * rng.integers(4, 64, 40)
    profile = profile_with(
        nvfp4={"launch_seconds": 1e-5, "math_efficiency": 0.5, "unhidden": 0.7, "tile_rows_min": 8, "tile_rows_max": 128}
    )
    for load in ("balanced", "even", "power_law_1.01", 1.7):
        fixed: dict[str, Any] = {
            "moe_intermediate_size": 1536, "num_experts": 128, "top_k": 8, "ep": 4, "format": "nvfp4", "load": load,
        }  # fmt: skip
        many = moe_seconds(tokens, hidden_size=h, **fixed, profile=profile)
        one = [float(moe_seconds(int(t), hidden_size=int(x), **fixed, profile=profile)) for t, x in zip(tokens, h, strict=True)]
        np.testing.assert_allclose(many, one, rtol=1e-14)


def test_parameters_enter_as_documented() -> None:
    # Even load, EP 1, 256 tokens over 8 experts, k = 1: 32 rows an expert, tile 32 -> one tile each, no padding.
    shape: dict[str, Any] = {"hidden_size": 1024, "moe_intermediate_size": 1024, "num_experts": 8, "top_k": 1, "load": "even"}
    tiles = {"tile_rows_min": 8.0, "tile_rows_max": 128.0, "tile_seconds": 1e-6}
    cost = moe_cost(256, **shape, format="bf16", profile=profile_with(bf16=tiles))
    # math 6 * 256 * 1024^2 / 2.5e15 = 0.6442 us; tiles 8 * (2*8 + 8 columns of 128) * 1 us / 152 SMs = 1.2632 us
    assert cost.math_seconds == pytest.approx(0.644245e-6 + 8 * 24e-6 / 152, rel=1e-5)
    # 33 rows an expert (264 tokens) need the 64-row tile: still one tile, 64 rows of math.
    padded = moe_cost(264, **shape, format="bf16", profile=profile_with(bf16=tiles))
    assert padded.math_seconds == pytest.approx(2 * 0.644245e-6 + 8 * 24e-6 / 152, rel=1e-5)
    # unhidden = 3 makes equal math and memory add up: sqrt(1 + 3) = 2; in general long <= T <= long + short.
    for share in (0.0, 1.0, 3.0):
        c = moe_cost(256, **shape, format="bf16", profile=profile_with(bf16={"unhidden": share}))
        long, short = max(c.math_seconds, c.memory_seconds), min(c.math_seconds, c.memory_seconds)
        assert c.seconds == pytest.approx(float(np.sqrt(long**2 + share * short**2)))
        assert long <= c.seconds <= long + short
    fixed = profile_with(bf16={"launch_seconds": 5e-6, "expert_seconds": 1e-7, "step_seconds": 3e-6, "step_tokens": 255.0})
    ideal = moe_seconds(256, **shape, format="bf16", profile="ideal")
    assert moe_seconds(256, **shape, format="bf16", profile=fixed) == pytest.approx(float(ideal) + 5e-6 + 8e-7 + 3e-6)


def test_kernels_of_a_profile() -> None:
    profile = profile_with("sglang", nvfp4={"launch_seconds": 1e-5}, nvfp4__cutlass={"launch_seconds": 4e-5})
    assert moe_parameters(profile, "nvfp4", "cutlass").launch_seconds == 4e-5
    assert moe_parameters(profile, "nvfp4", "absent").launch_seconds == 1e-5
    assert default_kernel(profile, "nvfp4", attention_data_parallel=True) == "cutlass"
    assert default_kernel(profile, "nvfp4", attention_data_parallel=False) is None
    assert default_kernel(profile, "fp8_block", attention_data_parallel=True) is None  # the profile has no deepgemm
    assert default_kernel(profile_with(nvfp4={}), "nvfp4", attention_data_parallel=True) is None
    one_shape = profile_with("sglang", fp8_block={}, fp8_block__deepgemm={})
    assert default_kernel(one_shape, "fp8_block", attention_data_parallel=True) == "deepgemm"  # stands in
    both = profile_with("sglang", fp8_block={}, fp8_block__deepgemm={}, fp8_block__grouped={})
    assert default_kernel(both, "fp8_block", attention_data_parallel=True) == "grouped"
    assert default_kernel(both, "fp8_block", attention_data_parallel=False) is None
    fused = profile_with("trtllm", nvfp4={}, nvfp4__fused={})
    assert default_kernel(fused, "nvfp4", attention_data_parallel=False) == "fused"
    assert default_kernel(profile_with("vllm", nvfp4={}, nvfp4__fused={}), "nvfp4", attention_data_parallel=False) is None


def test_refusals() -> None:
    with pytest.raises(InvalidValueError, match="tokens must be positive and finite"):
        moe_seconds(0, **R1, format="nvfp4", profile="ideal")
    with pytest.raises(InvalidValueError, match="max over mean"):
        moe_seconds(8, **R1, ep=8, format="nvfp4", load=0.5, profile="ideal")
    with pytest.raises(UnknownKeyError, match=r"did you mean 'power_law_1\.2'"):
        moe_seconds(8, **R1, ep=8, format="nvfp4", load="power_law_1.3", profile="ideal")
    with pytest.raises(UnknownKeyError, match="launch_second"):
        moe_seconds(8, **R1, format="nvfp4", profile=profile_with(nvfp4={"launch_second": 1.0}))
    with pytest.raises(InvalidValueError, match="memory_efficiency"):
        MoeParameters(memory_efficiency=1.08)
    with pytest.raises(InvalidValueError, match="unhidden"):
        MoeParameters(unhidden=3.5)
    with pytest.raises(InvalidValueError, match="tile_seconds must be >= 0"):
        MoeParameters(tile_seconds=-1e-9)
