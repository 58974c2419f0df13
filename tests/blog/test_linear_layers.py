"""Tables 1 and 2, Fig. 4 to 6, guidelines 1 to 4, as a whole model feels them."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel import Architecture, Layout, LayoutBatch, TensorFormats, Workload
from shapefront.costmodel.decode import decode
from shapefront.costmodel.gemm import gemm_cost, gemm_seconds
from shapefront.costmodel.prefill import prefill
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates

from .shapes import DEEPSEEK_R1, LLAMA_70B

ONE = Layout()


def dense(hidden_size: int, intermediate_size: int, layers: int) -> Architecture:
    return Architecture(hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=layers,
                        num_attention_heads=hidden_size // 128, num_key_value_heads=8, vocab_size=32768)  # fmt: skip


@pytest.mark.parametrize("tokens", [256, 2048, 16384])
def test_table_2_stays_memory_bound_at_every_token_count(tokens: int) -> None:
    cost = gemm_cost(tokens, 8192, 512, format="nvfp4", output_format="fp8", profile="ideal")
    assert cost.read_seconds + cost.write_seconds > cost.math_seconds


def test_square_products_grow_in_intensity_with_the_hidden_size() -> None:
    # 2H³ FLOP over 3H² elements: doubling H doubles FLOP a byte.
    cost = gemm_cost([1024, 2048, 4096], [1024, 2048, 4096], [1024, 2048, 4096], format="bf16", profile="ideal")
    intensity = cost.flop / (cost.read_bytes + cost.write_bytes)
    np.testing.assert_allclose(intensity[1:] / intensity[:-1], 2.0, rtol=1e-9)
    assert intensity[0] == pytest.approx(2 * 1024**3 / (3 * 1024**2 * 2))


@pytest.mark.parametrize("side", ["n", "k"])
def test_a_small_projection_or_reduction_dimension_wastes_the_tensor_cores(side: str) -> None:
    # Fig. 4: throughput at 1024 against 6144, the other dimension as in the figure.
    sizes = np.array([1024, 6144])
    n, k = (sizes, np.array(8448)) if side == "n" else (np.array(9728), sizes)
    seconds = gemm_seconds(8192, n, k, format="nvfp4", profile="gb300-blog")
    rate = 2 * 8192 * n * k / seconds
    assert rate[0] < 0.75 * rate[1]


@pytest.mark.parametrize(("hidden", "skewed_ffn", "square_ffn"), [(8192, 512, 8192)])
def test_near_square_weights_beat_skewed_ones_at_equal_parameters(hidden: int, skewed_ffn: int, square_ffn: int) -> None:
    # One FFN-2 of 8192 x 8192 against sixteen of 8192 x 512: the same weights, the same FLOP.
    tokens = np.array([256, 8192])
    square = gemm_seconds(tokens, hidden, square_ffn, format="nvfp4", profile="gb300-blog")
    skewed = square_ffn / skewed_ffn * gemm_seconds(tokens, hidden, skewed_ffn, format="nvfp4", profile="gb300-blog")
    assert np.all(square < 0.5 * skewed)


def test_a_dimension_just_past_the_tile_multiple_loses_throughput() -> None:
    # Fig. 5's kernel; 4096 = 8·512 against 4224 = 33·128: more work, and less throughput.
    n = np.array([4096, 4224])
    seconds = gemm_seconds(8192, n, 8192, format="nvfp4", profile="gb300-blog", tile=(256, 128, 2, 4))
    rate = n / seconds
    assert rate[1] < rate[0]


WIDE, DEEP = dense(8192, 28672, 32), dense(4096, 14336, 128)  # equal matrices: half the width, four times the layers


def test_wide_and_deep_have_equal_parameters_in_their_layers() -> None:
    layers = [d.total_params - 2 * d.vocab_size * d.hidden_size for d in (WIDE, DEEP)]
    assert layers[0] == pytest.approx(layers[1], rel=0.05)


@pytest.mark.parametrize("rate", [20.0, 100.0])
def test_wider_beats_deeper_for_both_service_goals(rate: float) -> None:
    # Equal KV bytes a token: the deep model's four times the layers hold a quarter of the KV heads.
    deep = DEEP.with_(num_key_value_heads=2)
    layouts = LayoutBatch.from_layouts([Layout(), Layout(tpa=2, tpf=2), Layout(tpa=4, tpf=4), Layout(tpa=8, tpf=8)])
    setup = ServingSetup(workload=Workload(input_tokens=2048), layouts=layouts, profile="gb300-blog")
    wide_rate, deep_rate = (throughput_at_rates(d, setup, [rate]).tokens_per_second_per_gpu[0, 0] for d in (WIDE, deep))
    assert wide_rate > 1.05 * deep_rate


def test_fewer_layers_shorten_the_sequential_path() -> None:
    deep = DEEP.with_(num_key_value_heads=2)
    fast, slow = (decode(d, Layout(tpa=8, tpf=8), 1, context=2048, profile="gb300-blog").seconds[0, 0, 0] for d in (WIDE, deep))
    assert fast < 0.6 * slow


@pytest.mark.parametrize("work", ["memory", "compute"])
def test_higher_precision_costs_memory_bound_and_compute_bound_work(work: str) -> None:
    seconds = []
    for name in ("nvfp4", "fp8", "bf16"):
        formats = TensorFormats.uniform(name)
        if work == "memory":
            seconds.append(decode(LLAMA_70B, ONE, 1, context=1024, formats=formats, profile="ideal").gemm_seconds[0, 0, 0])
        else:
            seconds.append(prefill(LLAMA_70B, ONE, input_tokens=8192, formats=formats, profile="ideal").breakdown[0, 0, 0])
    assert seconds[0] < 0.8 * seconds[1] < 0.8 * 0.8 * seconds[2]


def test_low_precision_raises_math_and_cuts_traffic_at_once() -> None:
    four, eight = (gemm_cost(8192, 8192, 8192, format=name, profile="ideal") for name in ("nvfp4", "fp8"))
    assert eight.math_seconds / four.math_seconds == pytest.approx(3.0)  # Fig. 6: 15 against 5 PFLOP/s
    assert four.read_bytes / eight.read_bytes == pytest.approx(4.5 / 8)


def test_a_smaller_cache_format_helps_long_context() -> None:
    slow, fast = (decode(DEEPSEEK_R1, Layout(dpa=8, ep=8), 512, context=65536, formats=TensorFormats(kv=kv), profile="ideal")
                  for kv in ("bf16", "fp8"))  # fmt: skip
    assert fast.attention_seconds[0, 0, 0] == pytest.approx(slow.attention_seconds[0, 0, 0] / 2)
