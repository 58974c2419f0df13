"""Prefill and decode attention: hand-computed rooflines, limiting cases, the fitted forms' arithmetic, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.attention import (
    BOUNDS,
    attention_decode_cost,
    attention_decode_seconds,
    attention_prefill_cost,
    attention_prefill_seconds,
    causal_scores,
    kv_bytes_per_token,
)
from shapefront.costmodel.attention_prefill import tile_scores
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.profile import KernelProfile, load_profile, parse_profile

LLAMA_8B: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def fitted(family: str, number_format: str, **parameters: Any) -> KernelProfile:
    """A GB300 profile with one family's numbers."""
    entry = {"status": "fitted", "source": "made up for a test", "parameters": parameters}
    return parse_profile({"name": "test", "hardware": "gb300", family: {number_format: entry}}, "test")


def test_decode_roofline_reads_the_cache_once() -> None:
    # 64 sequences x 8192 keys x 2 (K and V) x 8 KV heads x 128 values x 1 B = 1.0737 GB; / 8 TB/s = 134.2 us
    cost = attention_decode_cost(64, 8192, **LLAMA_8B, profile="ideal")
    assert cost.kv_bytes == 1_073_741_824
    assert cost.seconds == pytest.approx(134.217728e-6, rel=1e-12)
    assert BOUNDS[int(cost.bound)] == "memory"


def test_decode_of_many_heads_on_one_kv_head_is_bound_by_math() -> None:
    # MQA, 640 heads: math 4*640*128/5e15 = 65.5 ps a key; memory 2*128/8e12 = 32 ps; exp 640/1.07e13 = 59.8 ps
    cost = attention_decode_cost(16, 4096, heads=640, kv_heads=1, head_dim=128, profile="ideal")
    assert cost.seconds == pytest.approx(16 * 4096 * 4 * 640 * 128 / 5e15, rel=1e-12)
    assert BOUNDS[int(cost.bound)] == "math"


def test_prefill_roofline_is_math_bound_on_gb300() -> None:
    # 4 * 128 FLOP a score, 32 heads x 8192^2/2 scores, 2.5 PFLOP/s: 5.498e11 / 2.5e15 = 219.9 us
    cost = attention_prefill_cost(1, 8192, **LLAMA_8B, profile="ideal")
    assert cost.flop == pytest.approx(2 * 8192**2 * 32 * 128, rel=1e-12)  # 2*B*S^2*n_h*d
    assert cost.seconds == pytest.approx(219.9023e-6, rel=1e-6)


def test_exponentials_rule_small_heads_on_gb200() -> None:
    # d = 64 at 2.5 PFLOP/s: 0.10 ps of math a score against 1/5e12 = 0.20 ps of exp2
    gb200 = load_profile("ideal", hardware="gb200")
    cost = attention_prefill_cost(4, 16384, heads=64, kv_heads=8, head_dim=64, profile=gb200)
    assert cost.seconds == pytest.approx(4 * 64 * 16384**2 / 2 / gb200.hardware.exp2_per_second, rel=1e-12)
    assert BOUNDS[int(cost.bound)] == "exp"


