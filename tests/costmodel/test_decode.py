from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import Architecture, ArchitectureBatch, InvalidValueError, Layout, LayoutBatch, enumerate_layouts
from shapefront.costmodel.decode import decode
from shapefront.costmodel.profile import KernelProfile, load_profile, parse_profile
from shapefront.costmodel.step_communication import reduce_seconds
from shapefront.costmodel.step_plan import keyed

LLAMA_8B = Architecture(
    hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256
)
DEEPSEEK_R1 = Architecture(
    hidden_size=7168, num_hidden_layers=61, num_attention_heads=128, vocab_size=129280, intermediate_size=18432,
    moe_intermediate_size=2048, n_shared_experts=1, num_experts=256, num_experts_per_tok=8, first_k_dense_replace=3,
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, attention="mla",
)
WINDOWED = Architecture(
    hidden_size=2880, num_hidden_layers=36, num_attention_heads=64, num_key_value_heads=8, head_dim=64, vocab_size=201088,
    moe_intermediate_size=2880, num_experts=128, num_experts_per_tok=4, sliding_window=128, num_sliding_window_layers=18,
)


def test_ideal_decode_of_llama_8b_by_hand() -> None:
    # One GPU, one sequence, 8192 tokens of FP8 KV, NVFP4 linear layers (4.5 bits), BF16 head; every part memory-bound at
    # 8 TB/s, weights dominate. Weight values a layer: QKV 4096·6144, output 4096·4096, gate-up 2·4096·14336, down 14336·4096.
    values = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)  # 6.979e9
    activations_in = 32 * (4096 + 4096 + 4096 + 14336)  # NVFP4
    activations_out = 32 * (6144 + 4096 + 2 * 14336 + 4096)  # BF16
    gemm = (values * 0.5625 + activations_in * 0.5625 + activations_out * 2) / 8e12
    # the head: 128256 rows padded to 128·1002 = 128256; weights, input and logits in BF16
    head = (128256 * 4096 + 4096 + 128256) * 2 / 8e12
    attention = 32 * 8192 * (2 * 8 * 128) / 8e12
    # two norms of 4·H BF16 values a layer, SwiGLU 3·H′ BF16 values a layer, FP32 logits once, embedding 6·H BF16
    other = (32 * (2 * 4 * 4096 + 3 * 14336) * 2 + 128256 * 4 + 6 * 4096 * 2) / 8e12
    step = decode(LLAMA_8B, Layout(), 1, context=8192, profile="ideal")
    assert step.gemm_seconds[0, 0, 0] == pytest.approx(gemm + head, rel=1e-12)
    assert step.attention_seconds[0, 0, 0] == pytest.approx(attention, rel=1e-12)
    assert step.other_seconds[0, 0, 0] == pytest.approx(other, rel=1e-12)
    assert step.communication_seconds[0, 0, 0] == 0.0
    assert step.seconds[0, 0, 0] == pytest.approx(gemm + head + attention + other, rel=1e-12)


@pytest.mark.parametrize("profile", ["ideal", "gb300-blog"])
@pytest.mark.parametrize("architecture", [LLAMA_8B, DEEPSEEK_R1, WINDOWED], ids=["dense", "mla", "windowed"])
def test_vector_equals_scalar(architecture: Architecture, profile: str) -> None:
    layouts = enumerate_layouts([1, 2, 4, 8], moe=architecture.num_experts > 0, max_kvp=4, max_pp=4)
    batch = ArchitectureBatch.from_architectures([architecture, architecture.with_(num_hidden_layers=20, hidden_size=3072)])
    concurrency = (0.5, 1.0, 3.0, 8.0, 100.0)
    whole = decode(batch, layouts, concurrency, context=5000, profile=profile)
    rng = np.random.default_rng(0)
    for _ in range(60):
        a, p, c = (int(rng.integers(n)) for n in whole.seconds.shape)
        alone = decode(batch.architecture(a), layouts.layout(p), concurrency[c], context=5000, profile=profile)
        for name in ("seconds", "gemm_seconds", "attention_seconds", "communication_seconds", "other_seconds"):
            assert getattr(alone, name)[0, 0, 0] == pytest.approx(getattr(whole, name)[a, p, c], rel=1e-12, abs=1e-18)


