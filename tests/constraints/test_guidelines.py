"""The seven guidelines: what is found, what it costs, and that the fix removes it."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from shapefront.constraints.divisibility import layout_allowed
from shapefront.constraints.guidelines import RULES, Considered, Draft, Finding, Review, review, structural_drafts
from shapefront.constraints.quality import SOFT_SHAPE_LIMIT, delta_loss_shape, predicted_loss
from shapefront.costmodel import (
    Architecture,
    ArchitectureBatch,
    InvalidValueError,
    LayoutBatch,
    TensorFormats,
    Workload,
)
from shapefront.costmodel.decode import decode
from shapefront.costmodel.layout import enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.prefill import prefill
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates

RATES = (20.0, 100.0)
PROFILE = "gb300-blog"  # tiles and waves by hand: its figures do not move when a calibration does


@lru_cache
def _layouts(moe: bool) -> LayoutBatch:
    return enumerate_layouts((1, 2, 4, 8), moe=moe, max_tpa=8, max_kvp=4)


@lru_cache
def _setup(moe: bool, profile: str = PROFILE) -> ServingSetup:
    return ServingSetup(workload=Workload(), layouts=_layouts(moe), profile=profile)


@lru_cache
def _review(name: str) -> Review:
    design = load_model(name)
    return review(design, _setup(design.num_experts > 0))


def _found(name: str, rule: str, dimension: str) -> Finding:
    return next(f for f in _review(name).all if (f.id, f.dimension) == (rule, dimension))


def _drafts(design: Architecture) -> list[Draft]:
    return structural_drafts(design, Considered.of(design, _setup(design.num_experts > 0)))


ALIGNED = Architecture(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=131072,
    name="aligned",
)


def test_every_rule_has_a_stable_id_and_a_source() -> None:
    assert list(RULES) == [f"SF{i:03d}" for i in range(1, 18)]
    assert all(rule.source and rule.title and rule.help for rule in RULES.values())
    assert {rule.guideline for rule in RULES.values()} == {0, 1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize(
    ("model", "rule", "dimension", "value", "threshold"),
    [
        ("gpt-oss-20b", "SF003", "hidden_size", 2880, 128),  # 2880 = 22.5 * 128
        ("gpt-oss-20b", "SF003", "moe_intermediate_size", 2880, 128),
        ("Falcon-7B", "SF003", "hidden_size", 4544, 128),  # 35.5 * 128
        ("Phi-3-mini", "SF008", "vocab_size", 32064, 128),  # 250.5 * 128
        ("Qwen3-30B-A3B", "SF001", "moe_intermediate_size", 768, 3072),
        ("Qwen3-30B-A3B", "SF007", "moe_intermediate_size", 96, 512),  # 768 / 8
        ("Qwen3-30B-A3B", "SF006", "moe_intermediate_size", 96, 128),
        ("DeepSeek-V2-Lite", "SF007", "moe_intermediate_size", 176, 512),  # 1408 / 8
        ("DeepSeek-V2-Lite", "SF003", "kv_lora_rank", 576, 128),  # 512 + 64 = 4.5 * 128
        ("Qwen3-30B-A3B", "SF009", "num_hidden_layers", 2048 / 48, 119.5),
    ],
)
def test_the_known_warts_are_found(model: str, rule: str, dimension: str, value: float, threshold: float) -> None:
    finding = _found(model, rule, dimension)
    assert finding.value == pytest.approx(value)
    assert finding.threshold == pytest.approx(threshold, abs=0.05)
    assert finding.source and finding.message


def test_small_shards_of_deepseek_v3_under_tensor_parallelism() -> None:
    design = load_model("DeepSeek-V3")
    setup = ServingSetup(workload=Workload(), layouts=enumerate_layouts((8, 16), moe=True, max_tpa=8))
    drafts = structural_drafts(design, Considered.of(design, setup))
    shard = next(d for d in drafts if d.id == "SF007")
    assert (shard.value, shard.threshold) == (256, 512)  # 2048 / 8
    assert shard.fix == {"moe_intermediate_size": 4096, "num_experts": 128, "num_experts_per_tok": 4}


def test_an_aligned_design_in_the_bands_has_no_alignment_finding() -> None:
    found = review(ALIGNED, _setup(False))
    assert [f for f in found.all if f.guideline in (1, 2)] == []
    assert not [f for f in found.all if f.id == "SF010"]


def test_a_clean_design_is_clean() -> None:
    # at the edge of the depth band too: H/L = 4096/33 = 124
    found = review(ALIGNED.with_(num_hidden_layers=32), _setup(False))
    assert found.findings == ()


def test_an_odd_head_size_is_mended_itself() -> None:
    # 40*125 = 5000 = 39.06 * 128; 40*s is a multiple of 128 where 16 divides s: 112 or 128, and 128 is nearer. More heads of 125
    # would have to be a multiple of 128 (125 is odd): 128 heads, a model 40 % larger
    odd = ALIGNED.with_(num_attention_heads=40, num_key_value_heads=8, head_dim=125)
    [draft] = [d for d in _drafts(odd) if d.id == "SF003"]
    assert (draft.dimension, draft.value, draft.fix) == ("head_dim", 5000, {"head_dim": 128})
    assert "serving kernels may refuse it" in draft.note
    even = ALIGNED.with_(num_attention_heads=40, num_key_value_heads=8, head_dim=80)  # 3200 = 25 * 128, not of 256
    [draft] = [d for d in _drafts(even) if d.id == "SF004" and "heads" in d.message]
    assert draft.dimension == "num_attention_heads"


@pytest.mark.parametrize(
    ("size", "multiple", "rule"), [(4160, 128, "SF003"), (4224, 256, "SF004"), (4352, 512, "SF005"), (4608, 0, "")]
)
def test_levels_of_alignment(size: int, multiple: int, rule: str) -> None:
    # 4160 = 32.5*128, 4224 = 16.5*256, 4352 = 8.5*512, 4608 = 9*512
    found = [d for d in _drafts(ALIGNED.with_(hidden_size=size)) if d.dimension == "hidden_size"]
    assert [(d.id, d.threshold) for d in found] == ([(rule, multiple)] if rule else [])
    if found:
        assert found[0].fixed is not None
        assert found[0].fixed.hidden_size % multiple == 0
        assert abs(found[0].fixed.hidden_size - size) <= multiple / 2


def test_no_tiles_no_alignment_cost() -> None:
    # under the pure roofline time is linear in every width, so a width between two multiples costs nothing beyond its size
    design = ALIGNED.with_(hidden_size=4160, intermediate_size=12352)
    for finding in review(design, _setup(False, "ideal")).all:
        if finding.id in ("SF003", "SF004", "SF005"):
            assert finding.cost_share == pytest.approx(0.0, abs=2e-5)


def test_cost_by_hand() -> None:
    # H = 2880 between 2816 and 2944 (weight one half): cost = 1 - (t(2816) + t(2944))/2 / t(2880) at the best point of each rate
    found = _review("gpt-oss-20b")
    finding = _found("gpt-oss-20b", "SF003", "hidden_size")
    for point, cost in zip(found.points, (finding.cost_share_throughput, finding.cost_share_latency), strict=True):
        assert point is not None
        designs = [found.design.with_(hidden_size=h) for h in (2816, 2944, 2880)]
        batch = ArchitectureBatch.from_architectures(designs)
        context = Workload().decode_context
        step = decode(batch, point.layout, point.concurrency, context=context, profile=PROFILE)
        low, high, own = step.seconds[:, 0, 0]
        assert cost == pytest.approx(1 - (low + high) / 2 / own, abs=1e-12)


def test_prefill_shows_what_decode_hides() -> None:
    # a prompt of 8192 tokens is compute-bound: H = 2880 costs whole tiles there, next to nothing in a decode step
    finding = _found("gpt-oss-20b", "SF003", "hidden_size")
    point = _review("gpt-oss-20b").points[0]
    assert point is not None and finding.cost_share_prefill is not None
    design = load_model("gpt-oss-20b")
    low, high, own = (
        float(prefill(design.with_(hidden_size=h), point.layout, input_tokens=8192, profile=PROFILE).chunk_seconds.sum())
        for h in (2816, 2944, 2880)
    )
    assert finding.cost_share_prefill == pytest.approx(1 - (low + high) / 2 / own, abs=1e-12)
    assert finding.cost_share_prefill > finding.cost_share


def test_merging_experts_keeps_total_and_active() -> None:
    drafts = _drafts(load_model("Qwen3-30B-A3B"))
    fix = dict(next(d.fix for d in drafts if (d.id, d.dimension) == ("SF001", "moe_intermediate_size")))
    assert fix == {"moe_intermediate_size": 3072, "num_experts": 32, "num_experts_per_tok": 2}
    design, fixed = load_model("Qwen3-30B-A3B"), load_model("Qwen3-30B-A3B").with_(**fix)
    router = 48 * (128 - 32) * 2048
    assert design.total_params - fixed.total_params == router
    assert design.active_params - fixed.active_params == router


def test_a_fix_outside_the_guard_or_slower_is_not_offered() -> None:
    # 32 experts of 2880, top-4, merged to 16 of 5760, top-2: the MoE law adds more than the guard's 0.010 nats/token
    found = _found("gpt-oss-20b", "SF001", "moe_intermediate_size")
    merged = load_model("gpt-oss-20b").with_(moe_intermediate_size=5760, num_experts=16, num_experts_per_tok=2)
    assert float(predicted_loss(merged)[0] - predicted_loss(load_model("gpt-oss-20b"))[0]) > SOFT_SHAPE_LIMIT
    assert (found.level, found.fix, found.gain_throughput) == ("information", {}, None)
    assert "no fix offered" in found.note and "16" in found.note and "more than 0.01 nats/token" in found.note
    lifted = review(load_model("gpt-oss-20b"), _setup(True), max_delta_loss_shape=math.inf)
    again = next(f for f in lifted.all if (f.id, f.dimension) == ("SF001", "moe_intermediate_size"))
    assert again.fix == {"moe_intermediate_size": 5760, "num_experts": 16, "num_experts_per_tok": 2}


@pytest.mark.parametrize("model", ["gpt-oss-20b", "Qwen3-30B-A3B"])
def test_no_offered_fix_is_slower_at_every_rate(model: str) -> None:
    for finding in _review(model).all:
        gains = [g for g in (finding.gain_throughput, finding.gain_latency) if g is not None]
        assert not gains or max(gains) >= 0, finding
        if finding.level == "finding" and "no fix" in finding.note:
            pytest.fail(f"{finding.id} has no acceptable fix, so it is information")


def test_going_wider_keeps_size_and_guard() -> None:
    finding = _found("Qwen3-30B-A3B", "SF009", "num_hidden_layers")
    design = load_model("Qwen3-30B-A3B")
    fixed = design.with_(**finding.fix)
    for name in ("total_params", "active_params"):
        assert abs(getattr(fixed, name) / getattr(design, name) - 1) <= 0.01
    assert float(delta_loss_shape(fixed.hidden_size, fixed.num_hidden_layers)) <= SOFT_SHAPE_LIMIT
    assert fixed.num_experts / fixed.num_experts_per_tok <= 16
    assert fixed.num_key_value_heads * fixed.head_dim == 512
    assert 0.9 * 119.5 <= fixed.hidden_size / fixed.num_hidden_layers <= 119.51


def test_precision_is_priced_by_class() -> None:
    design = load_model("Llama-3.1-8B")
    formats = TensorFormats(ffn="bf16", kv="bf16")
    setup = _setup(False, "ideal").with_(formats=formats, workload=Workload(input_tokens=1024))
    found = {f.dimension: f for f in review(design, setup).all if f.id == "SF011"}
    assert set(found) == {"formats.ffn", "formats.lm_head", "formats.kv"}
    assert found["formats.ffn"].fix == {"formats.ffn": "nvfp4"}
    assert found["formats.ffn"].level == "finding"
    assert found["formats.lm_head"].level == "information"  # a deployment's convention, shown with its price
    assert found["formats.kv"].cost_share > found["formats.ffn"].cost_share  # many sequences: the cache is the larger read


def test_uneven_profiles_say_so() -> None:
    # the post's profile has tiles for NVFP4 only: BF16 beside it is the bare roofline, and the finding says so
    notes = {profile: _note(profile) for profile in ("ideal", "gb300-blog")}
    assert "roofline" not in notes["ideal"] and "roofline" in notes["gb300-blog"]


def _note(profile: str) -> str:
    return next(f.note for f in review(load_model("Llama-3.1-8B"), _setup(False, profile)).all if f.id == "SF011")


def test_routing_costs_and_is_information() -> None:
    finding = _found("Qwen3-30B-A3B", "SF014", "workload.load")
    assert finding.level == "information" and finding.cost_share > 0


def test_pipeline_and_pattern() -> None:
    drafts = {(d.id, d.dimension): d for d in _drafts(load_model("DeepSeek-V3"))}
    assert drafts["SF015", "num_hidden_layers"].fix == {"num_hidden_layers": 60}  # 61 over four stages: 16, 15, 15, 15
    assert drafts["SF016", "first_k_dense_replace"].value == 3
    assert ("SF016", "num_sliding_window_layers") in {(d.id, d.dimension) for d in _drafts(load_model("Gemma-3-27B"))}
    assert not [d for d in _drafts(load_model("gpt-oss-20b")) if d.id == "SF016"]  # every other layer: regular


def test_findings_are_sorted_and_split_by_the_threshold() -> None:
    found = _review("Qwen3-30B-A3B")
    assert all(f.cost_share >= 0.005 for f in found.findings)
    for part in (found.findings, found.information):
        shares = [f.cost_share for f in part]
        assert shares == sorted(shares, reverse=True)


def test_a_rate_out_of_reach_has_no_price() -> None:
    design = load_model("Llama-3.1-70B")
    setup = ServingSetup(workload=Workload(), layouts=enumerate_layouts((1,), moe=False))
    found = review(design, setup, rates=(20, 5000))
    assert found.points[1] is None and found.points[0] is not None
    assert all(f.cost_share_latency is None for f in found.all)


@pytest.mark.parametrize("rates", [(20,), (0, 100), (20, float("nan")), (20, float("inf"))])
def test_bad_rates(rates: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValueError, match="rates must be two positive numbers"):
        review(ALIGNED, _setup(False), rates=rates)


def test_a_model_that_fits_nowhere_says_what_it_needs() -> None:
    setup = ServingSetup(workload=Workload(), layouts=enumerate_layouts((1,), moe=True))
    with pytest.raises(InvalidValueError, match="GPU"):
        review(load_model("DeepSeek-V3"), setup)


def random_design(rng: np.random.Generator) -> Architecture:
    """A plausible design with every kind of wart: sizes on a lattice of 64, odd head counts, uneven experts."""
    hidden = int(rng.integers(12, 130)) * 64
    size = int(rng.choice([64, 80, 96, 128, 256]))
    kv = int(rng.choice([1, 2, 4, 8]))
    heads = kv * max(1, round(hidden / size / kv))
    layers = int(np.clip(hidden / rng.uniform(30, 180), 4, 120))
    common: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": size,
        "vocab_size": int(rng.integers(30_000, 200_000)),
    }
    if rng.random() < 0.5:
        return Architecture(**common, intermediate_size=int(rng.integers(hidden // 64, 8 * hidden // 64)) * 64)
    k = int(rng.integers(1, 9))
    shared = int(rng.integers(0, 2))
    leading = int(rng.integers(0, 3))
    width = max(64, int(hidden * rng.uniform(2, 5) / k / 64) * 64)
    return Architecture(
        **common,
        num_experts=int(k * rng.integers(4, 32)),
        num_experts_per_tok=k,
        moe_intermediate_size=width,
        n_shared_experts=shared,
        first_k_dense_replace=leading,
        intermediate_size=(k + shared) * width if leading else 0,
    )


COUNTS = [40, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
def test_the_fix_removes_the_departure_of_random_designs(count: int) -> None:
    rng = np.random.default_rng(5)
    seen: dict[str, int] = {}
    for _ in range(count):
        design = random_design(rng)
        for draft in _drafts(design):
            if draft.fixed is None:
                continue
            seen[draft.id] = seen.get(draft.id, 0) + 1
            assert draft.fix, draft
            assert {name: getattr(draft.fixed, name) for name in draft.fix} == dict(draft.fix)
            left = {(d.id, d.dimension) for d in _drafts(draft.fixed)}
            assert (draft.id, draft.dimension) not in left, (draft, design)
    if count >= 1000:
        assert set(seen) >= {f"SF{i:03d}" for i in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15)}, seen


@pytest.mark.parametrize("count", COUNTS)
def test_the_predicted_gain_is_what_a_fresh_estimate_gives(count: int) -> None:
    rng = np.random.default_rng(6)
    small = {
        moe: _setup(moe, "ideal").with_(layouts=enumerate_layouts((8,), moe=moe, max_tpa=2), concurrency=(1, 8, 64, 256, 1024))
        for moe in (False, True)
    }
    checked = 0
    for _ in range(count):
        design = random_design(rng)
        setup = small[design.num_experts > 0]
        try:
            found = review(design, setup)
        except InvalidValueError:
            continue  # no layout serves it
        with_fix = [f for f in found.all if f.fix and not any("." in name for name in f.fix)]
        if not with_fix:
            continue
        finding = with_fix[int(rng.integers(len(with_fix)))]
        moved = design.with_(**finding.fix)
        fresh = []
        for one in (design, moved):
            batch = ArchitectureBatch.from_architectures([one])
            allowed = layout_allowed(batch, setup.layouts)
            fresh.append(throughput_at_rates(batch, setup, RATES, allowed=allowed).tokens_per_second_per_gpu[0])
        for i, gain in enumerate((finding.gain_throughput, finding.gain_latency)):
            if gain is not None:
                assert gain == pytest.approx(fresh[1][i] / fresh[0][i] - 1, rel=1e-9, abs=1e-9)
                checked += 1
    assert checked > count
