from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapefront.costmodel import (
    ArchitectureBatch,
    InvalidValueError,
    Layout,
    LayoutBatch,
    TensorFormats,
    Workload,
    enumerate_layouts,
)
from shapefront.costmodel.decode import decode
from shapefront.costmodel.disaggregated import combine_rates, prefill_pool
from shapefront.costmodel.memory import max_concurrency
from shapefront.costmodel.operating import best_at_rates, frontier_area, log_rates, upper_envelope
from shapefront.costmodel.profile import parse_profile
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates
from shapefront.costmodel.serving_frontier import frontier

from .test_decode import DEEPSEEK_R1, LLAMA_8B

LAYOUTS_8 = enumerate_layouts([1, 2, 4, 8], moe=False)
MOE_LAYOUTS = enumerate_layouts([4, 8, 16], moe=True)


def setup(**changes: object) -> ServingSetup:
    settings: dict[str, object] = {"workload": Workload(), "layouts": LAYOUTS_8, "profile": "ideal"}
    return ServingSetup(**(settings | changes))  # type: ignore[arg-type]


def test_rate_between_grid_points_by_hand() -> None:
    # ITL 10, 20, 40 ms at 1, 2, 4 sequences: at 40 tokens/s (25 ms) c* = 2 + 5/20·2 = 2.5 and 2.5/0.025 = 100 tokens/s on one GPU.
    itl = np.array([[[0.010, 0.020, 0.040]]])
    best, rate = best_at_rates(itl, np.array([1.0, 2.0, 4.0]), np.array([[99.0]]), np.array([1.0]), np.array([40.0, 200.0, 10.0]))
    assert best[0, 0] == pytest.approx([2.5, 0.0, 4.0])
    assert rate[0, 0] == pytest.approx([100.0, 0.0, 100.0])


def test_memory_caps_the_concurrency() -> None:
    # 3 sequences fit: ITL interpolates to 30 ms there, 100 tokens/s; out of reach at 34 tokens/s? No: 1/34 = 29.4 ms is reached at 2.94.
    itl = np.array([[[0.010, 0.020, 0.040]]])
    best, rate = best_at_rates(itl, np.array([1.0, 2.0, 4.0]), np.array([[3.0]]), np.array([1.0]), np.array([10.0, 34.0]))
    assert best[0, 0] == pytest.approx([3.0, 2 + (1 / 34 - 0.020) / 0.010])
    assert rate[0, 0, 0] == pytest.approx(3 / 0.030)


def test_no_memory_no_throughput() -> None:
    best, rate = best_at_rates(np.ones((1, 1, 2)), np.array([1.0, 2.0]), np.array([[0.0]]), np.array([1.0]), np.array([0.1]))
    assert best[0, 0, 0] == rate[0, 0, 0] == 0


def test_throughput_is_continuous_in_the_rate() -> None:
    rates = np.geomspace(20, 200, 400)
    table = throughput_at_rates(LLAMA_8B, setup(), rates).tokens_per_second_per_gpu[0]
    steps = np.abs(np.diff(table)) / table[:-1]
    assert np.all(np.diff(table) <= 1e-9)
    assert steps.max() < 0.05  # a grid step of √2 would show as 30 %


def test_rate_table_agrees_with_the_decode_step() -> None:
    table = throughput_at_rates(LLAMA_8B, setup(), [50.0])
    layout, load = LAYOUTS_8.layout(int(table.layout_index[0, 0])), float(table.concurrency[0, 0])
    itl = decode(LLAMA_8B, layout, load, context=8192 + 512, profile="ideal").seconds[0, 0, 0]
    assert 1 / itl == pytest.approx(max(50.0, 1 / itl), rel=0.03)  # linear between √2 steps
    assert table.tokens_per_second_per_gpu[0, 0] == pytest.approx(load / itl / layout.gpus, rel=0.03)


def test_masked_layouts_are_not_used() -> None:
    allowed = np.zeros((1, len(LAYOUTS_8)), dtype=bool)
    allowed[0, 3] = True
    table = throughput_at_rates(LLAMA_8B, setup(), [20.0, 50.0], allowed=allowed)
    assert set(table.layout_index[0].tolist()) <= {3, -1}


def test_batch_equals_one_at_a_time() -> None:
    designs = [LLAMA_8B.with_(num_hidden_layers=n) for n in (16, 24, 32, 40)]
    batch = ArchitectureBatch.from_architectures(designs)
    whole = throughput_at_rates(batch, setup(), [20.0, 100.0]).tokens_per_second_per_gpu
    for i, design in enumerate(designs):
        np.testing.assert_allclose(throughput_at_rates(design, setup(), [20.0, 100.0]).tokens_per_second_per_gpu[0], whole[i], rtol=1e-12)


