"""Collectives: closed forms of the roofline, regimes, scale-out, expert all-to-all volumes and published figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.collectives import (
    all_gather_seconds,
    all_reduce_cost,
    all_reduce_seconds,
    all_to_all_seconds,
    dispatch_bytes_per_token,
    distinct_remote_ranks,
    moe_combine_seconds,
    moe_dispatch_cost,
    moe_dispatch_seconds,
    reduce_scatter_seconds,
    send_seconds,
)
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.hardware import load_hardware
from shapefront.costmodel.links import CollectiveParameters
from shapefront.costmodel.profile import KernelProfile, load_profile, parse_profile

R1: dict[str, Any] = {"hidden_size": 7168, "top_k": 8, "num_experts": 256}
LINK, OUT = 900e9, 100e9  # GB300: NVLink and ConnectX-8, B/s per GPU


def profile_with(family: str, operation: str, parameters: dict[str, Any]) -> KernelProfile:
    entry = {operation: {"status": "fitted", "source": "test", "parameters": parameters}}
    return parse_profile({"name": "test", "hardware": "gb300", family: entry}, "test")


def test_roofline_all_reduce_takes_the_fastest_algorithm() -> None:
    # n = 2: one-shot sends S once: S/B. n >= 3: in-switch reduction sends S once, ring would send 2 (n-1)/n S.
    size = 9e8
    np.testing.assert_allclose(all_reduce_seconds(size, [1, 2, 4, 72], profile="ideal"), [0, 1e-3, 1e-3, 1e-3])


def test_roofline_gather_scatter_exchange() -> None:
    # (n-1)/n of the bytes travel: 900 MB over 4 ranks = 675 MB / 900 GB/s = 0.75 ms.
    for seconds in (all_gather_seconds, reduce_scatter_seconds, all_to_all_seconds):
        np.testing.assert_allclose(seconds(9e8, [1, 2, 4], profile="ideal"), [0, 0.5e-3, 0.75e-3])
    assert send_seconds(9e8, profile="ideal") == pytest.approx(1e-3)
    assert send_seconds(1e8, scale_out=True, profile="ideal") == pytest.approx(1e-3)


def test_beyond_the_domain_the_scale_out_link_carries_the_rest() -> None:
    # 144 GPUs = 2 domains of 72. All-reduce: ring inside 2*71/72 S/B, then 2*(1/2)*(S/72)/B_out across.
    cost = all_reduce_cost(7.2e8, 144, profile="ideal")
    assert cost.scale_up_seconds == pytest.approx(2 * 71 / 72 * 7.2e8 / LINK)
    assert cost.scale_out_seconds == pytest.approx(1e7 / OUT)
    # All-to-all: 72 of 144 peers are outside: half the buffer over the NIC rules.
    assert all_to_all_seconds(1.44e8, 144, profile="ideal") == pytest.approx(71 * 1e6 / LINK + 72 * 1e6 / OUT)


def test_distinct_remote_ranks() -> None:
    # (EP-1)(1-(1-1/EP)^k): 7 (1-(7/8)^8) = 4.5947; 63 (1-(63/64)^8) = 7.4575; one rank has no peers; k = 1: (EP-1)/EP.
    np.testing.assert_allclose(distinct_remote_ranks([1, 8, 64], 8), [0, 4.5947, 7.4575], rtol=1e-4)
    assert distinct_remote_ranks(4, 1) == pytest.approx(0.75)
    rng = np.random.default_rng(1)  # simulation: 8 choices over 16 ranks, rank 0 is home
    chosen = rng.integers(0, 16, (20_000, 8))
    remote = np.mean([np.unique(row[row > 0]).size for row in chosen])
    assert distinct_remote_ranks(16, 8) == pytest.approx(remote, rel=0.01)


def test_dispatch_and_combine_bytes() -> None:
    # NVFP4 at H = 7168: 7168 * 4.5 / 8 = 4032 B with scales; FP8-block 7168 + 4 * 56 = 7392 B; BF16 14336 B.
    assert dispatch_bytes_per_token(7168, "nvfp4") == 4032
    assert dispatch_bytes_per_token(7168, "fp8_block") == 7392
    seconds = moe_dispatch_seconds(128, 8, **R1, format="nvfp4", profile="ideal")
    assert seconds == pytest.approx(128 * 4032 * 7 * (1 - (7 / 8) ** 8) / LINK)
    assert moe_combine_seconds(128, 8, **R1, profile="ideal") == pytest.approx(float(seconds) * 14336 / 4032)
    # Dealt out in turn, k = 8 of 256 experts reach every one of 8 ranks: 7 remote copies.
    even = moe_dispatch_seconds(128, 8, **R1, format="nvfp4", load="even", profile="ideal")
    assert even == pytest.approx(128 * 4032 * 7 / LINK)
    assert moe_dispatch_seconds(128, 1, **R1, format="nvfp4", profile="ideal") == 0
    assert moe_dispatch_seconds(128, 8, **R1, format="nvfp4", load=2.0, profile="ideal") == pytest.approx(2 * float(seconds))


def test_group_over_two_domains() -> None:
    # EP 144 on domains of 72: of 143 remote ranks 71 share the domain. A token crosses once if any of its 8 choices is
    # over there (255 in 256), and every copy but one in 72 of the far ones rides the scale-up link.
    cost = moe_dispatch_cost(100, 144, **R1, format="bf16", profile="ideal")
    copies = 143 * (1 - (143 / 144) ** 8)
    assert cost.scale_out_seconds == pytest.approx(100 * 14336 * 255 / 256 / OUT)
    assert cost.scale_up_seconds == pytest.approx(100 * 14336 * copies * (71 + 72 * 71 / 72) / 143 / LINK)
    assert cost.seconds == pytest.approx(max(float(cost.scale_up_seconds), float(cost.scale_out_seconds)))


def test_kernels_that_send_every_choice_cross_with_every_choice() -> None:
    profile = profile_with("all_to_all", "dispatch", {"every_choice": 1.0})
    cost = moe_dispatch_cost(100, 144, **R1, format="bf16", profile=profile)
    assert cost.scale_out_seconds == pytest.approx(100 * 14336 * 8 * 72 / 143 / OUT)
    assert cost.seconds == pytest.approx(float(cost.scale_up_seconds + cost.scale_out_seconds))


def test_distinct_domains_against_simulation() -> None:
    # 8 choices over 32 ranks in 4 domains of 8 (Hopper): remote domains touched, 3 (1 - 0.75^8) = 2.70; rank 0 is home.
    rng = np.random.default_rng(7)
    domain = rng.integers(0, 32, (40_000, 8)) // 8
    touched = np.mean([np.unique(row[row > 0]).size for row in domain])
    cost = moe_dispatch_cost(100, 32, **R1, format="bf16", profile=load_profile("ideal", hardware="h200"))
    out = load_hardware("h200").scale_out_bytes_per_second
    assert cost.scale_out_seconds == pytest.approx(100 * 14336 * touched / out, rel=0.01)


@pytest.mark.parametrize(("hardware", "ep", "k"), [("h200", 32, 8), ("gb300", 144, 8), ("gb300", 96, 8), ("gb300", 128, 4), ("b200", 12, 6)])
def test_domains_filled_in_part_against_simulation(hardware: str, ep: int, k: int) -> None:
    # Every rank sends; copies over both links are counted one by one, the GPU of the same index receiving for its domain.
    rng, size = np.random.default_rng(11), load_hardware(hardware).scale_up_gpus
    crossed, forwarded = [], []
    for sender in rng.integers(0, ep, 6_000):
        reached = np.unique(rng.integers(0, ep, k))
        far = {int(rank) // size for rank in reached} - {int(sender) // size}
        landing = {d * size + min(int(sender) % size, min(size, ep - d * size) - 1) for d in far}
        crossed.append(len(far))
        forwarded.append(len(set(reached.tolist()) - landing - {int(sender)}))
    cost = moe_dispatch_cost(
        100, ep, hidden_size=7168, top_k=k, num_experts=ep * 4, format="bf16", profile=load_profile("ideal", hardware=hardware)
    )
    links = load_hardware(hardware)
    assert cost.scale_out_seconds == pytest.approx(100 * 14336 * np.mean(crossed) / links.scale_out_bytes_per_second, rel=0.03)
    assert cost.scale_up_seconds == pytest.approx(100 * 14336 * np.mean(forwarded) / links.scale_up_bytes_per_second, rel=0.03)


@pytest.mark.parametrize(("domains", "rates"), [(2, (90e9, 81e9)), (4, (61e9, 61e9))])
def test_published_exchanges_between_domains(domains: int, rates: tuple[float, float]) -> None:
    # DeepEP's README, SM90: 8192 tokens, FP8 out and BF16 back; logical bytes count the sender's own domain. The bare
    # link is the floor; measured kernels reach 80 % of it and more.
    logical = domains * (1 - (1 - 1 / domains) ** 8)
    ideal = load_profile("ideal", hardware="h200")
    ours = [
        moe_dispatch_seconds(8192, 8 * domains, **R1, format="fp8_block", profile=ideal),
        moe_combine_seconds(8192, 8 * domains, **R1, profile=ideal),
    ]
    for seconds, token_bytes, rate in zip(ours, (7392, 14336), rates, strict=True):
        share = float(seconds) / (8192 * token_bytes * logical / rate)
        assert 0.8 < share < 1.0


def test_regimes_by_hand() -> None:
    # n = 4: 5 us + S/(0.5 * 900 GB/s) up to 1 MB, then 20 us + S/(0.8 * 900 GB/s); 8 ranks: 7 us, no second latency.
    profile = profile_with(
        "all_reduce",
        "default",
        {
            "ranks": [4, 8],
            "latency_seconds": [5e-6, 20e-6, 7e-6, 7e-6],
            "efficiency": [0.5, 0.8, 0.5, 1.0],
            "knee_bytes": [1e6, 1e6],
        },
    )
    size = np.array([0, 9e5, 1e6, 7.2e6])
    np.testing.assert_allclose(all_reduce_seconds(size, 4, profile=profile), [5e-6, 7e-6, 7.2222e-6, 30e-6], rtol=1e-4)
    # 8 ranks: the second regime would start below the first's end (7 + 1.1 us): held at 9.2222 us until it passes it.
    after = all_reduce_seconds(np.array([1e6, 1.0001e6, 1.5e6, 9e6]), 8, profile=profile)
    np.testing.assert_allclose(after, [9.2222e-6, 9.2222e-6, 9.2222e-6, 17e-6], rtol=1e-4)
    # Beyond the largest group latency goes on per doubling as between the last two: 7 + (7 - 5) = 9 us at 16 ranks.
    assert all_reduce_seconds(0, 16, profile=profile) == pytest.approx(9e-6)
    assert all_reduce_seconds(1e6, 1, profile=profile) == 0


def test_beyond_the_measured_ranks_latency_grows_by_hops() -> None:
    # A jump to another kernel between 8 and 16 ranks (8 -> 40 us) is no slope: a hop of the tree takes at most
    # 40 / log2(16) = 10 us, so that 64 ranks (two doublings) take 40 + 2 * 10 = 60 us, not 40 + 2 * 32 or 40 + 48 * 4.
    jump = CollectiveParameters((8.0, 16.0), (8e-6, 40e-6), (0.5, 0.5))
    np.testing.assert_allclose(jump.latency(0, np.array([8.0, 16.0, 32.0, 64.0])), [8e-6, 40e-6, 50e-6, 60e-6])
    # A slow growth goes on as measured: 5 -> 6 us a doubling; a fall does not go on.
    slow = CollectiveParameters((8.0, 16.0), (5e-6, 6e-6), (0.5, 0.5))
    assert slow.latency(0, np.array(64.0)) == pytest.approx(8e-6)
    fall = CollectiveParameters((8.0, 16.0), (6e-6, 5e-6), (0.5, 0.5))
    assert fall.latency(0, np.array(64.0)) == pytest.approx(5e-6)


@pytest.mark.parametrize("stack", ["trtllm", "sglang", "vllm"])
def test_a_small_all_reduce_of_a_whole_rack_costs_hops_not_ranks(stack: str) -> None:
    # 16 -> 72 ranks is log2(72)/log2(16) = 1.54 times the hops: latency-bound messages may take no more than that.
    seconds = all_reduce_seconds(8192, [16, 72], profile=f"gb300-{stack}")
    assert 1 <= seconds[1] / seconds[0] < np.log2(72) / np.log2(16) + 0.01
    note = load_profile(f"gb300-{stack}").family("all_reduce", "default").note
    assert "beyond 16 ranks: inferred" in note



def test_send_pays_latency_on_both_links() -> None:
    profile = profile_with("collective", "send", {"latency_seconds": 1e-5, "efficiency": 0.5})
    assert send_seconds(9e8, profile=profile) == pytest.approx(1e-5 + 2e-3)  # half of 900 GB/s
    assert send_seconds(1e8, scale_out=True, profile=profile) == pytest.approx(1e-5 + 1e-3)  # the NIC's 100 GB/s


def test_vector_equals_scalar() -> None:
    size, ranks = np.array([1e3, 1e5, 1e7, 1e9]), np.array([2, 4, 16, 72])
    many = all_reduce_seconds(size, ranks, profile="ideal")
    np.testing.assert_array_equal(
        many, [float(all_reduce_seconds(s, int(n), profile="ideal")) for s, n in zip(size, ranks, strict=True)]
    )
    tokens = np.array([1, 64, 4096, 100])
    many = moe_dispatch_seconds(tokens, ranks, **R1, format="fp8_block", profile="ideal")
    one = [
        float(moe_dispatch_seconds(int(t), int(n), **R1, format="fp8_block", profile="ideal"))
        for t, n in zip(tokens, ranks, strict=True)
    ]
    np.testing.assert_allclose(many, one, rtol=1e-14)


def test_bounds_are_named() -> None:
    profile = profile_with("all_reduce", "default", {"latency_seconds": 1e-5})
    assert all_reduce_cost([1e3, 1e9], 4, profile=profile).bound.tolist() == ["latency", "scale_up"]
    assert all_reduce_cost(1e9, 7200, profile="ideal").bound.item() == "scale_up"
    assert moe_dispatch_cost(100, 144, **R1, format="bf16", profile="ideal").bound.item() == "scale_out"


def test_refusals() -> None:
    with pytest.raises(InvalidValueError, match="bytes must be >= 0"):
        all_reduce_seconds(-1, 4, profile="ideal")
    with pytest.raises(InvalidValueError, match="ranks must be >= 1"):
        all_gather_seconds(1, 0, profile="ideal")
    with pytest.raises(InvalidValueError, match="tokens_per_gpu"):
        moe_dispatch_seconds(-1, 8, **R1, format="nvfp4", profile="ideal")
    with pytest.raises(InvalidValueError, match="ep must be >= 1"):
        distinct_remote_ranks(0, 8)
    with pytest.raises(InvalidValueError, match="efficiency must be in"):
        CollectiveParameters(efficiency=(1.2,))
    with pytest.raises(InvalidValueError, match="knee_bytes one less"):
        CollectiveParameters(latency_seconds=(0.0, 0.0), efficiency=(1.0, 1.0))
    with pytest.raises(UnknownKeyError, match="latency_second"):
        all_reduce_seconds(1, 4, profile=profile_with("all_reduce", "default", {"latency_second": 1.0}))
