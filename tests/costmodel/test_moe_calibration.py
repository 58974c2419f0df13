"""Calibration of experts and collectives: what is read and left out, and fits that recover a known truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shapefront.costmodel.calibration import collectives, exchange, moe
from shapefront.costmodel.calibration.interface import FamilyResult
from shapefront.costmodel.calibration.moe_kernels import Kernel
from shapefront.costmodel.calibration.segments import fit_segments
from shapefront.costmodel.errors import InvalidValueError
from shapefront.costmodel.expert_all_to_all import parse_exchange
from shapefront.costmodel.hardware import load_hardware
from shapefront.costmodel.moe import moe_cost
from shapefront.costmodel.moe_parameters import MoeParameters, moe_parameters, number_format
from shapefront.costmodel.profile import load_profile, parse_profile

GB300 = load_hardware("gb300")
KERNEL = Kernel("nvfp4", "nvfp4", ("fused",))


def table(**changes: object) -> pd.DataFrame:
    """Rows of one shape: 4 batch sizes x 2 tensor-parallel sizes, times proportional to batch and width."""
    rows = [(m, tp, 1e-3 * m / tp) for m in (1, 2, 4, 8) for tp in (1, 2)]
    frame = pd.DataFrame(rows, columns=["num_tokens", "moe_tp_size", "latency"]).assign(
        kernel_source="fused", moe_dtype="nvfp4", hidden_size=4096, inter_size=1536, num_experts=128, topk=8,
        moe_ep_size=1, distribution="balanced",
    )  # fmt: skip
    return frame.assign(**changes)


def test_rows_read_as_the_tables_mean_them() -> None:
    rows = moe.read_rows(table(), KERNEL, "trtllm")
    assert rows is not None
    np.testing.assert_array_equal(np.unique(rows.columns["inner"]), [768, 1536])  # the table's tp divides the width
    np.testing.assert_allclose(rows.seconds.max(), 8e-6)  # milliseconds
    assert rows.gated.all()
    assert moe.read_rows(table(topk=22), KERNEL, "trtllm").gated.sum() == 0  # type: ignore[union-attr]
    assert moe.read_rows(table(kernel_source="triton"), KERNEL, "trtllm") is None
    twice = moe.read_rows(pd.concat([table(), table(latency=1e9)]), KERNEL, "trtllm")  # median of a pair is its mean
    assert twice is not None
    assert twice.excluded["repeats merged into their median"] == 8


def test_exclusions_are_counted() -> None:
    frame = table()
    frame.loc[(frame["num_tokens"] == 2) & (frame["moe_tp_size"] == 1), "latency"] = 1.0  # slower than 4 and 8 tokens
    frame.loc[(frame["num_tokens"] == 8) & (frame["moe_tp_size"] == 2), "latency"] = 8.9e-3  # slower than the whole width
    rows = moe.read_rows(frame, KERNEL, "trtllm")
    assert rows is not None
    assert rows.excluded["slower than a larger batch"] == 1
    assert rows.excluded["slower than a wider shard"] == 1
    assert rows.seconds.size == 6
    degenerate = table(hidden_size=7168, inter_size=2048, num_experts=256)
    assert moe.read_rows(degenerate, KERNEL, "vllm") is None
    assert moe.read_rows(degenerate, KERNEL, "trtllm") is not None  # trtllm routes those rows evenly


def test_groups_are_held_out_whole_and_fixed() -> None:
    # 45 % of groups, decided by the shape alone; two-matrix shapes (k = 22) lie on both sides.
    groups = [(128 * h, 128 * i, e, 8) for h in range(8, 40, 4) for i in range(2, 18, 4) for e in (64, 128, 256)]
    share = np.mean([moe.held_out_group(*g) for g in groups])
    assert 0.3 < share < 0.6
    ungated = [(1024, 2688, 512, 22), (4096, 2688, 512, 22), (8192, 5120, 512, 22), (2048, 5120, 512, 22), (2688, 1856, 128, 6)]
    assert {moe.held_out_group(*g) for g in ungated} == {True, False}


def test_one_shape_is_split_by_group_size() -> None:
    # (4096, 1536, 128, 8) is held out by its hash, so alone it would leave nothing to fit: half the EP sizes are fitted.
    assert moe.held_out_group(4096, 1536, 128, 8)
    rows = moe.read_rows(pd.concat([table(moe_ep_size=2**i) for i in range(7)]), KERNEL, "trtllm")
    assert rows is not None
    assert 0 < rows.held.mean() < 1
    for ep in np.unique(rows.columns["ep"]):
        assert len(set(rows.held[rows.columns["ep"] == ep].tolist())) == 1  # whole group sizes


class Tables:
    """Stands in for the measured tables: version -> rows."""

    def __init__(self, frames: dict[str, pd.DataFrame]) -> None:
        self.frames = frames

    def versions(self, family: str, file: str) -> list[str]:
        """Oldest first."""
        return list(self.frames)

    def read(self, family: str, file: str, version: str) -> pd.DataFrame:
        """One version."""
        return self.frames[version]


def test_the_newest_table_counts_only_with_enough_rows_and_shapes() -> None:
    two = pd.concat([table(), table(hidden_size=2048)])

    def pick(**frames: pd.DataFrame) -> Any:
        return moe.read_table(Tables(frames), KERNEL)  # type: ignore[arg-type]

    assert pick(v1=two, v2=two)[1] == "v2"
    assert pick(v1=two, v2=pd.concat([table(), table()]))[1] == "v1"  # as many rows, half the shapes
    assert pick(v1=two, v2=two.iloc[::3])[1] == "v1"  # all shapes, a third of the rows
    assert pick(v1=two, v2=table(kernel_source="triton"))[1] == "v1"  # none of the kernel
    assert pick(v1=table(kernel_source="triton")) is None


def test_lent_rows_are_fitted_and_own_rows_are_judged() -> None:
    given = {"activation_bits": 8.0}
    rows = truth_rows(600)
    times = [
        moe.predict(MoeParameters(launch_seconds=t, memory_efficiency=e, activation_bits=8), moe.prepare(rows), "mxfp4", GB300)[0]
        for t, e in ((1e-5, 0.9), (3e-5, 0.5))
    ]
    theirs, mine = (replace(rows, seconds=seconds) for seconds in times)
    entry = moe.Entry("mxfp4", mine, "mine", given, lent=theirs, lent_source="theirs")
    borrowed, own = entry.fit(GB300), replace(entry, lent=None).fit(GB300)
    assert borrowed is not None
    assert own is not None
    assert borrowed[0]["activation_bits"] == own[0]["activation_bits"] == 8
    assert borrowed[0]["launch_seconds"] == pytest.approx(1e-5, rel=0.1)
    assert own[0]["launch_seconds"] > 2e-5
    few = mine.take(np.arange(20))
    assert replace(entry, rows=few).fit(GB300) is not None  # the lender's rows suffice
    assert replace(entry, rows=few, lent=None).fit(GB300) is None


def test_kernels_name_the_activations_they_take() -> None:
    # MXFP4 weights: 4 + 8/32 bits. Activations: 8 + 8/32 at the FP8 rate, 16 at the BF16 rate, or as the format says.
    eight, sixteen, plain = (number_format("mxfp4", MoeParameters(activation_bits=bits), GB300) for bits in (8, 16, 0))
    assert (eight.weight_bits, eight.activation_bits, eight.math) == (4.25, 8.25, "fp8")
    assert (sixteen.weight_bits, sixteen.activation_bits, sixteen.math) == (4.25, 16, "bf16")
    assert (plain.activation_bits, plain.math) == (4.25, "nvfp4")
    with pytest.raises(InvalidValueError, match="activation_bits must be 0, 8 or 16"):
        MoeParameters(activation_bits=4)
    # 5 PFLOP/s in FP8: 8192 rows x 2 x 3 x 4096 x 4096 in 165 us; at the NVFP4 rate (15) a third of it.
    shape: dict[str, Any] = {"hidden_size": 4096, "moe_intermediate_size": 4096, "num_experts": 1, "top_k": 1}
    profile = parse_profile(
        {
            "name": "eight", "hardware": "gb300",
            "moe": {"mxfp4": {"status": "inferred", "source": "a test", "parameters": {"activation_bits": 8.0}}},
        },
        "test",
    )  # fmt: skip
    cost = moe_cost(8192, **shape, format="mxfp4", profile=profile)
    assert float(cost.math_seconds) == pytest.approx(8192 * 6 * 4096**2 / 5e15)
    assert float(moe_cost(8192, **shape, format="mxfp4", profile="ideal").math_seconds) == pytest.approx(
        float(cost.math_seconds) / 3
    )


def test_without_fp4_units_experts_are_weight_only() -> None:
    # MXFP4 has a kernel with 16-bit activations of its own; NVFP4 has none and takes INT4's (Marlin), else MXFP4's.
    for stack, nvfp4 in (("vllm", "int4_g128"), ("sglang", "int4_g128"), ("trtllm", "w4a16_mxfp4")):
        profile = load_profile(f"h200-{stack}")
        assert moe_parameters(profile, "mxfp4") == moe_parameters(profile, "w4a16_mxfp4")
        assert moe_parameters(profile, "nvfp4") == moe_parameters(profile, nvfp4)
    # 1 expert, H = I = 4096, 8192 rows at the H200's BF16 peak; the weights weigh 4.5 bits a value.
    cost = moe_cost(
        8192, hidden_size=4096, moe_intermediate_size=4096, num_experts=1, top_k=1, format="nvfp4",
        profile=load_profile("ideal", hardware="h200"),
    )  # fmt: skip
    assert float(cost.math_seconds) == pytest.approx(8192 * 6 * 4096**2 / 0.989e15, rel=1e-3)
    assert float(cost.read_bytes) == pytest.approx(3 * 4096**2 * 4.5 / 8 + 8192 * 2 * (4096 + 4096))


def test_a_wide_choice_of_experts_is_routed_outside_the_kernel() -> None:
    with_step, without = (
        moe.predict(MoeParameters(wide_topk_seconds=s), moe.prepare(wide_rows()), "nvfp4", GB300)[0] for s in (2e-5, 0.0)
    )
    np.testing.assert_allclose(with_step - without, np.where(wide_rows().columns["k"] > 10, 2e-5, 0.0), atol=1e-15)


def wide_rows() -> moe.Rows:
    """Rows of 8, 10, 11 and 22 experts a token."""
    rows = truth_rows(4)
    return replace(rows, columns={**rows.columns, "e": np.full(4, 512.0), "k": np.array([8.0, 10.0, 11.0, 22.0])})


def truth_rows(count: int = 3000) -> moe.Rows:
    """Random shapes priced by known parameters."""
    rng = np.random.default_rng(4)
    columns = {
        "tokens": np.floor(np.exp(rng.uniform(0, 9.7, count))),
        "h": 512.0 * rng.integers(2, 16, count),
        "inner": 128.0 * rng.integers(1, 16, count),
        "e": 2.0 ** rng.integers(5, 9, count),
        "k": rng.choice([4.0, 8.0], count),
        "ep": 2.0 ** rng.integers(0, 5, count),
    }
    load = rng.choice(["balanced", "power_law_1.01"], count)
    none = np.zeros(count, bool)
    return moe.Rows(columns, ~none, load, np.ones(count), none, {})


def test_fit_recovers_the_model_it_was_given() -> None:
    truth = MoeParameters(
        launch_seconds=2e-5, memory_efficiency=0.85, math_efficiency=0.5, unhidden=0.5, tile_rows_min=8, tile_rows_max=128,
        tile_seconds=5e-7, token_traffic=10.0,
    )  # fmt: skip
    rows = truth_rows()
    seconds = moe.predict(truth, moe.prepare(rows), "nvfp4", GB300)[0]
    noise = np.exp(np.random.default_rng(1).normal(0, 0.02, seconds.size))
    values, _ = moe.fit_rows(replace(rows, seconds=seconds * noise), "nvfp4", GB300)
    assert values["memory_efficiency"] == pytest.approx(0.85, rel=0.04)
    assert values["launch_seconds"] == pytest.approx(2e-5, rel=0.1)
    fitted = moe.predict(MoeParameters(**values), moe.prepare(rows), "nvfp4", GB300)[0]
    assert np.median(np.abs(fitted / seconds - 1)) < 0.01  # twenty numbers may trade places, the times may not


def test_segments_find_latency_rate_and_knee() -> None:
    # 5 us + S/(225 GB/s) to 1 MiB, then 30 us + S/(450 GB/s); the link gives 900 GB/s. 20 sizes, powers of two.
    size = np.exp2(np.arange(8, 28, dtype=np.float64))
    seconds = np.where(size <= 2**20, 5e-6 + size / 225e9, 30e-6 + size / 450e9)
    first, second = fit_segments(size, seconds, 1 / 900e9)
    assert [first.latency, first.efficiency] == pytest.approx([5e-6, 0.25], rel=1e-3)
    assert [second.latency, second.efficiency] == pytest.approx([30e-6, 0.5], rel=1e-3)
    assert 2**20 <= second.knee <= 2**21
    # One regime stays one under 2 % of noise, and no regime beats the link.
    line = (5e-6 + size / 700e9) * np.exp(np.random.default_rng(0).normal(0, 0.02, size.size))
    assert len(fit_segments(size, line, 1 / 900e9)) == 1
    assert fit_segments(size, 1e-6 + size / 2000e9, 1 / 900e9)[-1].efficiency <= 1


def test_exchange_fit_recovers_the_kernel() -> None:
    rng = np.random.default_rng(2)
    count = 400
    tokens, ranks = (np.exp2(rng.integers(*r, count).astype(np.float64)) for r in ((0, 13), (1, 5)))
    flat = np.ones(count, dtype=np.float64)
    rows = exchange.Exchanges("dispatch", tokens, ranks, flat * 7168, flat * 8, flat * 256, flat * 4032, flat, "even", "test", {})
    parameters = parse_exchange({"ranks": [2, 16], "latency_seconds": [1e-5, 2e-5], "efficiency": [0.7, 0.7]}, "test")
    rows = replace(rows, seconds=exchange.predict_exchanges(parameters, rows, GB300))
    fitted, _ = exchange.fit_exchange(rows, GB300)
    ours = exchange.predict_exchanges(parse_exchange(fitted, "test"), rows, GB300)
    assert np.quantile(np.abs(ours / rows.seconds - 1), 0.95) < 0.03


def test_send_is_half_an_exchange_of_two() -> None:
    # Two GPUs exchanging 2 S each send S: 10 us + S/(0.5 link) to a knee of 1 MB of buffer, 0.5 MB on the wire.
    table = {
        "ranks": [2, 4],
        "latency_seconds": [1e-5, 2e-5, 3e-5, 4e-5],
        "efficiency": [0.5, 0.8, 0.6, 0.9],
        "knee_bytes": [1e6, 2e6],
    }
    send = collectives.send_of(FamilyResult("collective", "all_to_all", table, "test"))
    assert send.parameters == {"ranks": [2.0], "latency_seconds": [1e-5, 2e-5], "efficiency": [0.5, 0.8], "knee_bytes": [5e5]}
    assert send.status == "inferred"


def test_wire_share_is_what_the_model_prices() -> None:
    ranks = np.array([2.0, 3.0, 4.0, 72.0])
    np.testing.assert_allclose(collectives.wire_share("default", ranks), 1)
    np.testing.assert_allclose(collectives.wire_share("all_gather", ranks), (ranks - 1) / ranks)
