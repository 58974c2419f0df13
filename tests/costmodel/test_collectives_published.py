"""Collectives against published figures where the measured tables do not reach (8 to 72 GPUs)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.collectives import all_gather_seconds, moe_combine_seconds, moe_dispatch_seconds
from shapefront.costmodel.links import collective_parameters, price
from shapefront.costmodel.profile import load_profile, profile_names

FITTED = [n for n in ("gb200-trtllm", "gb300-trtllm") if n in profile_names()]
R1: dict[str, Any] = {"hidden_size": 7168, "top_k": 8, "num_experts": 256, "load": "even"}
# TensorRT-LLM blog 18 (GB200 NVL72, one-sided all-to-all, H = 7168, k = 8, BF16): dispatch and combine, microseconds.
ONE_SIDED = {(8, 128): (31.7, 38.1), (8, 2048): (312.0, 323.0), (64, 128): (41.6, 44.5), (64, 2048): (399.0, 372.0)}
# Bus bandwidth of a 72-GPU all-reduce at 1, 2, 4, 8, 16 GB on GB300, GB/s.
BUS = [727, 806, 849, 883, 919]


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize(("ep", "tokens"), ONE_SIDED)
def test_one_sided_exchange(name: str, ep: int, tokens: int) -> None:
    dispatch, combine = ONE_SIDED[ep, tokens]
    ours = float(moe_dispatch_seconds(tokens, ep, **R1, format="bf16", profile=name)) * 1e6
    back = float(moe_combine_seconds(tokens, ep, **R1, profile=name)) * 1e6
    # Another release than the fitted table (EP 2 to 32, NVFP4 dispatch): bandwidth-bound sizes agree within 10 %,
    # the latency-bound ones within 20 % where the table reaches; at EP 64 latency is extrapolated (35 %).
    allowed = 0.1 if tokens > 1000 else 0.2 if ep <= 32 else 0.35
    assert ours == pytest.approx(dispatch, rel=allowed)
    assert back == pytest.approx(combine, rel=allowed)


@pytest.mark.parametrize("name", FITTED)
def test_narrow_dispatch(name: str) -> None:
    # Same source: NVFP4 dispatch, EP 8, 2048 tokens: 102 us.
    seconds = moe_dispatch_seconds(2048, 8, **R1, format="nvfp4", profile=name)
    assert seconds == pytest.approx(102e-6, rel=0.1)


def test_all_reduce_of_a_whole_rack() -> None:
    # NCCL's numbers of 2 and 4 GPUs, carried to 72: bus bandwidth 2 (n-1)/n S/T within 15 % at every size.
    profile = load_profile("gb300-trtllm")
    size, n = np.array([1, 2, 4, 8, 16]) * 1e9, np.array(72.0)
    p = collective_parameters(profile, "collective", "all_reduce")
    seconds = price(size, n, np.ones(1), np.zeros(1), p, profile.hardware).seconds
    np.testing.assert_allclose(2 * 71 / 72 * size / seconds / 1e9, BUS, rtol=0.15)


@pytest.mark.parametrize("name", FITTED)
def test_floors(name: str) -> None:
    # NCCL floors of 8 to 15 us at small messages on 2 and 4 GPUs.
    floors = all_gather_seconds(1024, [2, 4], profile=name) * 1e6
    assert (floors > 7.5).all()
    assert (floors < 15.5).all()