def test_area_of_a_constant_is_its_width() -> None:
    rates = log_rates(10, 1000, 33)
    assert frontier_area(np.full(33, 7.0), rates) == pytest.approx(7 * np.log(100))
    assert frontier_area(np.full(33, 7.0), rates, "linear") == pytest.approx(7 * 990)


def test_envelope_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    y, x = rng.integers(0, 12, 300).astype(float), rng.integers(0, 12, 300).astype(float)
    usable = rng.random(300) < 0.8
    kept = upper_envelope(y, x, usable)
    best = {(y[i], x[i]) for i in np.flatnonzero(usable)
            if not any(usable[j] and y[j] >= y[i] and x[j] >= x[i] and (y[j] > y[i] or x[j] > x[i]) for j in range(300))}
    assert {(y[i], x[i]) for i in kept} == best
    assert len(kept) == len(best)
    assert np.all(np.diff(x[kept]) > 0)


def test_frontier_points_hold_memory_and_are_not_dominated() -> None:
    found = frontier(DEEPSEEK_R1, setup(layouts=MOE_LAYOUTS))
    held = max_concurrency(DEEPSEEK_R1, MOE_LAYOUTS, context=9216, hardware="gb300")[0]
    points = found.points
    assert np.all(points.concurrency <= held[points.layout_index])
    assert np.all(np.diff(points.tokens_per_second_per_user) > 0)
    assert np.all(np.diff(points.tokens_per_second_per_gpu) < 0)
    np.testing.assert_allclose(points.breakdown.sum(axis=0), points.itl_seconds, rtol=1e-12)
    assert found.evaluated == len(MOE_LAYOUTS) * 32


def test_frontier_rows_carry_the_stable_names() -> None:
    row = frontier(LLAMA_8B, setup()).rows()[0]
    assert {"tpa", "kvp", "dpa", "tpf", "ep", "pp", "gpus", "concurrency", "tokens_per_second_per_gpu", "tokens_per_second_per_user",
            "itl_seconds", "ttft_seconds", "breakdown", "bound"} <= set(row)
    assert set(row["breakdown"]) == {"gemm", "attention", "communication", "other"}


def test_best_split_of_two_pools() -> None:
    # 4 requests/s/GPU of prefill and 1 of decode: a fifth of the GPUs prefill; 4·1/(4 + 1) = 0.8 requests/s/GPU
    assert combine_rates(np.array(4.0), np.array(1.0)) == pytest.approx(0.8)
    assert combine_rates(np.array(0.0), np.array(0.0)) == 0


def test_disaggregated_rates_balance() -> None:
    found = frontier(LLAMA_8B, setup(mode="disaggregated"))
    points = found.points
    pool = prefill_pool(ArchitectureBatch.from_architectures([LLAMA_8B]), found.setup)
    gpus = LAYOUTS_8.gpus
    prefill_rate = pool.requests_per_second_per_gpu[0][points.prefill_layout_index] * gpus[points.prefill_layout_index] * points.prefill_workers
    decode_rate = points.concurrency / points.itl_seconds / 1024
    np.testing.assert_allclose(prefill_rate, decode_rate, rtol=1e-9)
    total = gpus[points.layout_index] + gpus[points.prefill_layout_index] * points.prefill_workers
    np.testing.assert_allclose(points.tokens_per_second_per_gpu, decode_rate * 1024 / total, rtol=1e-9)
    assert np.all(points.ttft_seconds > 0)
    np.testing.assert_allclose(points.input_output_tokens_per_second_per_gpu, points.tokens_per_second_per_gpu * 9, rtol=1e-12)


