"""Pricing only the layouts a design may use changes no figure, bit for bit."""

import numpy as np
import pytest

from shapefront.constraints.deployable import CALL_POINTS, groups, throughput_at_allowed
from shapefront.costmodel import ArchitectureBatch, Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates

RATES = [20.0, 50.0, 100.0]


def designs(count: int, seed: int) -> ArchitectureBatch:
    rng = np.random.default_rng(seed)
    base = load_model("Qwen3-30B-A3B")
    choices = {
        "hidden_size": (1536, 2048, 3072),
        "moe_intermediate_size": (256, 640, 1024),
        "num_hidden_layers": (24, 36, 50),
        "num_attention_heads": (16, 24, 40),
        "num_key_value_heads": (2, 4, 8),
        "num_experts": (48, 64, 128),
    }
    arrays = {name: rng.choice(values, count) for name, values in choices.items()}
    fixed = {"num_experts_per_tok": 8, "head_dim": 128, "vocab_size": base.vocab_size}
    return ArchitectureBatch.from_arrays(base.kind, **arrays, **{n: np.full(count, v) for n, v in fixed.items()})


@pytest.mark.parametrize("profile", ["gb300-trtllm", "gb300-blog", "ideal"])
@pytest.mark.parametrize("mode", ["decode", "disaggregated", "aggregated"])
def test_a_share_of_the_layouts_prices_like_all_of_them(profile: str, mode: str) -> None:
    layouts = enumerate_layouts([1, 2, 4, 8], moe=True, max_kvp=2)
    grid = tuple(2.0**i for i in range(13))
    setup = ServingSetup(workload=Workload(), layouts=layouts, concurrency=grid, profile=profile, mode=mode)
    batch = designs(40, seed=3)
    for share in (0.05, 0.4, 1.0):
        allowed = np.random.default_rng(int(100 * share)).random((len(batch), len(layouts))) < share
        allowed[:3] = False  # designs without a layout
        whole = throughput_at_rates(batch, setup, RATES, allowed=allowed)
        part = throughput_at_allowed(batch, setup, RATES, allowed)
        np.testing.assert_array_equal(part.tokens_per_second_per_gpu, whole.tokens_per_second_per_gpu)
        np.testing.assert_array_equal(part.layout_index, whole.layout_index)
        np.testing.assert_array_equal(part.concurrency, whole.concurrency)
        assert (part.layout_index[:3] == -1).all() and (share < 0.1 or part.tokens_per_second_per_gpu[3:].max() > 0)


def test_groups_hold_every_deployable_design_once_with_all_its_layouts() -> None:
    rng = np.random.default_rng(5)
    usable = rng.random((60, 300)) < 0.1
    usable[7] = False
    found = list(groups(usable, points=31))
    assert sorted(np.concatenate([rows for rows, _ in found]).tolist()) == [i for i in range(60) if i != 7]
    assert all((usable[rows] <= mask).all() for rows, mask in found)


def test_groups_are_joined_while_a_call_is_dearer_than_the_points_it_saves() -> None:
    usable = np.zeros((2, 200), dtype=bool)
    usable[0, :100], usable[1, 100:] = True, True
    # together 2 designs · 200 layouts instead of 2 · 100: 200 points a concurrency are wasted
    assert len(list(groups(usable, points=CALL_POINTS // 200 - 1))) == 1
    assert len(list(groups(usable, points=CALL_POINTS // 200))) == 2
    assert list(groups(np.zeros((3, 5), dtype=bool), points=4)) == []
