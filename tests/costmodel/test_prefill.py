from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel import ArchitectureBatch, InvalidValueError, Layout, LayoutBatch, enumerate_layouts
from shapefront.costmodel.prefill import chunk_sizes, prefill

from .test_decode import DEEPSEEK_R1, LLAMA_8B, WINDOWED


def test_chunks_are_whole_and_a_rest() -> None:
    assert chunk_sizes(20_000, 8192).tolist() == [8192, 8192, 3616]
    assert chunk_sizes(100, 8192).tolist() == [100]


def test_ideal_attention_of_a_prompt_by_hand() -> None:
    # Llama-8B, 8192 tokens, one chunk, BF16 attention: 32 layers · 4·32·128·8192²/2 FLOP at 2.5 PFLOP/s against the exponentials,
    # 32·32·8192²/2 at 10.7e12/s. A layer: 5.5e11/2.5e15 = 0.22 ms; exp 1.07e9/10.7e12 = 0.1 ms.
    step = prefill(LLAMA_8B, Layout(), input_tokens=8192, profile="ideal")
    scores = 32 * (8192 * 8193 / 2)
    assert step.breakdown[1, 0, 0] == pytest.approx(32 * 4 * 128 * scores / 2.5e15, rel=2e-4)


def test_chunks_together_do_the_work_of_one_prompt() -> None:
    # Attention of all chunks sums to that of the whole prompt where it is compute-bound; the matrices run on the same tokens.
    whole = prefill(LLAMA_8B, Layout(), input_tokens=32768, chunk_tokens=32768, profile="ideal")
    parts = prefill(LLAMA_8B, Layout(), input_tokens=32768, chunk_tokens=4096, profile="ideal")
    assert parts.breakdown[1, 0, 0] == pytest.approx(whole.breakdown[1, 0, 0], rel=0.01)
    assert parts.breakdown[0, 0, 0] >= whole.breakdown[0, 0, 0] * (1 - 1e-9)
    assert np.all(np.diff(parts.chunk_seconds[0, 0]) > 0)  # the prefix grows


def test_first_token_without_stages_is_the_sum_of_its_chunks() -> None:
    step = prefill(LLAMA_8B, Layout(tpa=2, tpf=2), input_tokens=20_000, profile="ideal")
    assert step.ttft_seconds[0, 0] == pytest.approx(step.chunk_seconds[0, 0].sum(), rel=1e-12)
    assert step.ttft_seconds[0, 0] == pytest.approx(step.breakdown[:, 0, 0].sum(), rel=1e-12)
    assert step.requests_per_second_per_gpu[0, 0] == pytest.approx(1 / step.ttft_seconds[0, 0] / 2, rel=1e-12)


def test_prefix_cache_saves_its_share_of_the_matrices() -> None:
    cold = prefill(LLAMA_8B, Layout(), input_tokens=16384, profile="ideal")
    warm = prefill(LLAMA_8B, Layout(), input_tokens=16384, prefix_cache_share=0.5, profile="ideal")
    assert warm.breakdown[0, 0, 0] == pytest.approx(cold.breakdown[0, 0, 0] / 2, rel=0.02)
    assert warm.breakdown[1, 0, 0] > cold.breakdown[1, 0, 0] / 2  # the later half of the prompt attends to more


def test_short_prompts_share_a_pass() -> None:
    alone = prefill(LLAMA_8B, Layout(), input_tokens=512, sequences=1, profile="ideal")
    together = prefill(LLAMA_8B, Layout(), input_tokens=512, profile="ideal")
    assert together.sequences == 16
    assert together.requests_per_second_per_gpu[0, 0] > alone.requests_per_second_per_gpu[0, 0]


def test_windowed_layers_attend_to_their_window() -> None:
    full = WINDOWED.with_(sliding_window=0, num_sliding_window_layers=0)
    half, whole = (prefill(d, Layout(), input_tokens=65536, profile="ideal").breakdown[1, 0, 0] for d in (WINDOWED, full))
    assert half == pytest.approx(whole / 2, rel=0.02)  # 18 of 36 layers all but free


def test_vector_equals_scalar() -> None:
    layouts = enumerate_layouts([2, 4, 8], moe=True, max_kvp=2, max_pp=4)
    batch = ArchitectureBatch.from_architectures([DEEPSEEK_R1, DEEPSEEK_R1.with_(num_hidden_layers=30)])
    whole = prefill(batch, layouts, input_tokens=20_000, profile="gb300-blog")
    for p in range(0, len(layouts), 7):
        alone = prefill(batch.architecture(1), layouts.layout(p), input_tokens=20_000, profile="gb300-blog")
        assert alone.ttft_seconds[0, 0] == pytest.approx(whole.ttft_seconds[1, p], rel=1e-12)
        assert alone.tokens_per_second_per_gpu[0, 0] == pytest.approx(whole.tokens_per_second_per_gpu[1, p], rel=1e-12)


def test_schedule_is_kept_as_data() -> None:
    step = prefill(DEEPSEEK_R1, LayoutBatch.from_layouts([Layout(dpa=2, ep=2, pp=2)]), input_tokens=32768, profile="ideal")
    plan = step.schedule()
    assert plan.start.shape == (2, 4)
    assert plan.makespan_seconds == step.ttft_seconds[0, 0]
    assert plan.start[1, 0] == pytest.approx(plan.finish[0, 0] + step.hop_seconds[0, 0])


def test_uneven_stages_are_printed_or_refused() -> None:
    layout = Layout(dpa=2, ep=2, pp=4)
    assert prefill(DEEPSEEK_R1, layout, input_tokens=8192, profile="ideal").imbalance[0, 0] == pytest.approx(64 / 61)
    with pytest.raises(InvalidValueError, match="pp must divide num_hidden_layers=61"):
        prefill(DEEPSEEK_R1, layout, input_tokens=8192, profile="ideal", balanced_only=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"input_tokens": 0}, "input_tokens"), ({"chunk_tokens": 0}, "chunk_tokens"), ({"prefix_cache_share": 1.0}, "prefix_cache_share"),
     ({"sequences": 0}, "sequences")],
)
def test_refuses_arguments_out_of_range(change: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        prefill(LLAMA_8B, Layout(), **({"input_tokens": 100} | change))  # type: ignore[arg-type]
