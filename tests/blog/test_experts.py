"""Guideline 5: wide expert parallelism, attention DP, their costs."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, LayoutBatch
from shapefront.costmodel.decode import decode
from shapefront.costmodel.memory import max_concurrency, weight_bytes_per_gpu
from shapefront.costmodel.moe import moe_seconds, tokens_per_expert
from shapefront.costmodel.scaling import ExpertScaling, expert_parallel_table

from .shapes import DEEPSEEK_R1, LLAMA_70B

PROFILE = "gb300-trtllm"


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, int, float], ExpertScaling]:
    rows = expert_parallel_table(DEEPSEEK_R1, profile=PROFILE)
    return {(r.load, r.ep, r.tokens_per_gpu): r for r in rows}


def test_gemm_m_is_global_concurrency_times_top_k_over_experts(table: dict[tuple[str, int, float], ExpertScaling]) -> None:
    assert table["balanced", 64, 32].gemm_m == 32 * 64 * 8 / 256
    assert table["balanced", 64, 32].gemm_m == 8 * table["balanced", 8, 32].gemm_m


def test_widening_ep_raises_throughput_at_32_tokens_per_gpu(table: dict[tuple[str, int, float], ExpertScaling]) -> None:
    rates = [table["balanced", n, 32].tokens_per_second_per_gpu for n in (8, 16, 32, 64)]
    assert np.all(np.diff(rates) > 0)


def test_skewed_routing_reverses_the_gain_of_widening(table: dict[tuple[str, int, float], ExpertScaling]) -> None:
    # Balanced, wider is better everywhere; with a power law of 1.2 the widest loses to a narrower one at many tokens.
    gain = {load: [table[load, 64, t].tokens_per_second_per_gpu / table[load, 16, t].tokens_per_second_per_gpu for t in (8, 512)]
            for load in ("balanced", "power_law_1.2")}  # fmt: skip
    assert gain["power_law_1.2"][1] < 1 < gain["balanced"][0]
    assert gain["power_law_1.2"][1] < gain["balanced"][1]


def test_load_imbalance_costs_throughput_at_high_load(table: dict[tuple[str, int, float], ExpertScaling]) -> None:
    for ep in (16, 32, 64):
        even, mild, skewed = (table[load, ep, 512].tokens_per_second_per_gpu for load in ("balanced", "power_law_1.01", "power_law_1.2"))
        assert even > mild > skewed


def test_a_load_balancer_recovers_most_of_the_loss() -> None:
    # TensorRT-LLM, EP 32: (max - mean)/mean 1.56 without, 0.11 with the balancer.
    layout = Layout(dpa=32, ep=32)
    seconds = [float(decode(DEEPSEEK_R1, layout, 32 * 256, context=8704, profile=PROFILE, load=f).seconds[0, 0, 0]) for f in (1.0, 1.11, 2.56)]
    assert seconds[1] - seconds[0] < 0.2 * (seconds[2] - seconds[0])


def test_all_to_all_grows_with_the_tokens(table: dict[tuple[str, int, float], ExpertScaling]) -> None:
    few, many = (table["balanced", 64, t] for t in (8.0, 512.0))
    assert many.communication_share * many.itl_seconds > 2 * few.communication_share * few.itl_seconds


def test_aggregate_bandwidth_loads_expert_weights_faster() -> None:
    # 16 tokens on the whole group: memory-bound; twice the ranks, half the weights a rank reads.
    wide = {"hidden_size": 7168, "moe_intermediate_size": 2048, "num_experts": 256, "top_k": 8, "format": "nvfp4", "profile": "ideal"}
    seconds = moe_seconds(16, ep=np.array([8, 16, 32, 64]), **wide)  # type: ignore[arg-type]
    assert seconds[0] / seconds[-1] == pytest.approx(8.0, rel=0.05)


def test_spread_experts_free_memory_for_concurrency() -> None:
    layouts = LayoutBatch.from_layouts([Layout(dpa=n, ep=n) for n in (2, 4, 8, 16, 32, 64)])
    weights = weight_bytes_per_gpu(DEEPSEEK_R1, layouts)[0]
    held = max_concurrency(DEEPSEEK_R1, layouts, context=9216, hardware="gb300")[0] / layouts.gpus
    assert np.all(np.diff(weights) < 0)
    assert np.all(np.diff(held) > 0)


def test_the_all_reduce_of_attention_tp_grows_with_concurrency() -> None:
    step = decode(DEEPSEEK_R1, Layout(tpa=8, ep=8), [8, 64, 512, 4096], context=8704, profile=PROFILE)
    reduce = step.parts["attention_all_reduce"][0, 0]
    assert np.all(np.diff(reduce) > 0)
    local = sum(step.parts[n][0, 0] for n in ("qkv_gemm", "output_gemm", "attention_all_reduce"))
    share = reduce / local
    assert share[-1] > share[0]


def test_attention_dp_wins_at_throughput_and_loses_at_latency() -> None:
    tp, dp = Layout(tpa=8, ep=8), Layout(dpa=8, ep=8)
    step = decode(DEEPSEEK_R1, LayoutBatch.from_layouts([tp, dp]), [1, 2048], context=8704, profile=PROFILE)
    one, many = step.seconds[0, :, 0], step.seconds[0, :, 1]
    assert one[0] < one[1]  # one sequence: TP shares the work
    assert many[1] < many[0]  # many: DP does not repeat the latent cache on every rank, nor sums over ranks


def test_adding_gpus_to_attention_dp_raises_global_concurrency() -> None:
    layouts = LayoutBatch.from_layouts([Layout(dpa=n, ep=n) for n in (8, 16)])
    held = max_concurrency(DEEPSEEK_R1, layouts, context=9216, hardware="gb300")[0]
    assert held[1] > 2 * held[0]


def test_a_dense_model_has_no_experts_to_spread() -> None:
    with pytest.raises(InvalidValueError, match="no experts to spread"):
        expert_parallel_table(LLAMA_70B)
    with pytest.raises(InvalidValueError, match="ep must divide num_experts=256, got ep=24"):
        expert_parallel_table(DEEPSEEK_R1, ep=(24,))


def test_gemm_m_grows_with_concurrency_and_shrinks_with_sparsity() -> None:
    assert tokens_per_expert(4096, 256, 8) == 2 * tokens_per_expert(2048, 256, 8)
    assert tokens_per_expert(4096, 512, 8) == tokens_per_expert(4096, 256, 8) / 2


def test_per_gpu_concurrency_is_capped_by_the_kv_cache() -> None:
    layout = Layout(dpa=8, ep=8)
    held = [float(max_concurrency(DEEPSEEK_R1, layout, context=n, hardware="gb300")[0, 0]) for n in (8192, 16384, 131072)]
    assert held[0] == pytest.approx(2 * held[1], rel=0.01)
    assert held[0] == pytest.approx(16 * held[2], rel=0.05)
