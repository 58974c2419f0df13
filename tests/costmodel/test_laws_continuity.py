"""Laws of every kernel of the GB300 profiles in serving mode, 100,000 random shapes each: no jump but the named ones.

The roofline, peak and growth laws of GEMM, attention, MLA, experts and collectives stand with their families
(``test_gemm``, ``test_*_laws``); here: continuity of each over random shapes, and the batched products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shapefront.costmodel import attention, collectives, gemm, mla, moe
from shapefront.costmodel.formats import get_format
from shapefront.costmodel.links import collective_parameters
from shapefront.costmodel.profile import load_profile

COUNT = 100_000
PROFILES = ["gb300-trtllm", "gb300-sglang", "gb300-vllm"]
JUMP = 1.05  # one more token, key or column, from 64 up (where one step is under 2 % of the size)
Floats = NDArray[np.float64]


def whole(rng: np.random.Generator, low: float, high: float, multiple: int = 1) -> Floats:
    """Log-uniform whole numbers, multiples of ``multiple``."""
    return multiple * np.floor(np.exp(rng.uniform(np.log(low / multiple), np.log(high / multiple + 1), COUNT)))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("format", ["bf16", "fp8"])
def test_batched_products(name: str, format: str) -> None:
    rng = np.random.default_rng(5)
    batch, m = whole(rng, 1, 256), whole(rng, 1, 1e6)
    n, k = np.floor(np.exp(rng.uniform(0, np.log(262_144), (2, COUNT))))
    math_format = gemm.batched_format(load_profile(name), format)
    seconds = gemm.bmm_seconds(batch, m, n, k, format=format, profile=name)
    ideal = load_profile("ideal", hardware="gb300")
    assert np.isfinite(seconds).all() and (seconds > 0).all()
    assert (seconds >= gemm.bmm_seconds(batch, m, n, k, format=math_format, profile=ideal) * (1 - 1e-9)).all()
    peak = ideal.hardware.peak_flop_per_second(get_format(math_format).math)
    assert (2 * batch * m * n * k / (seconds * peak) <= 1 + 1e-9).all()
    for grown in ((batch + 1, m, n, k), (batch, m + 7, n, k), (batch, m, n + 7, k), (batch, m, n, k + 7)):
        assert (gemm.bmm_seconds(*grown, format=format, profile=name) >= seconds * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("format", ["nvfp4", "fp8", "bf16"])
def test_gemm_is_continuous_in_n_inside_a_tile(name: str, format: str) -> None:
    rng = np.random.default_rng(6)
    m, (n, k) = whole(rng, 1, 1e6), (whole(rng, 64, 262_144) for _ in range(2))
    tiles = gemm.gemm_parameters(name, format).tiles
    inside = np.all([n % columns != 0 for tile in tiles for columns in (tile.tile_n, tile.columns)], axis=0)
    assert inside.sum() > COUNT // 2
    m, n, k = m[inside], n[inside], k[inside]
    before, after = (gemm.gemm_seconds(m, x, k, format=format, profile=name) for x in (n, n + 1))
    assert (after <= JUMP * before).all()


Case = tuple[Callable[..., Floats], str, dict[str, Any]]


def attention_case(kernel: str, rng: np.random.Generator) -> Case:
    """Function, the size that grows by one, and random shapes."""
    batch, past = whole(rng, 1, 4096), np.where(rng.random(COUNT) < 0.5, 0, whole(rng, 1, 1e5))
    tokens, context, heads = whole(rng, 128, 1e5), whole(rng, 64, 1e6), whole(rng, 1, 128)
    latent = {"kv_lora_rank": 128 * whole(rng, 1, 8), "qk_rope_head_dim": 64}
    if kernel == "mla_prefill":
        shape = {"past_tokens": past, "heads": heads, "qk_nope_head_dim": 128, "v_head_dim": 128, **latent}
        return mla.mla_prefill_seconds, "new_tokens", {"batch": batch, "new_tokens": tokens, **shape}
    if kernel == "mla_decode":
        return mla.mla_decode_seconds, "context", {"batch": batch, "context": context, "heads": heads, **latent}
    kv = whole(rng, 1, 16)
    window = np.where(rng.random(COUNT) < 0.5, 0, whole(rng, 128, 1e5))
    shape = {"kv_heads": kv, "heads": kv * whole(rng, 1, 16), "head_dim": 64 * whole(rng, 1, 4), "window": window}
    if kernel == "attention_decode":
        return attention.attention_decode_seconds, "context", {"batch": batch, "context": context, **shape}
    return attention.attention_prefill_seconds, "new_tokens", {"batch": batch, "new_tokens": tokens, "past_tokens": past, **shape}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("kernel", ["attention_prefill", "attention_decode", "mla_prefill", "mla_decode"])
def test_attention_is_continuous_in_its_tokens(name: str, kernel: str) -> None:
    function, grows, shape = attention_case(kernel, np.random.default_rng(7))
    if grows == "new_tokens":  # a new query tile is one tile's quantisation, as in a GEMM
        shape["new_tokens"] = np.where(shape["new_tokens"] % 128 == 0, shape["new_tokens"] + 1, shape["new_tokens"])
    more = shape | {grows: shape[grows] + 1}
    before, after = (function(**s, kv_format="fp8", profile=name) for s in (shape, more))
    assert (after >= before * (1 - 1e-9)).all()
    assert (after <= JUMP * before).all(), np.max(after / before)


@pytest.mark.parametrize("name", PROFILES)
def test_experts_are_continuous_in_tokens_but_for_the_named_step(name: str) -> None:
    rng = np.random.default_rng(8)
    profile = load_profile(name)
    local, ep = whole(rng, 1, 64), 2.0 ** rng.integers(0, 6, COUNT)
    shape: dict[str, Any] = {
        "hidden_size": whole(rng, 512, 16_384, 128),
        "moe_intermediate_size": whole(rng, 256, 16_384, 128),
        "num_experts": local * ep,
        "top_k": np.minimum(whole(rng, 1, 16), local * ep),
        "ep": ep,
    }
    for entry, fit in profile.families["moe"].items():
        number, _, kernel = entry.partition(":")
        fixed: dict[str, Any] = {"format": number, "kernel": kernel or None, "profile": profile}
        tokens = whole(rng, 64, 1e6)
        before, after = (moe.moe_seconds(t, **shape, **fixed) for t in (tokens, tokens + 1))
        # The named step: another routing kernel past step_tokens, of the group or (local_tokens) of those on the rank.
        at_step = (tokens == fit.parameters.get("step_tokens", 256.0)) | bool(fit.parameters.get("local_tokens", 0.0))
        step = np.where(at_step, fit.parameters.get("step_seconds", 0.0), 0.0)
        assert (after <= JUMP * before + step).all(), (entry, np.max(after / before))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_collectives_are_continuous_but_at_the_knees(name: str, operation: str) -> None:
    rng = np.random.default_rng(9)
    profile = load_profile(name)
    size, ranks = np.exp(rng.uniform(np.log(64), np.log(1e10), COUNT)), rng.integers(2, 300, COUNT)
    family, entry = ("all_reduce", "default") if operation == "all_reduce" else ("collective", operation)
    parameters = collective_parameters(profile, family, entry)
    inside = np.minimum(ranks, profile.hardware.scale_up_gpus)
    knees = np.stack([parameters.knee(regime, inside) for regime in range(1, parameters.regimes)])
    more = size * 1.01
    smooth = ~((size <= knees) & (knees < more)).any(axis=0)
    assert smooth.mean() > 0.9
    price = getattr(collectives, f"{operation}_seconds")
    before, after = price(size, ranks, profile=profile), price(more, ranks, profile=profile)
    assert (after[smooth] <= JUMP * before[smooth]).all()
