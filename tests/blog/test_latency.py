"""Guideline 7: latency-oriented serving, TP against EP, KV parallelism."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.constraints.divisibility import layout_allowed
from shapefront.costmodel import ArchitectureBatch, Layout, LayoutBatch, Workload, enumerate_layouts
from shapefront.costmodel.decode import decode
from shapefront.costmodel.memory import kv_bytes_per_sequence_per_gpu
from shapefront.costmodel.scaling import helix_gain
from shapefront.costmodel.serving import ServingSetup

from .shapes import COARSE, DEEPSEEK_R1, FINE, LLAMA_70B

PROFILE = "gb300-trtllm"


def test_less_work_per_gpu_lowers_latency() -> None:
    layouts = LayoutBatch.from_layouts([Layout(tpa=n, tpf=n) for n in (1, 2, 4, 8)])
    step = decode(LLAMA_70B, layouts, [1, 8, 64, 256], context=8704, profile="gb300-blog").seconds[0]
    assert np.all(np.diff(step, axis=1) > 0)  # lower concurrency
    assert np.all(np.diff(step, axis=0) < 0)  # more GPUs


def test_shrinking_the_batch_stops_helping_the_ffn_but_still_helps_attention() -> None:
    step = decode(LLAMA_70B, Layout(tpa=8, tpf=8), [1, 2, 4, 8, 16, 32], context=32768, profile="ideal")
    attention, ffn = step.attention_seconds[0, 0], step.parts["dense_ffn_gemm"][0, 0]
    np.testing.assert_allclose(attention[1:] / attention[:-1], 2.0, rtol=1e-9)
    assert ffn[-1] / ffn[0] < 1.05  # weight reads of N x K remain


def test_few_tokens_read_few_experts_yet_every_one_read_costs_its_weights() -> None:
    # With 256 experts and top-8 one token reads 8 experts; the FFN of 1 and of 2 tokens differs by the experts they touch.
    parts = decode(DEEPSEEK_R1, Layout(tpa=8, ep=8), [1, 2], context=8704, profile="ideal").parts["expert_gemm"][0, 0]
    touched = [256 * (1 - (1 - 8 / 256) ** n) for n in (1, 2)]
    assert parts[1] / parts[0] == pytest.approx(touched[1] / touched[0], rel=0.01)


def test_tp_suits_coarse_experts_and_ep_fine_grained_ones() -> None:
    # Same parameters, same active ones. TP of 8 leaves a coarse expert 1792 wide and a fine one 112; EP keeps both whole.
    tp, ep = Layout(tpa=8, tpf=8), Layout(tpa=8, ep=8)
    ratio = {}
    for design in (COARSE, FINE):
        step = decode(design, LayoutBatch.from_layouts([tp, ep]), [4], context=4096, profile=PROFILE, load=1.3)
        experts = step.parts["expert_gemm"][0, :, 0]
        ratio[design.name] = experts[0] / experts[1]
    assert ratio["coarse"] < 1 < ratio["fine"]


def test_tp_beyond_the_kv_heads_brings_no_kv_gain() -> None:
    layouts = LayoutBatch.from_layouts([Layout(tpa=n, tpf=n) for n in (4, 8, 16)])
    held = kv_bytes_per_sequence_per_gpu(LLAMA_70B, layouts, 8192)[0]
    step = decode(LLAMA_70B, layouts, 16, context=131072, profile="ideal").attention_seconds[0, :, 0]
    assert held[0] == 2 * held[1] == 2 * held[2]
    assert step[0] == pytest.approx(2 * step[1])
    assert step[2] == step[1]


def test_few_kv_heads_make_tp_a_bottleneck_and_kv_parallelism_lifts_it() -> None:
    # MLA has one latent: TPA 8 reads all of it, KVP 8 an eighth.
    layouts = LayoutBatch.from_layouts([Layout(tpa=8, ep=8), Layout(kvp=8, ep=8)])
    attention = decode(DEEPSEEK_R1, layouts, 4, context=1_000_000, profile="ideal").attention_seconds[0, :, 0]
    assert attention[0] / attention[1] == pytest.approx(8.0, rel=0.01)


def test_helix_pushes_the_million_token_frontier_outward() -> None:
    layouts = enumerate_layouts([4, 8, 16, 32, 64], moe=True, max_kvp=64)
    allowed = layout_allowed(ArchitectureBatch.from_architectures([DEEPSEEK_R1]), layouts)
    setup = ServingSetup(workload=Workload(input_tokens=1_000_000), layouts=layouts, profile=PROFILE)
    gain = helix_gain(DEEPSEEK_R1, setup, allowed=allowed)
    assert gain.interactivity > 1.2
    assert gain.concurrency > 1.5


def test_kv_parallelism_gains_nothing_at_short_context() -> None:
    layouts = LayoutBatch.from_layouts([Layout(tpa=8, ep=8), Layout(kvp=8, ep=8)])
    seconds = decode(DEEPSEEK_R1, layouts, 4, context=2048, profile=PROFILE).seconds[0, :, 0]
    assert seconds[0] < seconds[1]


def test_overlap_hides_part_of_the_hybrid_schemes_communication() -> None:
    layout = Layout(kvp=8, ep=8)
    plain, hidden = (decode(DEEPSEEK_R1, layout, 8, context=1_000_000, profile=PROFILE, overlap=o) for o in (0.0, 0.75))
    saved = plain.seconds[0, 0, 0] - hidden.seconds[0, 0, 0]
    assert saved == pytest.approx(0.75 * plain.communication_seconds[0, 0, 0], rel=1e-9)


def test_attention_and_ffn_are_parallelised_independently() -> None:
    # The same eight GPUs: attention over the sequence, FFN over experts or over the width; only the FFN's time changes.
    layouts = LayoutBatch.from_layouts([Layout(kvp=8, ep=8), Layout(kvp=8, tpf=8), Layout(kvp=8, tpf=2, ep=4)])
    step = decode(DEEPSEEK_R1, layouts, 8, context=1_000_000, profile=PROFILE)
    assert np.ptp(step.attention_seconds) == 0
    assert np.ptp(step.parts["expert_gemm"]) > 0
