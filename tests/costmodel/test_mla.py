"""MLA prefill and decode: hand-computed rooflines, what tensor parallelism cannot save, the kernel switch, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.attention import BOUNDS
from shapefront.costmodel.errors import InvalidValueError
from shapefront.costmodel.mla import mla_decode_cost, mla_decode_seconds, mla_prefill_cost, mla_prefill_seconds

LATENT: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
DEEPSEEK: dict[str, Any] = LATENT | {"qk_nope_head_dim": 128, "v_head_dim": 128}


def test_decode_reads_the_latent_once_for_all_heads() -> None:
    # 64 x 8192 keys x 576 B (FP8) = 302 MB; / 8 TB/s = 37.75 us, with 1 head or 64 on the GPU
    cost = mla_decode_cost(64, 8192, heads=np.array([1, 64]), **LATENT, profile="ideal")
    np.testing.assert_allclose(cost.seconds, 64 * 8192 * 576 / 8e12, rtol=1e-12)
    assert [BOUNDS[i] for i in cost.bound] == ["memory", "memory"]


def test_decode_of_all_heads_nears_the_tensor_peak() -> None:
    # 128 heads: 2*128*1088 FLOP a key = 278,528; / 5 PFLOP/s = 55.7 ps against 72 ps of memory; 256 heads: 111 ps rule
    cost = mla_decode_cost(8, 4096, heads=256, **LATENT, profile="ideal")
    assert cost.seconds == pytest.approx(8 * 4096 * 2 * 256 * 1088 / 5e15, rel=1e-12)
    assert BOUNDS[int(cost.bound)] == "math"


def test_prefill_counts_both_widths() -> None:
    # 2*(192 + 128) = 640 FLOP a score; 128 heads x 8192^2/2 scores / 2.5 PFLOP/s = 1.0995 ms
    cost = mla_prefill_cost(1, 8192, heads=128, **DEEPSEEK, profile="ideal")
    assert cost.seconds == pytest.approx(640 * 128 * 8192**2 / 2 / 2.5e15, rel=1e-12)


def test_short_prefill_is_bound_by_its_bytes() -> None:
    # S = 1: q 192*2 + o 128*2 + k, v 320*2 = 1280 B a head in BF16; 128 heads x 1000 sequences / 8 TB/s = 20.48 us
    cost = mla_prefill_cost(1000, 1, heads=128, **DEEPSEEK, profile="ideal")
    assert cost.seconds == pytest.approx(20.48e-6, rel=1e-12)


def test_more_past_costs_more_and_an_empty_past_changes_nothing() -> None:
    past = np.array([0, 1, 4096, 65_536])
    for profile in ("ideal", "gb300-trtllm"):
        seconds = mla_prefill_seconds(2, 512, past, heads=16, **DEEPSEEK, profile=profile)
        assert (np.diff(seconds) > 0).all()
        assert seconds[0] == mla_prefill_seconds(2, 512, heads=16, **DEEPSEEK, profile=profile)


def test_two_narrow_blocks_take_longer_than_one_wide_one() -> None:
    # Measured on GB300: 32 heads (the latent walked twice, 16 heads at a time) are slower than 64 in one block.
    narrow, wide = mla_decode_seconds(1024, 16_384, heads=np.array([32, 64]), **LATENT, profile="gb300-trtllm")
    assert 1.02 * wide < narrow < 2 * wide


@pytest.mark.parametrize("profile", ["ideal", "gb300-trtllm", "gb300-sglang", "gb300-vllm"])
def test_vector_equals_scalar(profile: str) -> None:
    rng = np.random.default_rng(6)
    batch, tokens, heads = rng.integers(1, 600, 30), rng.integers(1, 20_000, 30), rng.integers(1, 129, 30)
    for function, sizes in ((mla_prefill_seconds, DEEPSEEK), (mla_decode_seconds, LATENT)):
        together = function(batch, tokens, heads=heads, **sizes, profile=profile)
        alone = [float(function(batch[i], tokens[i], heads=heads[i], **sizes, profile=profile)) for i in range(30)]
        np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_fitted_kernels_are_slower_than_the_roofline_but_not_by_much_when_large() -> None:
    # physics of GB300: 6.1 TB/s measured for MLA decode, 2.6 PFLOP/s for prefill with an FP8 cache at 32K
    decode = mla_decode_cost(1024, 16_384, heads=16, **LATENT, profile="gb300-trtllm")
    assert 5.5e12 < decode.kv_bytes / decode.seconds < 7.5e12
    prefill = mla_prefill_cost(1, 32_768, heads=128, **DEEPSEEK, profile="gb300-sglang")
    assert 2.1e15 < prefill.flop / prefill.seconds <= 2.5e15


def test_every_argument_broadcasts() -> None:
    rank = np.array([[256], [512]])
    sizes: dict[str, Any] = {"kv_lora_rank": rank, "qk_rope_head_dim": 64}
    for profile in ("ideal", "gb300-trtllm"):
        assert mla_decode_seconds([1, 2, 3], 100, heads=16, **sizes, profile=profile).shape == (2, 3)
        prefill = mla_prefill_seconds([1, 2, 3], 100, heads=16, **sizes, qk_nope_head_dim=128, v_head_dim=128, profile=profile)
        np.testing.assert_array_equal(prefill[0], prefill[1])  # keys and values are materialised: the rank is not read
        assert prefill.shape == (2, 3)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="kv_lora_rank must be finite and >= 1, got 0"):
        mla_decode_seconds(1, 1, heads=1, kv_lora_rank=0, qk_rope_head_dim=64, profile="ideal")
    with pytest.raises(InvalidValueError, match="past_tokens must be finite and >= 0, got -1"):
        mla_prefill_seconds(1, 1, -1, heads=1, **DEEPSEEK, profile="ideal")
