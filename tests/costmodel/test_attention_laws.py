"""Laws of the attention and MLA kernels in serving mode, on 100,000 random shapes per shipped profile and kernel.

Never below the ideal roofline, never above the peak, finite and positive, non-decreasing in batch, tokens and heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shapefront.costmodel.attention import attention_decode_seconds, attention_prefill_seconds
from shapefront.costmodel.mla import mla_decode_seconds, mla_prefill_seconds
from shapefront.costmodel.profile import load_profile, profile_names

# Every shipped profile; those beyond GB300 repeat the same code with near-equal numbers.
PROFILES = [
    pytest.param(name, marks=[] if name.startswith("gb300") else pytest.mark.slow)
    for name in profile_names()
    if load_profile(name).families["attention_decode"]
]
COUNT = 100_000
Shapes = dict[str, NDArray[Any]]


def whole(rng: np.random.Generator, low: float, high: float) -> NDArray[np.float64]:
    """Log-uniform whole numbers."""
    return np.floor(np.exp(rng.uniform(np.log(low), np.log(high + 1), COUNT)))


def random_shapes(rng: np.random.Generator, kernel: str) -> Shapes:
    """Shapes from one token to a million, one head to thousands."""
    shapes: Shapes = {"batch": whole(rng, 1, 4096)}
    if kernel.endswith("prefill"):
        shapes |= {"new_tokens": whole(rng, 1, 1e5), "past_tokens": np.where(rng.random(COUNT) < 0.5, 0, whole(rng, 1, 1e6))}
    else:
        shapes |= {"context": whole(rng, 1, 1e6)}
    if kernel.startswith("mla"):
        shapes |= {"heads": whole(rng, 1, 256), "kv_lora_rank": whole(rng, 128, 1024), "qk_rope_head_dim": whole(rng, 1, 128)}
        if kernel == "mla_prefill":
            shapes |= {"qk_nope_head_dim": whole(rng, 32, 256), "v_head_dim": whole(rng, 32, 256)}
        return shapes
    kv = whole(rng, 1, 128)
    window = np.where(rng.random(COUNT) < 0.5, 0, whole(rng, 16, 1e5))
    return shapes | {"kv_heads": kv, "heads": kv * whole(rng, 1, 256), "head_dim": whole(rng, 16, 1024), "window": window}


KERNELS: dict[str, tuple[Callable[..., NDArray[np.float64]], list[dict[str, str]]]] = {
    "attention_prefill": (
        attention_prefill_seconds,
        [{"format": f, "kv_format": k} for f in ("bf16", "fp8") for k in ("bf16", "fp8")],
    ),
    "attention_decode": (attention_decode_seconds, [{"kv_format": "bf16"}, {"kv_format": "fp8"}]),
    "mla_prefill": (mla_prefill_seconds, [{"format": "bf16", "kv_format": "bf16"}, {"format": "bf16", "kv_format": "fp8"}]),
    "mla_decode": (mla_decode_seconds, [{"kv_format": "bf16"}, {"kv_format": "fp8"}]),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", PROFILES)
def test_laws(name: str, kernel: str) -> None:
    rng = np.random.default_rng(11)
    function, formats = KERNELS[kernel]
    profile = load_profile(name)
    ideal = load_profile("ideal", hardware=profile.hardware.name)
    shapes = random_shapes(rng, kernel)
    for number_format in formats:
        seconds = function(**shapes, **number_format, profile=profile)
        assert seconds.shape == (COUNT,)
        assert np.isfinite(seconds).all() and (seconds > 0).all()
        # The ideal roofline bounds every resource's utilisation by 1.
        assert (seconds >= function(**shapes, **number_format, profile=ideal) * (1 - 1e-12)).all()
        for axis in ("batch", "new_tokens", "past_tokens", "context", "heads"):
            if axis not in shapes:
                continue
            more = shapes[axis] + (whole(rng, 1, 64) if axis != "heads" else shapes.get("kv_heads", 1.0) * whole(rng, 1, 16))
            larger = function(**(shapes | {axis: more}), **number_format, profile=profile)
            same = np.ones(COUNT, dtype=bool)
            if kernel == "mla_decode" and axis == "heads":  # the named switch from narrow to wide blocks
                same = (shapes[axis] <= 32) == (more <= 32)
            if (
                kernel == "attention_decode"
                and axis == "heads"
                and f"{number_format['kv_format']}:mha" in profile.families[kernel]
            ):
                same = (shapes["heads"] > shapes["kv_heads"]) | (more == shapes["kv_heads"])  # the named switch from MHA to GQA
            fell = same & (larger < seconds * (1 - 1e-9))
            assert not fell.any(), (
                axis,
                {key: value[fell][0] for key, value in shapes.items()},
                seconds[fell][0],
                larger[fell][0],
            )


@pytest.mark.parametrize("name", PROFILES)
def test_decode_is_continuous_in_its_context(name: str) -> None:
    """One more key changes the time by less than 5 %: no cliffs between the sizes that were measured."""
    context = np.arange(1, 40_000)
    for batch in (1, 7, 150, 153, 2000):
        seconds = attention_decode_seconds(batch, context, heads=32, kv_heads=8, head_dim=128, profile=name)
        assert np.max(seconds[1:] / seconds[:-1]) < 1.05
