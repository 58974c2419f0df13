"""Guideline 6: chunked pipeline parallelism for prefill, Fig. 8 and 9."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, LayoutBatch, Workload, enumerate_layouts
from shapefront.costmodel.prefill import Prefill, prefill
from shapefront.costmodel.serving import ServingSetup
from shapefront.costmodel.serving_frontier import frontier

from .shapes import DEEPSEEK_R1

DEPTHS = (1, 2, 4, 8, 16, 32)
LAYOUTS = LayoutBatch.from_layouts([Layout(dpa=2, ep=2, pp=n) for n in DEPTHS])


@pytest.fixture(scope="module", params=["gb300-blog", "gb300-trtllm"])
def figure_9(request: pytest.FixtureRequest) -> Prefill:
    return prefill(DEEPSEEK_R1, LAYOUTS, input_tokens=262_144, chunk_tokens=8192, profile=request.param)


def test_first_token_latency_falls_at_every_doubling(figure_9: Prefill) -> None:
    assert np.all(np.diff(figure_9.ttft_seconds[0]) < 0)


def test_throughput_stays_roughly_constant(figure_9: Prefill) -> None:
    rate = figure_9.tokens_per_second_per_gpu[0]
    assert np.all(np.abs(rate / rate[0] - 1) < 0.15)


def test_uneven_stages_leave_gpus_idle(figure_9: Prefill) -> None:
    # 61 layers: the fullest of 4 stages has 16, 64/61 of the mean; that is what throughput loses.
    rate = figure_9.tokens_per_second_per_gpu[0]
    assert figure_9.imbalance[0, 2] == pytest.approx(64 / 61)
    assert rate[0] / rate[2] == pytest.approx(64 / 61, rel=0.02)


def test_a_regular_depth_balances_the_stages() -> None:
    regular = DEEPSEEK_R1.with_(num_hidden_layers=64)
    even = prefill(regular, LAYOUTS, input_tokens=262_144, profile="gb300-blog")
    assert np.all(even.imbalance == 1.0)
    rate = even.tokens_per_second_per_gpu[0]
    assert np.all(np.abs(rate / rate[0] - 1) < 0.01)


def test_balanced_only_refuses_61_layers_on_2_stages() -> None:
    with pytest.raises(InvalidValueError, match="pp must divide num_hidden_layers=61"):
        prefill(DEEPSEEK_R1, LAYOUTS, input_tokens=262_144, balanced_only=True)


def test_layers_and_chunks_process_in_parallel() -> None:
    # Fig. 8: two stages; from the second chunk on both work at once.
    plan = prefill(DEEPSEEK_R1, Layout(dpa=2, ep=2, pp=2), input_tokens=32_768, profile="gb300-blog").schedule()
    assert plan.start[0, 1] == pytest.approx(plan.finish[0, 0])
    assert plan.start[1, 0] < plan.finish[0, 1]
    assert np.all(plan.start[1] >= plan.finish[0])


def test_pipelining_needs_no_wide_tensor_parallelism() -> None:
    # 8 GPUs of a dense model: TP 8 pays for all-reduces of 8192 tokens twice a layer, PP 8 sends them once a stage.
    design = DEEPSEEK_R1.with_(num_hidden_layers=64)
    layouts = LayoutBatch.from_layouts([Layout(tpa=8, tpf=8), Layout(tpa=1, tpf=1, pp=8)])
    step = prefill(design, layouts, input_tokens=262_144, profile="gb300-blog")
    assert step.breakdown[2, 0, 1] < 0.1 * step.breakdown[2, 0, 0]
    assert step.tokens_per_second_per_gpu[0, 1] > step.tokens_per_second_per_gpu[0, 0]


def test_disaggregation_partitions_each_pool_in_its_own_way() -> None:
    # One pool to prefill, one to decode: the best layouts differ, and so do the GPU counts that balance them.
    layouts = enumerate_layouts([4, 8, 16], moe=True)
    setup = ServingSetup(workload=Workload(input_tokens=8192, output_tokens=1024, max_ttft_seconds=5.0), layouts=layouts,
                         prefill_layouts=enumerate_layouts([2, 4, 8], moe=True, max_pp=4), profile="gb300-trtllm",
                         mode="disaggregated")  # fmt: skip
    found = frontier(DEEPSEEK_R1, setup)
    points = found.points
    fast = int(np.argmax(points.tokens_per_second_per_user))
    prefill_layout = setup.prefill_layouts.layout(int(points.prefill_layout_index[fast]))  # type: ignore[union-attr]
    assert prefill_layout != found.layout(fast)
    assert points.ttft_seconds.max() <= 5.0
    assert points.prefill_workers[0] > points.prefill_workers[-1]  # more tokens decoded a second, more prompts to prefill
