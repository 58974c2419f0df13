"""Fig. 1 and 2: the trade-off and the four regimes."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.constraints.divisibility import layout_allowed
from shapefront.costmodel import ArchitectureBatch, Layout, Workload, enumerate_layouts, load_profile
from shapefront.costmodel.decode import decode
from shapefront.costmodel.regimes import Regime, four_regimes, resource_shares
from shapefront.costmodel.serving import ServingSetup
from shapefront.costmodel.serving_frontier import frontier

from .shapes import DEEPSEEK_R1

PROFILE = "gb300-trtllm"
LAYOUTS = enumerate_layouts([2, 4, 8, 16, 32, 64], moe=True)
SETUP = ServingSetup(workload=Workload(), layouts=LAYOUTS, profile=PROFILE)
ALLOWED = layout_allowed(ArchitectureBatch.from_architectures([DEEPSEEK_R1]), LAYOUTS)


@pytest.fixture(scope="module")
def regimes() -> dict[tuple[str, str], Regime]:
    names = {2048: "short", 131072: "long"}
    return {(names[r.context], r.goal): r for r in four_regimes(DEEPSEEK_R1, SETUP, allowed=ALLOWED)}


def test_improving_one_side_of_the_frontier_costs_the_other() -> None:
    points = frontier(DEEPSEEK_R1, SETUP, allowed=ALLOWED).points
    assert len(points) > 20
    assert np.all(np.diff(points.tokens_per_second_per_user) > 0)
    assert np.all(np.diff(points.tokens_per_second_per_gpu) < 0)


def test_a_frontier_pushed_outward_has_more_area() -> None:
    plain = frontier(DEEPSEEK_R1, SETUP, allowed=ALLOWED)
    lighter = frontier(DEEPSEEK_R1.with_(num_hidden_layers=40), SETUP, allowed=ALLOWED)
    for axis in ("log", "linear"):
        assert lighter.area(axis=axis) > plain.area(axis=axis) > 0


def test_interactivity_is_the_inverse_of_inter_token_latency() -> None:
    points = frontier(DEEPSEEK_R1, SETUP, allowed=ALLOWED).points
    np.testing.assert_allclose(points.tokens_per_second_per_user * points.itl_seconds, 1.0)


def test_long_context_throughput_spends_most_of_its_time_in_attention(regimes: dict[tuple[str, str], Regime]) -> None:
    shares = regimes["long", "throughput"].shares
    assert shares["attention"] >= 0.60  # the post: 0.77
    assert shares["attention"] == max(shares.values())


@pytest.mark.parametrize("context", ["short", "long"])
def test_latency_oriented_serving_pays_in_communication_and_fixed_overheads(
    regimes: dict[tuple[str, str], Regime], context: str
) -> None:
    fast, cheap = regimes[context, "latency"], regimes[context, "throughput"]
    assert fast.resources["fixed"] > 1.5 * cheap.resources["fixed"]
    overhead = [r.shares["communication"] + r.resources["fixed"] for r in (fast, cheap)]
    assert overhead[0] > 1.5 * overhead[1]


def test_latency_oriented_serving_adds_model_parallelism(regimes: dict[tuple[str, str], Regime]) -> None:
    for context in ("short", "long"):
        fast, cheap = (regimes[context, goal].point for goal in ("latency", "throughput"))
        assert fast["concurrency"] / fast["gpus"] < cheap["concurrency"] / cheap["gpus"]
        assert fast["tpa"] > cheap["tpa"]


def test_short_context_throughput_splits_evenly_between_attention_and_ffn(regimes: dict[tuple[str, str], Regime]) -> None:
    point = regimes["short", "throughput"].point
    layout = Layout(**{k: point[k] for k in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")})
    parts = decode(DEEPSEEK_R1, layout, point["concurrency"], context=2048, profile=PROFILE).parts
    seconds = {name: float(value[0, 0, 0]) for name, value in parts.items()}
    attention = seconds["attention"]  # the kernels; the projections around them are GEMMs in Fig. 2's split
    ffn = sum(seconds[n] for n in ("expert_gemm", "shared_expert_gemm", "dense_ffn_gemm", "router_gemm"))
    assert 0.5 < attention / ffn < 2.0


def test_amdahl_a_faster_part_helps_only_by_its_share() -> None:
    # Half the attention time, by half the context: the step shrinks by half the attention share and no more.
    layout, load = Layout(dpa=64, ep=64), 2048
    full = decode(DEEPSEEK_R1, layout, load, context=131072, profile="ideal")
    half = decode(DEEPSEEK_R1, layout, load, context=65536, profile="ideal")
    share = full.attention_seconds[0, 0, 0] / full.seconds[0, 0, 0]
    assert share > 0.6
    assert 1 - half.seconds[0, 0, 0] / full.seconds[0, 0, 0] == pytest.approx(share / 2, rel=1e-6)


def test_low_concurrency_decoding_is_memory_bound_and_high_concurrency_reaches_for_the_math() -> None:
    design = DEEPSEEK_R1.with_(kv_lora_rank=64)  # little cache, so that the FFN decides
    shares = [resource_shares(design, Layout(dpa=8, ep=8), load, context=64, profile="ideal") for load in (8, 65536)]
    assert shares[0]["memory"] > 0.9
    assert shares[0]["math"] < 0.01
    assert shares[1]["math"] > 0.2


def test_resources_of_the_ideal_step_sum_to_all_of_it() -> None:
    shares = resource_shares(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=8192, profile="ideal")
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.03)
    assert shares["fixed"] == pytest.approx(0.0, abs=1e-12)
    assert load_profile("ideal").hardware.name == "gb300"