def test_categories_sum_to_the_step_and_parts_to_the_categories() -> None:
    layouts = LayoutBatch.from_layouts([Layout(), Layout(tpa=8, tpf=8), Layout(dpa=8, ep=8), Layout(tpa=2, kvp=2, dpa=2, tpf=2, ep=4)])
    step = decode(DEEPSEEK_R1, layouts, [1, 64], context=8704, profile="ideal")
    total = step.gemm_seconds + step.attention_seconds + step.communication_seconds + step.other_seconds
    np.testing.assert_allclose(total, step.seconds, rtol=1e-14)
    np.testing.assert_allclose(sum(step.parts.values()), step.seconds, rtol=1e-12)


def test_more_sequences_never_take_less_time() -> None:
    layouts = enumerate_layouts([8], moe=True, max_kvp=8, max_pp=4)
    step = decode(DEEPSEEK_R1, layouts, [2.0**i for i in range(12)], context=4096, profile="ideal")
    assert np.all(np.diff(step.seconds, axis=2) >= -1e-15)


def test_pipeline_of_one_sequence_is_the_sum_of_its_stages() -> None:
    # One sequence never waits: 4 stages hold the same weights once; only 3·0 ring hops differ (4 hops, 8 KiB each).
    one = decode(LLAMA_8B, Layout(), 1, context=8192, profile="ideal")
    four = decode(LLAMA_8B, Layout(pp=4), 1, context=8192, profile="ideal")
    hop = 4096 * 2 / 900e9
    assert four.seconds[0, 0, 0] == pytest.approx(one.seconds[0, 0, 0] + 4 * hop, rel=1e-12)


def test_uneven_pipeline_waits_for_the_fullest_stage() -> None:
    # 61 layers on 4 stages: 16, 15, 15, 15 (+ head). With 4 microbatches a turn lasts 4 times the slowest stage.
    step = decode(DEEPSEEK_R1, Layout(dpa=2, ep=2, pp=4), 64, context=8192, profile="ideal")
    even = decode(DEEPSEEK_R1, Layout(dpa=2, ep=2), 16, context=8192, profile="ideal")
    head = sum(even.parts[name][0, 0, 0] for name in ("head_gemm", "head_elementwise", "head_gather"))
    layers = even.seconds[0, 0, 0] - head
    hop = 8 * 7168 * 2 / 900e9
    assert step.seconds[0, 0, 0] == pytest.approx(4 * (max(16 / 61 * layers, 15 / 61 * layers + head) + hop), rel=1e-9)


def test_kv_parallelism_reads_its_share_of_the_context() -> None:
    # Helix: KVP 4 reads a quarter of the KV cache (MLA in FP8, memory-bound: 576 B a token and layer).
    alone = decode(DEEPSEEK_R1, Layout(), 1, context=1_000_000, profile="ideal")
    helix = decode(DEEPSEEK_R1, Layout(kvp=4, ep=4), 1, context=1_000_000, profile="ideal")
    assert alone.attention_seconds[0, 0, 0] == pytest.approx(61 * 1_000_000 * 576 / 8e12, rel=1e-12)
    assert helix.attention_seconds[0, 0, 0] == pytest.approx(alone.attention_seconds[0, 0, 0] / 4, rel=1e-12)
    assert helix.communication_seconds[0, 0, 0] > 0
    # every rank holds 128 heads of 512 latent values in BF16 and a log-sum-exp, and sends 3/4 of them
    volume = 128 * (512 * 2 + 4) * 3 / 4
    assert helix.parts["kv_all_to_all"][0, 0, 0] == pytest.approx(61 * volume / 900e9, rel=1e-12)


