"""Laws of the collectives, on 100,000 random messages per shipped profile: above the roofline, rising with size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import collectives
from shapefront.costmodel.collectives import (
    all_gather_cost,
    all_gather_seconds,
    all_reduce_cost,
    all_reduce_seconds,
    all_to_all_cost,
    all_to_all_seconds,
)
from shapefront.costmodel.profile import load_profile, profile_names

COUNT = 100_000
NAMES = [n for n in profile_names() if load_profile(n).families["all_reduce"]]
OPERATIONS = ("all_reduce_seconds", "all_gather_seconds", "reduce_scatter_seconds", "all_to_all_seconds")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_collective_laws(name: str, operation: str) -> None:
    rng = np.random.default_rng(2)
    price = getattr(collectives, operation)
    profile = load_profile(name)
    ideal = load_profile("ideal", hardware=profile.hardware.name)
    size, ranks = np.exp(rng.uniform(0, np.log(1e11), COUNT)), rng.integers(1, 300, COUNT)
    seconds = price(size, ranks, profile=profile)
    assert np.isfinite(seconds).all()
    assert (seconds[ranks == 1] == 0).all()
    assert (seconds[ranks > 1] > 0).all()
    assert (seconds >= price(size, ranks, profile=ideal) * (1 - 1e-12)).all()
    assert (price(size * rng.uniform(1, 3, COUNT), ranks, profile=profile) >= seconds * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", NAMES)
def test_exchange_laws(name: str) -> None:
    rng = np.random.default_rng(3)
    profile = load_profile(name)
    ideal = load_profile("ideal", hardware=profile.hardware.name)
    experts = 2.0 ** rng.integers(3, 10, COUNT)
    shape: dict[str, Any] = {
        "hidden_size": 128 * rng.integers(4, 128, COUNT),
        "top_k": np.minimum(rng.integers(1, 23, COUNT), experts),
        "num_experts": experts,
    }
    tokens, ep = np.floor(np.exp(rng.uniform(0, np.log(1e6), COUNT))), np.minimum(2.0 ** rng.integers(0, 9, COUNT), experts)
    for entry in profile.families["all_to_all"]:
        phase, _, kernel = entry.partition(":")
        price = collectives.moe_dispatch_seconds if phase == "dispatch" else collectives.moe_combine_seconds
        fixed: dict[str, Any] = {"format": "bf16", **shape}
        seconds = price(tokens, ep, **fixed, kernel=kernel or None, profile=profile)
        assert np.isfinite(seconds).all()
        assert (seconds[ep == 1] == 0).all()
        assert (seconds >= price(tokens, ep, **fixed, profile=ideal) * (1 - 1e-12)).all()
        more = price(np.ceil(tokens * rng.uniform(1, 3, COUNT)), ep, **fixed, kernel=kernel or None, profile=profile)
        assert (more >= seconds * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", profile_names())
def test_seconds_are_the_cost_and_parts_sum_to_it(name: str) -> None:
    """Group sizes kept in a table, and larger or fractional ones interpolated anew, give the same."""
    rng = np.random.default_rng(5)
    size = 10.0 ** rng.uniform(0, 10, (50, 1))
    for ranks in (np.array([1.0, 2, 3, 8, 16, 64, 72, 100]), np.array([1.0, 2, 3, 8, 16, 64, 72, 200]), np.array([1.0, 2.5, 8])):
        for seconds, cost in (
            (all_reduce_seconds, all_reduce_cost), (all_gather_seconds, all_gather_cost), (all_to_all_seconds, all_to_all_cost)
        ):  # fmt: skip
            found, whole = seconds(size, ranks, profile=name), cost(size, ranks, profile=name)
            np.testing.assert_array_equal(found, whole.seconds)
            parts = whole.latency_seconds + whole.scale_up_seconds + whole.scale_out_seconds
            np.testing.assert_allclose(parts, found, rtol=1e-12, atol=1e-18)
    together = all_reduce_seconds(size, np.array([2.0, 8, 200]), profile=name)[:, :2]
    np.testing.assert_allclose(all_reduce_seconds(size, np.array([2.0, 8]), profile=name), together, rtol=1e-12)
