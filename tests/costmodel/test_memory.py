from __future__ import annotations

import pytest

from shapefront.costmodel import Architecture, InvalidValueError, Layout, LayoutBatch, TensorFormats
from shapefront.costmodel.memory import (
    dense_ffn_ranks,
    gpus_needed,
    kv_bytes_per_sequence_per_gpu,
    kv_bytes_per_token,
    max_concurrency,
    vocabulary_shard,
    weight_bytes_per_gpu,
)

from .test_decode import DEEPSEEK_R1, LLAMA_8B, WINDOWED


def test_kv_bytes_of_deepseek_r1_in_fp8() -> None:
    # (512 latent + 64 rotary) B · 61 layers
    assert kv_bytes_per_token(DEEPSEEK_R1)[0] == 35_136


def test_kv_bytes_of_llama_8b_in_bf16() -> None:
    # 2 · 8 KV heads · 128 · 2 B · 32 layers = 131,072 B
    assert kv_bytes_per_token(LLAMA_8B, TensorFormats(kv="bf16"))[0] == 131_072


def test_weights_on_one_gpu_are_the_parameters_at_their_formats() -> None:
    # BF16 everywhere: 2 B a stored parameter (vocabulary is already a multiple of 128), the final norm once.
    formats = TensorFormats.uniform("bf16")
    assert weight_bytes_per_gpu(LLAMA_8B, Layout(), formats)[0, 0] == 2 * LLAMA_8B.total_params


def test_concurrency_cap_by_hand_to_the_token() -> None:
    # GB300: 0.9 · 298,013,688,000 B. Llama-8B: all linear layers NVFP4 (0.5625 B), head and embedding BF16.
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    weights = linear * 0.5625 + 2 * 128256 * 4096 * 2 + (32 * 2 + 1) * 4096 * 2
    assert weight_bytes_per_gpu(LLAMA_8B, Layout())[0, 0] == weights
    free = 0.9 * 298_013_688_000 - weights
    tokens = int(free // 65_536)  # FP8 KV: 2·8·128·32 B a token
    one = max_concurrency(LLAMA_8B, Layout(), context=tokens, hardware="gb300")[0, 0]
    none = max_concurrency(LLAMA_8B, Layout(), context=tokens + 1, hardware="gb300")[0, 0]
    assert (one, none) == (1, 0)
    assert max_concurrency(LLAMA_8B, Layout(), context=9216, hardware="gb300")[0, 0] == int(free // (65_536 * 9216))


def test_attention_dp_holds_whole_sequences_on_each_rank() -> None:
    one = max_concurrency(LLAMA_8B, Layout(), context=9216, hardware="gb300")[0, 0]
    # four replicas of the attention, the FFN over 4 ranks leaves each a little more room
    four = max_concurrency(LLAMA_8B, Layout(dpa=4, tpf=4), context=9216, hardware="gb300")[0, 0]
    assert four % 4 == 0
    assert four >= 4 * one


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    layouts = LayoutBatch.from_layouts([Layout(tpa=n, tpf=n) for n in (1, 8, 16)])
    held = kv_bytes_per_sequence_per_gpu(LLAMA_8B, layouts, 1024)[0]
    assert held[1] == held[0] / 8 == held[2]


def test_kv_parallelism_and_stages_share_the_cache() -> None:
    layouts = LayoutBatch.from_layouts([Layout(), Layout(kvp=4, ep=4), Layout(pp=4)])
    held = kv_bytes_per_sequence_per_gpu(DEEPSEEK_R1, layouts, 1_000_000)[0]
    assert held[1] == held[0] / 4
    assert held[2] == pytest.approx(held[0] * 16 / 61)  # the fullest stage has 16 of 61 layers


def test_windowed_layers_hold_their_window() -> None:
    # 18 layers of 8192 tokens and 18 of 128, 2·8·64 B each
    assert kv_bytes_per_sequence_per_gpu(WINDOWED, Layout(), 8192)[0, 0] == 18 * (8192 + 128) * 1024


def test_dense_ffn_is_replicated_per_dp_rank_under_expert_parallelism() -> None:
    layouts = LayoutBatch.from_layouts([Layout(dpa=8, ep=8), Layout(tpa=8, ep=8), Layout(dpa=8, tpf=8), Layout(tpa=2, dpa=4, ep=8)])
    assert dense_ffn_ranks(layouts).tolist() == [1, 8, 8, 2]


def test_vocabulary_is_padded_to_128_rows_a_rank() -> None:
    assert vocabulary_shard(129_280, 8) == 16_256  # 129,280 = 126.25 · 1024 → 127 · 1024 / 8
    assert vocabulary_shard(128_256, 1) == 128_256


def test_deepseek_r1_takes_two_gb300() -> None:
    assert gpus_needed(DEEPSEEK_R1, context=9216, hardware="gb300") == 2
    assert max_concurrency(DEEPSEEK_R1, Layout(), context=9216, hardware="gb300")[0, 0] == 0
    assert max_concurrency(DEEPSEEK_R1, Layout(dpa=2, ep=2), context=9216, hardware="gb300")[0, 0] > 0


def test_refuses_a_share_of_memory_above_one() -> None:
    with pytest.raises(InvalidValueError, match="usable_fraction"):
        max_concurrency(LLAMA_8B, Layout(), context=10, hardware="gb300", usable_fraction=1.5)


def test_expert_shards_divide_the_experts() -> None:
    design = Architecture(hidden_size=1024, num_hidden_layers=2, num_attention_heads=8, vocab_size=1024, moe_intermediate_size=512,
                          num_experts=16, num_experts_per_tok=2)
    one, eight = weight_bytes_per_gpu(design, LayoutBatch.from_layouts([Layout(), Layout(dpa=8, ep=8)]))[0]
    experts = 2 * 3 * 1024 * 512 * 16 * 0.5625
    assert one - eight == pytest.approx(experts * 7 / 8)