def test_integer_split_against_brute_force() -> None:
    layouts = LayoutBatch.from_layouts([Layout(), Layout(tpa=2, tpf=2), Layout(tpa=4, tpf=4)])
    plan = setup(layouts=layouts, mode="disaggregated", gpu_budget=8, concurrency=(4.0, 16.0, 64.0))
    points = frontier(LLAMA_8B, plan).points
    pool = prefill_pool(ArchitectureBatch.from_architectures([LLAMA_8B]), plan)
    step = decode(LLAMA_8B, layouts, plan.concurrency, context=plan.workload.decode_context, profile="ideal").seconds[0]
    limits = plan.limits(ArchitectureBatch.from_architectures([LLAMA_8B]))[0]
    best: list[tuple[float, float]] = []
    for d in range(3):
        for c, load in enumerate(plan.concurrency):
            if load > limits[d]:
                continue
            rate_d, size_d = load / step[d, c] / 1024, int(layouts.gpus[d])
            for p in range(3):
                size_p = int(layouts.gpus[p])
                rate_p = float(pool.requests_per_second_per_gpu[0, p]) * size_p
                best += [(1 / step[d, c], 1024 * min(x * rate_p, y * rate_d) / (x * size_p + y * size_d))
                         for x in range(1, 9) for y in range(1, 9) if x * size_p + y * size_d <= 8]
    for user, value in zip(points.tokens_per_second_per_user, points.tokens_per_second_per_gpu, strict=True):
        assert value == pytest.approx(max(v for u, v in best if u >= user * (1 - 1e-12)), rel=1e-9)
    sizes = layouts.gpus[points.layout_index] * points.decode_workers + layouts.gpus[points.prefill_layout_index] * points.prefill_workers
    assert np.all(sizes <= 8)


def test_transfer_is_part_of_the_first_token() -> None:
    plan = setup(mode="disaggregated", layouts=LayoutBatch.from_layouts([Layout()]))
    points = frontier(LLAMA_8B, plan).points
    pool = prefill_pool(ArchitectureBatch.from_architectures([LLAMA_8B]), plan)
    # 8192 tokens of 65,536 B over 900 GB/s; some points need more than a domain of 72 GPUs: 100 GB/s
    near, far = 8192 * 65_536 / 900e9, 8192 * 65_536 / 100e9
    extra = points.ttft_seconds - pool.ttft_seconds[0, 0]
    gpus = 1 + points.prefill_workers
    np.testing.assert_allclose(extra, np.where(gpus > 72, far, near), rtol=1e-9)


def test_aggregated_pays_for_the_prompts_of_the_others() -> None:
    plan = setup(mode="aggregated")
    alone = frontier(LLAMA_8B, setup()).points
    shared = frontier(LLAMA_8B, plan).points
    assert shared.tokens_per_second_per_gpu.max() < alone.tokens_per_second_per_gpu.max()
    one = frontier(LLAMA_8B, plan.with_(layouts=LayoutBatch.from_layouts([Layout()]), concurrency=(1.0,))).points
    step = decode(LLAMA_8B, Layout(), 1.0, context=plan.workload.decode_context, profile="ideal").seconds[0, 0, 0]
    assert one.itl_seconds[0] == pytest.approx(step, rel=1e-12)  # one sequence has no others


def test_aggregated_steal_by_hand() -> None:
    # TPOT = T_dec + (B - 1)/osl · (T_mixed - T_dec): recover the extra from the unloaded first token, T_mixed = TTFT (one chunk).
    plan = setup(mode="aggregated", layouts=LayoutBatch.from_layouts([Layout()]), concurrency=(33.0,))
    points = frontier(LLAMA_8B, plan).points
    index = int(np.flatnonzero(points.concurrency == 33.0)[0])
    step = decode(LLAMA_8B, Layout(), 33.0, context=plan.workload.decode_context, profile="ideal").seconds[0, 0, 0]
    expected = step + 32 / 1024 * (points.ttft_seconds[index] - step)
    assert points.itl_seconds[index] == pytest.approx(expected, rel=1e-12)


def test_rate_table_and_frontier_agree_in_every_mode() -> None:
    for mode in ("decode", "disaggregated", "aggregated"):
        found = frontier(LLAMA_8B, setup(mode=mode))
        middle = len(found.points) // 2
        rate = float(found.points.tokens_per_second_per_user[middle])
        assert found.at_rate(rate * (1 - 1e-9)) == pytest.approx(float(found.points.tokens_per_second_per_gpu[middle]), rel=0.1)
        assert found.at_rate(rate * (1 - 1e-9)) >= float(found.points.tokens_per_second_per_gpu[middle]) * (1 - 1e-6)


def test_goals_are_held() -> None:
    goal = Workload(max_itl_seconds=0.005, max_ttft_seconds=0.5)
    points = frontier(LLAMA_8B, setup(mode="disaggregated", workload=goal)).points
    assert points.itl_seconds.max() <= 0.005
    assert points.ttft_seconds.max() <= 0.5
    table = throughput_at_rates(LLAMA_8B, setup(workload=goal), [1.0, 200.0])
    assert table.tokens_per_second_per_gpu[0, 0] == pytest.approx(table.tokens_per_second_per_gpu[0, 1])