def test_kv_exchange_does_not_depend_on_the_context() -> None:
    short, long = (decode(DEEPSEEK_R1, Layout(kvp=4, ep=4), 8, context=c, profile="ideal").parts for c in (4096, 1_000_000))
    assert short["kv_all_to_all"] == long["kv_all_to_all"]


def test_windowed_layers_read_their_window() -> None:
    # 18 of 36 layers read 128 tokens, the others all 8192; 2·8·64 B a token and layer in FP8.
    step = decode(WINDOWED, Layout(), 16, context=8192, profile="ideal")
    assert step.attention_seconds[0, 0, 0] == pytest.approx(16 * (18 * 8192 + 18 * 128) * 1024 / 8e12, rel=1e-12)


def test_overlap_hides_its_share_of_communication() -> None:
    plain = decode(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=8192, profile="ideal")
    half = decode(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=8192, profile="ideal", overlap=0.5)
    assert half.communication_seconds[0, 0, 0] == pytest.approx(plain.communication_seconds[0, 0, 0] / 2, rel=1e-12)
    assert half.gemm_seconds[0, 0, 0] == plain.gemm_seconds[0, 0, 0]


def test_shared_expert_beside_the_routed_ones() -> None:
    plain = decode(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=8192, profile="ideal")
    beside = decode(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=8192, profile="ideal", shared_expert_overlap=1.0)
    saved = min(plain.parts["shared_expert_gemm"][0, 0, 0], plain.parts["expert_gemm"][0, 0, 0])
    assert plain.seconds[0, 0, 0] - beside.seconds[0, 0, 0] == pytest.approx(saved, rel=1e-9)


def test_host_time_is_added_once_a_step() -> None:
    plain = decode(LLAMA_8B, Layout(), 4, context=8192, profile="ideal").seconds
    slow = decode(LLAMA_8B, Layout(), 4, context=8192, profile="ideal", host_seconds=1e-3).seconds
    assert slow[0, 0, 0] - plain[0, 0, 0] == pytest.approx(1e-3, rel=1e-9)


def test_replicated_kv_heads_bring_no_gain() -> None:
    # 8 KV heads: TPA 8 reads an eighth of the cache, TPA 16 and 32 read the same eighth.
    step = decode(LLAMA_8B, LayoutBatch.from_layouts([Layout(tpa=n, tpf=n) for n in (1, 8, 16, 32)]), 1, context=8192, profile="ideal")
    attention = step.attention_seconds[0, :, 0]
    assert attention[1] == pytest.approx(attention[0] / 8, rel=1e-12)
    assert attention[2] == attention[1] == attention[3]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), [], float("inf")])
def test_refuses_a_concurrency_that_is_no_number_of_sequences(bad: object) -> None:
    with pytest.raises(InvalidValueError, match="positive numbers of sequences"):
        decode(LLAMA_8B, Layout(), bad, context=8192)  # type: ignore[arg-type]


def test_refuses_an_unknown_option_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"unknown key .overlapp. .did you mean .overlap."):
        decode(LLAMA_8B, Layout(), 1, context=8192, overlapp=0.5)


def test_keyed_returns_every_point_its_own_combination() -> None:
    rng = np.random.default_rng(3)
    tpa, rows = rng.integers(1, 5, (40, 1)), rng.choice([1.0, 1.5, 2.25, 7.0], (40, 12))
    key = keyed((40, 12), tpa=tpa, rows=rows)
    np.testing.assert_array_equal(key.gather(key["tpa"]).reshape(40, 12), np.broadcast_to(tpa, (40, 12)))
    np.testing.assert_array_equal(key.gather(key["rows"]).reshape(40, 12), rows)
    assert key["tpa"].shape[1] == len({(int(t), r) for t, row in zip(tpa[:, 0], rows, strict=True) for r in row})