@pytest.mark.parametrize("window", [0, 1, 100, 128, 5000])
@pytest.mark.parametrize(("new", "past"), [(1, 0), (300, 0), (300, 77), (64, 1000)])
def test_scores_count_every_visible_key(new: int, past: int, window: int) -> None:
    # query i sees past + i + 1/2 keys (the diagonal counts half), at most the window
    loop = sum(min(past + i + 0.5, window) if window else past + i + 0.5 for i in range(new))
    assert causal_scores(np.array(float(new)), np.array(float(past)), np.array(float(window))) == pytest.approx(loop)
    rows = 128
    tiles = [min(past + (j + 1) * rows, window + rows) if window else past + (j + 1) * rows for j in range(-(-new // rows))]
    scores, largest, count = tile_scores(np.array(float(new)), np.array(float(past)), np.array(float(window)), rows)
    assert scores == pytest.approx(rows * sum(tiles)) and largest == rows * max(tiles) and count == len(tiles)
    assert scores >= loop


def test_a_window_longer_than_the_context_changes_nothing() -> None:
    for profile in ("ideal", "gb300-trtllm"):
        full = attention_prefill_seconds(2, 2048, **LLAMA_8B, profile=profile)
        # a tile of 128 queries sees at most window + 128 keys
        assert attention_prefill_seconds(2, 2048, **LLAMA_8B, window=4096, profile=profile) == pytest.approx(full, rel=1e-12)
        full = attention_decode_seconds(2, 2048, **LLAMA_8B, profile=profile)
        assert attention_decode_seconds(2, 2048, **LLAMA_8B, window=2048, profile=profile) == full
        assert attention_decode_seconds(2, 9999, **LLAMA_8B, window=2048, profile=profile) == full


def test_chunks_add_up_to_the_whole_prompt_in_scores() -> None:
    whole = attention_prefill_cost(3, 4096, **LLAMA_8B, profile="ideal").flop
    chunks = attention_prefill_cost(3, 1024, np.arange(4) * 1024, **LLAMA_8B, profile="ideal").flop
    assert chunks.sum() == pytest.approx(float(whole), rel=1e-12)


def test_decode_form_by_hand() -> None:
    profile = fitted(
        "attention_decode", "fp8", launch_seconds=10e-6, memory_efficiency=0.8, block_seconds=2e-6, free_keys=200.0,
        key_seconds=1e-9, activation_factor=2.0,
    )  # fmt: skip
    # 304 sequences x 1 KV head = 2 blocks an SM; M = 304*1200*2*64/(8e12*0.8) = 7.296 us
    # pace = 2*2 us + 2*(1200-200)*1 ns = 6 us; cbrt(7.296^3 + 6^3) = 8.4566 us; q and o: 304*4*64*2/8e12 = 0.019456 us
    seconds = attention_decode_seconds(304, 1200, heads=1, kv_heads=1, head_dim=64, profile=profile)
    assert seconds == pytest.approx((10 + (7.296**3 + 6.0**3) ** (1 / 3) + 0.019456) * 1e-6, rel=1e-9)


def test_an_idle_gpu_takes_the_best_split() -> None:
    profile = fitted("attention_decode", "fp8", key_seconds=1e-9, split_seconds=1e-7, partial_seconds=2e-7)
    # one block: w = 65536 ns; r = 0.1 us + 0.2 us/152; the best of all splits that fit 152 SMs, by trying them
    splits = np.linspace(1, 152, 200_000)
    each = 1e-7 + 2e-7 / 152
    best = (65.536e-6 / splits + each * (splits - 1)).min()
    memory = 65536 * 2 * 64 / 8e12
    expected = np.cbrt(memory**3 + best**3)
    assert attention_decode_seconds(1, 65536, heads=1, kv_heads=1, head_dim=64, profile=profile) == pytest.approx(
        expected, rel=1e-6
    )


def test_a_wide_group_runs_the_slower_block() -> None:
    profile = fitted("attention_decode", "fp8", block_seconds=1e-6, wide_group=16.0, wide_block_factor=1.7)
    seconds = attention_decode_seconds(1520, 1, heads=np.array([16, 17]), kv_heads=1, head_dim=1, profile=profile)
    assert seconds[1] / seconds[0] == pytest.approx(1.7, rel=1e-3)  # 10 us against 17 us; memory is negligible


def test_prefill_form_by_hand() -> None:
    profile = fitted(
        "attention_prefill", "fp8_kv_fp8", launch_seconds=5e-6, math_efficiency=0.5, overlap=0.0, tile_rows=128.0, tile_seconds=1e-6,
        tail=0.5, wave=0.0, query_factor=2.0, kv_factor=3.0, token_seconds=1e-9, token_exponent=0.5,
    )  # fmt: skip
    # 152 tiles of 128 rows (152 sequences x 1 head, S = 100): scores = 152*128*128
    a = 4 * 64 / (5e15 * 0.5) + 1 / 1.07e13
    scores = 152 * 128 * 128
    tile = 128 * 128 * a * 152 + 1e-6  # one tile on one SM
    memory = (2.0 * 152 * 100 * 64 * 3 + 3.0 * 2 * 152 * 100 * 4 * 64) / 8e12
    append = 152 * 100 * 1e-9 * 4**0.5
    expected = 5e-6 + scores * a + 1e-6 + 0.5 * tile + memory + append
    seconds = attention_prefill_seconds(152, 100, heads=1, kv_heads=4, head_dim=64, format="fp8", profile=profile)
    assert seconds == pytest.approx(expected, rel=1e-9)


def test_numbers_follow_the_head_size() -> None:
    profile = fitted("attention_decode", "fp8", head_sizes=[64.0, 256.0], launch_seconds=[1e-3, 3e-3])
    seconds = attention_decode_seconds(1, 1, heads=1, kv_heads=1, head_dim=np.array([32, 64, 128, 256, 512]), profile=profile)
    np.testing.assert_allclose(seconds, [1e-3, 1e-3, 2e-3, 3e-3, 3e-3], rtol=1e-6)  # linear in log2, flat outside


@pytest.mark.parametrize("profile", ["ideal", "gb300-trtllm", "gb300-sglang", "gb300-vllm"])
def test_vector_equals_scalar(profile: str) -> None:
    rng = np.random.default_rng(5)
    kv = 2 ** rng.integers(0, 4, 40)
    sizes: dict[str, Any] = {
        "kv_heads": kv,
        "heads": kv * rng.integers(1, 33, 40),
        "head_dim": rng.choice([64, 96, 128, 256], 40),
    }
    sizes["window"] = rng.choice([0, 128, 1024], 40)
    batch, tokens = rng.integers(1, 600, 40), rng.integers(1, 20_000, 40)
    for function in (attention_prefill_seconds, attention_decode_seconds):
        together = function(batch, tokens, **sizes, profile=profile)
        alone = [float(function(batch[i], tokens[i], **{k: v[i] for k, v in sizes.items()}, profile=profile)) for i in range(40)]
        np.testing.assert_allclose(together, alone, rtol=1e-12)
    wide = attention_decode_seconds(
        batch[:, None, None], tokens[:5], **{k: v[:7, None] for k, v in sizes.items()}, profile=profile
    )
    assert wide.shape == (40, 7, 5)
    assert wide[3, 2, 1] == pytest.approx(
        float(attention_decode_seconds(batch[3], tokens[1], **{k: v[2] for k, v in sizes.items()}, profile=profile)), rel=1e-12
    )


def test_cache_bytes_of_a_token() -> None:
    assert kv_bytes_per_token(kv_heads=8, head_dim=128, kv_format="bf16") == 4096  # 2*8*128*2 B
    assert kv_bytes_per_token(kv_lora_rank=512, qk_rope_head_dim=64) * 61 == 35_136  # DeepSeek-V3, FP8, 61 layers


def test_warm_cache_is_faster_and_only_on_request() -> None:
    call: dict[str, Any] = {**LLAMA_8B, "kv_format": "bf16", "profile": "gb300-trtllm"}
    cold, warm = attention_decode_seconds(8, 2048, **call), attention_decode_seconds(8, 2048, **call, warm_l2=True)
    assert warm < cold  # 8*2048*4096 B = 67 MB fit L2
    big = attention_decode_seconds(1024, 8192, **call)
    assert attention_decode_seconds(1024, 8192, **call, warm_l2=True) == pytest.approx(big, rel=1e-6)  # 34 GB do not


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch must be finite and >= 1, got 0"),
        ({"heads": [32, -1]}, "heads must be finite and >= 1, got -1"),
        ({"head_dim": np.nan}, "head_dim must be finite"),
        ({"window": -1}, "window must be finite and >= 0"),
        ({"context": np.inf}, "context must be finite"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], words: str) -> None:
    call: dict[str, Any] = {"batch": 1, "context": 10, **LLAMA_8B, "profile": "ideal"} | change
    with pytest.raises(InvalidValueError, match=words):
        attention_decode_seconds(call.pop("batch"), call.pop("context"), **call)


def test_bad_numbers_in_a_profile_are_refused() -> None:
    with pytest.raises(UnknownKeyError, match=r"unknown key 'lauch_seconds' \(did you mean 'launch_seconds'"):
        attention_decode_seconds(1, 1, **LLAMA_8B, profile=fitted("attention_decode", "fp8", lauch_seconds=1e-6))
    with pytest.raises(InvalidValueError, match="launch_seconds must be one number or one per head size"):
        wrong = fitted("attention_decode", "fp8", head_sizes=[64.0, 128.0], launch_seconds=[1e-6])
        attention_decode_seconds(1, 1, **LLAMA_8B, profile=wrong)
    with pytest.raises(InvalidValueError, match="head_sizes must be a rising list"):
        attention_decode_seconds(1, 1, **LLAMA_8B, profile=fitted("attention_decode", "fp8", head_sizes=[128.0, 64.0]))
    with pytest.raises(UnknownKeyError, match="unknown number format 'fp9'"):
        attention_decode_seconds(1, 1, **LLAMA_8B, kv_format="fp9", profile="ideal")
