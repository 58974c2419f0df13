"""Laws of the collectives, on 100,000 random messages per shipped profile: above the roofline, rising with size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import collectives
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