def made_profile(**families: Mapping[str, Mapping[str, float]]) -> KernelProfile:
    """The ideal profile with some numbers of ours."""
    table: dict[str, Any] = {"name": "made", "hardware": "gb300"}
    for family, fits in families.items():
        table[family] = {name: {"status": "inferred", "source": "test", "parameters": p} for name, p in fits.items()}
    return parse_profile(table, "made")


def test_static_scales_save_the_dynamic_scale_kernel() -> None:
    # 8 µs a linear layer of 4 per Llama layer, 32 layers; GEMMs of 20 µs launch keep more than half of their time.
    profile = made_profile(gemm={"nvfp4": {"launch_seconds": 20e-6}}, elementwise={"dynamic_scale": {"launch_seconds": 8e-6}})
    dynamic, static = (decode(LLAMA_8B, Layout(), 1, context=1024, profile=profile, static_scales=s) for s in (0.0, 1.0))
    moved = 2 * (4096 + 4096 + 4096 + 14336) / 8e12  # BF16 activations of the four layers, read once at 8 TB/s
    saved = dynamic.seconds[0, 0, 0] - static.seconds[0, 0, 0]
    assert saved == pytest.approx(32 * (4 * 8e-6 + moved), rel=1e-9)


def test_static_scales_never_take_more_than_half_of_a_gemm() -> None:
    profile = made_profile(elementwise={"dynamic_scale": {"launch_seconds": 1.0}})
    dynamic, static = (decode(LLAMA_8B, Layout(), 1, context=1024, profile=profile, static_scales=s) for s in (0.0, 1.0))
    linear = sum(dynamic.parts[n][0, 0, 0] for n in ("qkv_gemm", "output_gemm", "dense_ffn_gemm"))
    assert dynamic.seconds[0, 0, 0] - static.seconds[0, 0, 0] == pytest.approx(linear / 2, rel=1e-9)


def test_all_reduce_takes_the_faster_of_kernel_and_library() -> None:
    slow_stack = {"latency_seconds": 5e-6, "efficiency": 0.1}
    library = {"latency_seconds": 20e-6, "efficiency": 0.8}
    profile = made_profile(all_reduce={"default": slow_stack}, collective={"all_reduce": library})
    short, long = np.array([1e4]), np.array([1e8])
    ranks = np.array([8.0])
    # in-switch reduction sends S once: 10 KB stays with the stack's kernel, 100 MB goes to the library
    assert reduce_seconds(short, ranks, profile)[0] == pytest.approx(5e-6 + 1e4 / (0.1 * 900e9), rel=1e-9)
    assert reduce_seconds(long, ranks, profile)[0] == pytest.approx(20e-6 + 1e8 / (0.8 * 900e9), rel=1e-9)


def test_a_negative_constant_leaves_half_of_the_step() -> None:
    plain = decode(LLAMA_8B, Layout(), 1, context=1024, profile="ideal").seconds[0, 0, 0]
    corrected = decode(LLAMA_8B, Layout(), 1, context=1024, profile="ideal", host_seconds=-1.0).seconds[0, 0, 0]
    assert corrected == pytest.approx(plain / 2, rel=1e-9)


@pytest.mark.parametrize("profile", ["gb300-sglang", "gb300-vllm", "gb300-trtllm"])
def test_an_all_reduce_costs_the_same_whatever_is_priced_beside_it(profile: str) -> None:
    """The faster of two kernels is chosen message by message: a long message in the call moves no short one."""
    loaded = load_profile(profile)
    short, ranks = np.array([1e4, 1e6]), np.array(8.0)
    beside = reduce_seconds(np.array([1e4, 1e6, 1e9]), ranks, loaded)
    assert np.array_equal(beside[:2], reduce_seconds(short, ranks, loaded))
    layout = Layout(tpa=8, tpf=8)
    alone = decode(LLAMA_8B, layout, 1.0, context=1000, profile=profile).seconds[0, 0, 0]
    assert decode(LLAMA_8B, layout, [1.0, 2048.0], context=1000, profile=profile).seconds[0, 0, 0] == alone