def test_goals_nobody_meets_say_the_best_reachable() -> None:
    with pytest.raises(InvalidValueError, match=r"ITL <= 1e-06 s; the best reachable ITL is [0-9.e-]+ s"):
        frontier(LLAMA_8B, setup(workload=Workload(max_itl_seconds=1e-6)))
    with pytest.raises(InvalidValueError, match=r"TTFT <= 1e-06 s; the best reachable TTFT is"):
        frontier(LLAMA_8B, setup(mode="disaggregated", workload=Workload(max_ttft_seconds=1e-6)))


def test_context_beyond_memory_says_how_many_gpus_it_takes() -> None:
    # 16M tokens of 35,136 B are 590 GB beside 382 GB of weights: 972/268.2 → 4 GPUs
    plan = setup(layouts=LayoutBatch.from_layouts([Layout(dpa=2, ep=2)]), workload=Workload(input_tokens=1 << 24))
    with pytest.raises(InvalidValueError, match=r"take at least 4 GPUs of gb300 memory.*the largest layout has 2"):
        frontier(DEEPSEEK_R1, plan)


def test_contradictory_pools_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"contradictory pools.*gpu_budget=6"):
        frontier(DEEPSEEK_R1, setup(mode="disaggregated", layouts=MOE_LAYOUTS, gpu_budget=6))
    with pytest.raises(InvalidValueError, match="same KV format"):
        setup(mode="disaggregated", prefill_formats=TensorFormats(kv="bf16"))
    with pytest.raises(InvalidValueError, match="gpu_budget must be at least 2"):
        setup(mode="disaggregated", gpu_budget=1)


def test_no_layout_left() -> None:
    with pytest.raises(InvalidValueError, match="no layout of the study divides it"):
        frontier(LLAMA_8B, setup(), allowed=np.zeros((1, len(LAYOUTS_8)), dtype=bool))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"mode": "both"}, "mode must be one of"), ({"concurrency": (2.0, 1.0)}, "rising"), ({"prefill_efficiency": 0.0}, "prefill_efficiency"),
     ({"chunk_tokens": 0}, "chunk_tokens"), ({"options": {"overlapp": 1.0}}, "did you mean 'overlap'")],
)
def test_refuses_a_setup_out_of_range(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        setup(**change)


@pytest.mark.parametrize("rates", [[], [0.0], [float("nan")], [-1.0]])
def test_refuses_rates_that_are_none(rates: list[float]) -> None:
    with pytest.raises(InvalidValueError, match="rates must be positive"):
        throughput_at_rates(LLAMA_8B, setup(), rates)


@given(st.integers(0, 10_000), st.floats(1.0, 200.0))
def test_best_concurrency_against_a_dense_search(seed: int, rate: float) -> None:
    # Any step time that rises with the load: no concurrency on a fine grid inside the memory limit does better.
    rng = np.random.default_rng(seed)
    grid = np.cumsum(rng.uniform(0.5, 3.0, 6)) + 0.5
    itl = np.cumsum(rng.uniform(1e-4, 2e-2, 6))
    limit, gpus = float(rng.uniform(0.2, 1.3) * grid[-1]), 4.0
    best, value = best_at_rates(itl[None, None], grid, np.array([[limit]]), np.array([gpus]), np.array([rate]))
    fine = np.linspace(grid[0], min(limit, grid[-1]), 4001) if limit >= grid[0] else np.array([])
    seconds = np.interp(fine, grid, itl)
    reached = seconds <= 1 / rate
    expected = float(np.max(fine[reached] / seconds[reached] / gpus, initial=0.0)) if np.any(reached) else 0.0
    assert value[0, 0, 0] >= expected * (1 - 1e-3)
    if best[0, 0, 0] > 0:
        chosen = float(np.interp(best[0, 0, 0], grid, itl))
        assert chosen <= 1 / rate * (1 + 1e-9)
        assert value[0, 0, 0] == pytest.approx(best[0, 0, 0] / chosen / gpus, rel=1e-9)


def test_constants_belong_to_their_attention_kind() -> None:
    table = {"name": "made", "hardware": "gb300", "step": {
        kind: {"status": "fitted", "source": "test", "parameters": {"host_seconds": value}} for kind, value in (("default", 1e-3), ("mla", 2e-3))
    }}  # fmt: skip
    made = parse_profile(table, "made")
    for design, value in ((LLAMA_8B, 1e-3), (DEEPSEEK_R1, 2e-3)):
        bare = decode(design, Layout(), 1, context=1024, profile=made, host_seconds=0.0).seconds[0, 0, 0]
        full = decode(design, Layout(), 1, context=1024, profile=made).seconds[0, 0, 0]
        assert full - bare == pytest.approx(value, rel=1e-6)
