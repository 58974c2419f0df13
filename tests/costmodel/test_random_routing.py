"""The most loaded rank under uniform random routing: by hand, in its limits, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, UnknownKeyError, Workload, decode
from shapefront.costmodel.models import load_model
from shapefront.costmodel.moe import imbalance_factor, moe_seconds
from shapefront.costmodel.random_routing import largest_normal, most_loaded_rows

FEW, MANY = 0.07, 0.022  # largest relative error seen against simulation: mean rows of a rank below and above 3


def simulated(tokens: int, experts: int, top_k: int, ranks: int, draws: int) -> tuple[float, float]:
    """Mean and standard error of the most loaded rank's rows: every token draws ``top_k`` distinct experts."""
    rng, local = np.random.default_rng([tokens, experts, top_k, ranks]), experts // ranks
    found = np.empty(draws)
    for draw in range(draws):
        rows = rng.multivariate_hypergeometric([local] * ranks, top_k, size=tokens, method="marginals").sum(axis=0)
        found[draw] = rows.max()
    return float(found.mean()), float(found.std() / math.sqrt(draws))


@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 1), (8, 2), (64, 1), (64, 8), (128, 8), (256, 8), (512, 2), (512, 16)])
def test_against_simulation(experts: int, top_k: int, ranks: int) -> None:
    if ranks > experts:
        pytest.skip("fewer experts than ranks")
    for tokens in (1, 2, 4, 16, 64, 512, 4096, 65536):
        if tokens * ranks > 1 << 20:
            continue
        mean, error = simulated(tokens, experts, top_k, ranks, max(3, min(300, (1 << 18) // (tokens * ranks))))
        ours = float(most_loaded_rows(*(np.array([float(x)]) for x in (tokens, ranks, experts, top_k)))[0])
        allowed = FEW if tokens * top_k / ranks < 3 else MANY
        assert abs(ours - mean) <= allowed * mean + 3 * error, (tokens, ours, mean)


def test_two_ranks_by_hand() -> None:
    """10,000 tokens, 8 of 128 experts, 2 ranks: mean 40,000; s = sqrt(40,000 · 120/127) = 194.41; largest of two normals
    1/sqrt(pi) = 0.56419, no skew between two ranks: 40,000 + 194.41 · 0.56419 = 40,109.7, 0.27 % above the mean.
    """
    assert float(imbalance_factor("uniform_random", 2, 128, 8, 10_000)) == pytest.approx(1.002742, abs=2e-6)


def test_the_largest_of_a_few_normals() -> None:
    """Closed forms: 0, 1/sqrt(pi), 3/(2 sqrt(pi)); squares 1, 1, 1 + sqrt(3)/(2 pi)."""
    for count, mean, square in ((1, 0.0, 1.0), (2, math.pi**-0.5, 1.0), (3, 1.5 * math.pi**-0.5, 1 + 3**0.5 / (2 * math.pi))):
        assert largest_normal(float(count)) == pytest.approx((mean, square), abs=2e-5)


def test_limits() -> None:
    assert float(imbalance_factor("uniform_random", 1, 128, 8, 64)) == 1  # one rank has it all
    assert float(imbalance_factor("uniform_random", 8, 8, 8, 64)) == 1  # every token goes to every expert
    assert float(imbalance_factor("uniform_random", 64, 64, 1, 1)) == 64  # one token on one of 64 ranks
    assert float(imbalance_factor("uniform_random", 8, 128, 8, 1e9)) == pytest.approx(1, abs=1e-4)  # it evens out
    assert float(imbalance_factor("uniform_random", 8, 128, 8, 2)) <= 8


def test_vector_equals_scalar_and_rows_rise_with_tokens() -> None:
    tokens, ranks = np.geomspace(1, 1e6, 400)[:, None], np.array([1.0, 2, 4, 8, 16, 32, 64])
    rows = most_loaded_rows(tokens, ranks, np.array(128.0), np.array(8.0))
    assert np.all(np.diff(rows, axis=0) >= 0)
    assert np.all(rows >= tokens * 8 / ranks * (1 - 1e-12))
    for i, j in ((0, 6), (150, 3), (399, 1)):
        alone = most_loaded_rows(tokens[i], ranks[j : j + 1], np.array([128.0]), np.array([8.0]))
        assert rows[i, j] == pytest.approx(float(alone[0]), rel=1e-12)


def test_the_rank_takes_longer_than_the_mean_rank_and_less_than_a_skewed_one() -> None:
    shape = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "top_k": 8, "ep": 8, "format": "nvfp4"}
    mean, most, skewed = (
        moe_seconds(np.array([64.0, 1024, 16384]), load=load, profile="ideal", **shape)  # type: ignore[arg-type]
        for load in ("balanced", "uniform_random", "power_law_1.2")
    )
    assert np.all(mean < most)
    assert np.all(most[1:] < skewed[1:])


def test_it_is_chosen_by_name_and_nothing_else_changes() -> None:
    qwen, layout = load_model("Qwen3-30B-A3B"), Layout(dpa=8, ep=8)
    plain = decode(qwen, layout, 512, context=4096)
    assert decode(qwen, layout, 512, context=4096, load="balanced").seconds == plain.seconds
    drawn = decode(qwen, layout, 512, context=4096, load="uniform_random")
    assert plain.seconds < drawn.seconds
    assert plain.attention_seconds == drawn.attention_seconds
    assert Workload(load="uniform_random").load == "uniform_random"
    assert Workload().load == "balanced"
    with pytest.raises(UnknownKeyError, match="did you mean 'uniform_random'"):
        Workload(load="uniform")
    with pytest.raises(InvalidValueError, match="load must be balanced, uniform_random, power_law"):
        Workload(load="even")
