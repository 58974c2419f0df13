"""Communication between attention and experts: which collective each layout runs, and on how much."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel import Layout, LayoutBatch, decode
from shapefront.costmodel.collectives import all_gather_seconds, reduce_scatter_seconds
from shapefront.costmodel.memory import shared_expert_ranks, weight_bytes_per_gpu
from shapefront.costmodel.models import load_model
from shapefront.costmodel.profile import load_profile
from shapefront.costmodel.step_parts import reduce_seconds

R1, QWEN = load_model("DeepSeek-R1"), load_model("Qwen3-30B-A3B")
GROUPED = Layout(tpa=2, dpa=4, ep=8)
SPLIT = ("attention_reduce_scatter", "ffn_all_gather")


@pytest.mark.parametrize("profile", ["ideal", "gb300-trtllm", "gb300-sglang"])
def test_a_group_scatters_before_the_experts_and_gathers_after(profile: str) -> None:
    """R1 on TPA 2 x DPA 4: 256 sequences are 64 a group, messages of 64·7168·2 B over 2 ranks in each of 58 MoE layers."""
    parts, loaded = decode(R1, GROUPED, 256, context=4096, profile=profile).parts, load_profile(profile)
    message, two = np.array([[64 * 7168 * 2.0]]), np.array([[2.0]])
    reduce = float(reduce_seconds(message, two, loaded)[0, 0])
    for name, move in zip(SPLIT, (reduce_scatter_seconds, all_gather_seconds), strict=True):
        alone = float(move(message, two, profile=loaded)[0, 0])
        assert float(parts[name][0, 0, 0]) == pytest.approx(58 * min(alone, reduce), rel=1e-12)
    for name in ("attention_all_reduce", "ffn_all_reduce"):  # the three dense layers keep theirs
        assert float(parts[name][0, 0, 0]) == pytest.approx(3 * reduce, rel=1e-12)


def test_without_attention_groups_nothing_is_scattered() -> None:
    parts = decode(R1, Layout(dpa=8, ep=8), 256, context=4096, profile="ideal").parts
    assert not set(SPLIT) & set(parts)
    assert parts["attention_all_reduce"][0, 0, 0] == parts["ffn_all_reduce"][0, 0, 0] == 0


def test_without_attention_dp_both_sums_are_all_reduced() -> None:
    parts = decode(QWEN, Layout(tpa=4, ep=4), 64, context=4096, profile="gb300-trtllm").parts
    reduce = reduce_seconds(np.array([[64 * 2048 * 2.0]]), np.array([[4.0]]), load_profile("gb300-trtllm"))[0, 0]
    for name in ("attention_all_reduce", "ffn_all_reduce"):
        assert float(parts[name][0, 0, 0]) == pytest.approx(48 * float(reduce), rel=1e-12)
    assert not set(SPLIT) & set(parts)


def test_a_layout_costs_the_same_beside_others() -> None:
    """Each mode is priced on its own columns; mixing them changes nothing."""
    layouts = LayoutBatch.from_layouts(
        [Layout(tpa=8, ep=8), Layout(dpa=8, ep=8), GROUPED, Layout(dpa=8, tpf=8), Layout(tpa=2, dpa=4, tpf=2, ep=4), Layout(kvp=8, ep=8)]
    )
    together = decode(R1, layouts, [1, 100], context=4096)
    for index, layout in enumerate(layouts):
        alone = decode(R1, layout, [1, 100], context=4096)
        np.testing.assert_allclose(together.seconds[:, index], alone.seconds[:, 0], rtol=1e-12)
        np.testing.assert_allclose(together.communication_seconds[:, index], alone.communication_seconds[:, 0], rtol=1e-12, atol=1e-18)


def test_a_shared_expert_is_whole_on_every_rank_under_expert_parallelism() -> None:
    """R1's shared expert: 3·7168·2048 values of 0.5625 B in 58 layers; whole on TPA 2 x DPA 4, halved nowhere."""
    layouts = LayoutBatch.from_layouts([Layout(dpa=8, ep=8), GROUPED, Layout(tpa=8, ep=8), Layout(dpa=8, tpf=8)])
    assert shared_expert_ranks(layouts).tolist() == [1, 1, 8, 8]
    bare = R1.with_(n_shared_experts=0, shared_expert_intermediate_size=0)
    shared = (weight_bytes_per_gpu(R1, layouts) - weight_bytes_per_gpu(bare, layouts))[0]
    np.testing.assert_allclose(shared, 58 * 3 * 7168 * 2048 * 0.5625 / np.array([1, 1, 8, 8]), rtol=1e-9)


def test_each_rank_of_a_group_computes_the_shared_expert_of_its_own_tokens() -> None:
    """256 sequences on 8 GPUs are 32 tokens a GPU, in a group of two as alone."""
    alone = decode(R1, Layout(dpa=8, ep=8), 256, context=4096, profile="gb300-trtllm").parts["shared_expert_gemm"]
    grouped = decode(R1, GROUPED, 256, context=4096, profile="gb300-trtllm").parts["shared_expert_gemm"]
    assert alone[0, 0, 0] == grouped[0, 0, 0] > 0
