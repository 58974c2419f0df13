"""Pricing: blocks, order and single designs agree bit for bit; constraints and user functions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shapefront.constraints.quality import predicted_loss
from shapefront.costmodel import Architecture, ArchitectureBatch, InvalidValueError
from shapefront.costmodel.serving import frontier_area, throughput_at_rates
from shapefront.search.evaluate import Priced, evaluate
from shapefront.search.objectives import FrontierArea, QualityGain, ThroughputAt, UserObjective
from shapefront.search.problem import SearchProblem
from tests.search.problems import make_dense


def test_one_by_one_equals_blocks_in_any_order_bit_for_bit(families: SearchProblem) -> None:
    ids = np.random.default_rng(0).permutation(len(families.table))[:70]
    together = evaluate(families, families.table.candidates(ids))
    alone = Priced.concatenate([evaluate(families, families.table.candidates(ids[i : i + 1])) for i in range(len(ids))])
    np.testing.assert_array_equal(together.objectives, alone.objectives)
    np.testing.assert_array_equal(together.layout_index, alone.layout_index)
    reversed_ = evaluate(families, families.table.candidates(ids[::-1]))
    np.testing.assert_array_equal(reversed_.objectives[::-1], together.objectives)
    assert together.legal.all()


def test_objectives_are_what_the_cost_model_says(dense: SearchProblem) -> None:
    problem = make_dense(objectives=(ThroughputAt(rate=50.0), FrontierArea(area_rates=(20.0, 40.0, 80.0)), QualityGain()))
    block = problem.table.candidates([0, 11])
    priced = evaluate(problem, block)
    _, _, batch = block.batches(problem.spaces)[0]
    allowed = problem.rules.layouts_allowed(batch, problem.setup.layouts)
    table = throughput_at_rates(batch, problem.setup, [20.0, 40.0, 50.0, 80.0], allowed=allowed)
    np.testing.assert_array_equal(priced.objectives[:, 0], table.tokens_per_second_per_gpu[:, 2])
    area = frontier_area(table.tokens_per_second_per_gpu[:, [0, 1, 3]], [20.0, 40.0, 80.0])
    np.testing.assert_allclose(priced.objectives[:, 1], area, rtol=1e-14)
    reference = ArchitectureBatch.from_architectures([problem.reference])
    loss = predicted_loss(batch, problem.train_tokens) - predicted_loss(reference, problem.train_tokens)
    np.testing.assert_allclose(priced.objectives[:, 2], -loss, atol=1e-15)


def test_reference_is_priced_like_its_own_row(dense: SearchProblem) -> None:
    row = np.array([[getattr(dense.reference, name) for name in dense.table.names]])
    own = evaluate(dense, dense.table.candidates(dense.projector.find(np.array([0]), row)))
    np.testing.assert_allclose(dense.reference_values, own.objectives[0], rtol=1e-14)
    np.testing.assert_allclose(dense.scales, dense.reference_values)


def test_a_design_that_fits_no_layout_is_illegal(dense: SearchProblem) -> None:
    starved = replace(dense, setup=dense.setup.with_(usable_fraction=0.001))
    priced = evaluate(starved, dense.table.candidates([0, 1]))
    assert not priced.legal.any()
    assert (priced.violations["fits_a_layout"] > 0).all()
    assert (priced.objectives == 0).all()


def odd(design: Architecture, figures: Mapping[str, Any]) -> float:
    if design.num_hidden_layers % 4:
        raise RuntimeError("only whole fours")
    return float(figures["total_params"])


def slow(design: Architecture, figures: Mapping[str, Any]) -> float:
    time.sleep(0.5)
    return 1.0


def test_a_failing_user_function_fails_its_designs_alone() -> None:
    problem = make_dense(objectives=(ThroughputAt(rate=20.0), UserObjective("odd", function=odd)))
    block = problem.table.candidates(np.arange(40))
    priced = evaluate(problem, block)
    layers = block.columns[:, block.names.index("num_hidden_layers")]
    assert 0 < (layers % 4 == 0).sum() < 40
    np.testing.assert_array_equal(priced.legal, layers % 4 == 0)
    assert all(("only whole fours" in e) == bool(n % 4) for e, n in zip(priced.errors, layers.tolist(), strict=True))
    _, _, batch = block.batches(problem.spaces)[0]
    np.testing.assert_array_equal(priced.objectives[priced.legal, 1], batch.total_params[priced.legal])


def test_a_slow_user_function_is_timed_out() -> None:
    problem = make_dense(objectives=(UserObjective("slow", function=slow, timeout_seconds=0.02),))
    priced = evaluate(problem, problem.table.candidates([0]))
    assert np.isnan(priced.objectives).all() and "more than 0.02 s" in priced.errors[0]


def test_errors() -> None:
    with pytest.raises(InvalidValueError, match="user rate must be above 0"):
        ThroughputAt(rate=-1.0)
    with pytest.raises(InvalidValueError, match="name and a callable"):
        UserObjective("x")
    with pytest.raises(InvalidValueError, match="different names"):
        make_dense(objectives=(ThroughputAt(rate=20.0), ThroughputAt(rate=20.0)))
    with pytest.raises(InvalidValueError, match="layout_mode must be one of"):
        make_dense(layout_mode="both")
