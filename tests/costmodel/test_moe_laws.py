"""Laws of the expert GEMM in serving mode, on 100,000 random shapes per shipped profile, format and kernel.

Never below the ideal roofline, never above the peak, finite and positive, non-decreasing in tokens, H and width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shapefront.costmodel.formats import get_format
from shapefront.costmodel.moe import moe_cost, moe_seconds
from shapefront.costmodel.profile import load_profile, profile_names

COUNT = 100_000
# Every shipped entry; profiles beyond GB300 repeat the same code with near-equal numbers.
ENTRIES = [
    pytest.param(name, entry, marks=[] if name.startswith("gb300") else pytest.mark.slow, id=f"{name}-{entry}")
    for name in profile_names()
    for entry in load_profile(name).families["moe"]
]
Shapes = dict[str, Any]


def whole(rng: np.random.Generator, low: float, high: float) -> Any:
    """Log-uniform whole numbers."""
    return np.floor(np.exp(rng.uniform(np.log(low), np.log(high + 1), COUNT)))


def random_shapes(seed: int) -> Shapes:
    """One token to a million, one expert to a thousand, any top-k, ranks that divide the experts."""
    rng = np.random.default_rng(seed)
    local, ep = whole(rng, 1, 32), 2 ** rng.integers(0, 8, COUNT)
    experts = local * ep
    return {
        "tokens": whole(rng, 1, 1e6),
        "hidden_size": whole(rng, 64, 32768),
        "moe_intermediate_size": whole(rng, 64, 32768),
        "num_experts": experts,
        "top_k": np.minimum(whole(rng, 1, 32), experts),
        "ep": ep,
    }


@pytest.mark.parametrize(("name", "entry"), ENTRIES)
def test_laws(name: str, entry: str) -> None:
    number, _, variant = entry.partition(":")
    profile = load_profile(name)
    fixed: dict[str, Any] = {"format": number, "kernel": variant or None, "profile": profile}
    shapes = random_shapes(len(entry))
    ideal = load_profile("ideal", hardware=profile.hardware.name)
    for load in ("balanced", "power_law_1.01", 1.3):
        cost = moe_cost(**shapes, **fixed, load=load)
        assert np.isfinite(cost.seconds).all()
        roofline = moe_seconds(**shapes, format=number, load=load, profile=ideal)
        assert (roofline > 0).all()
        assert (cost.seconds >= roofline * (1 - 1e-12)).all()
        peak = profile.hardware.peak_flop_per_second(get_format(number).math)
        assert (cost.flop / (cost.seconds * peak) <= 1 + 1e-12).all()
        # Serving reads weights from HBM: never below the benchmark loop's warm cache.
        assert (cost.seconds >= moe_seconds(**shapes, **fixed, load=load, warm_l2=True) * (1 - 1e-12)).all()
    rng = np.random.default_rng(1)
    for grown in ("tokens", "hidden_size", "moe_intermediate_size"):
        more = dict(shapes)
        more[grown] = np.ceil(shapes[grown] * rng.uniform(1, 1.5, COUNT))
        for load in ("balanced", 1.3):
            before, after = (moe_seconds(**s, **fixed, load=load) for s in (shapes, more))
            assert (after >= before * (1 - 1e-9)).all(), (grown, load)


@pytest.mark.parametrize("name", [p for p in profile_names() if p.startswith("gb300") and load_profile(p).families["moe"]])
def test_time_is_continuous_in_tokens_but_for_the_named_step(name: str) -> None:
    # One more token changes a step of 1000 tokens by well under 5 %, except at `step_tokens` (another routing kernel).
    tokens = np.arange(100, 4000)
    profile = load_profile(name)
    seconds = moe_seconds(
        tokens, hidden_size=4096, moe_intermediate_size=1536, num_experts=128, top_k=8, format="nvfp4", profile=profile
    )
    jumps = np.flatnonzero(np.diff(seconds) / seconds[:-1] > 0.02)
    step = profile.family("moe", "nvfp4").parameters.get("step_tokens", 256)
    assert set(tokens[jumps]) <= {step}
