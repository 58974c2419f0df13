"""The model that suggests designs: kriging, the choice beyond a front, and what it is worth."""

import numpy as np
import pytest

from shapefront.search.exhaustive import exhaust
from shapefront.search.model import describe, krige, widest
from shapefront.search.objectives import QualityGain, ThroughputAt
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.problem import SearchProblem
from tests.search.problems import make_families

THREE = (ThroughputAt(rate=20.0), ThroughputAt(rate=100.0), QualityGain())


def test_kriging_goes_through_what_it_was_shown() -> None:
    """The nugget, 1e-3 of the variance, is all that is left at the points themselves."""
    x = np.random.default_rng(0).random((60, 3))
    y = np.stack([np.sin(6 * x[:, 0]) + x[:, 1], np.full(60, 7.0)], axis=1)
    found = krige(x, y, x)
    assert np.abs(found[:, 0] - y[:, 0]).max() < 0.02 * y[:, 0].std()
    np.testing.assert_allclose(found[:, 1], 7.0)


def test_kriging_follows_a_straight_line_beyond_the_data_and_bends_between_it() -> None:
    rng = np.random.default_rng(1)
    x, at = rng.random((80, 3)), rng.random((200, 3))
    line = krige(x, (2 * x[:, :1] - x[:, 1:2]), np.array([[2.0, 0.5, 0.5]]))
    assert line[0, 0] == pytest.approx(3.5, abs=0.1)
    truth = np.sin(4 * at[:, 0]) * at[:, 1]
    shown = np.sin(4 * x[:, 0]) * x[:, 1]
    error = krige(x, shown[:, None], at)[:, 0] - truth
    plane = np.linalg.lstsq(np.column_stack((x, np.ones(80))), shown, rcond=None)[0]
    assert error.std() < 0.5 * (np.column_stack((at, np.ones(200))) @ plane - truth).std()


def test_rows_farthest_beyond_the_front_come_first_and_stand_for_it() -> None:
    front = np.array([[0.0, 1.0], [1.0, 0.0]])
    # leads: (1, 1): 1 over both; (0.5, 0.5): 0.5; (2, -1): 2 and 1 -> 1; (0.2, 0.1): max(0.2, -0.9), max(-0.8, 0.1) -> 0.1
    expected = np.array([[1.0, 1.0], [0.5, 0.5], [2.0, -1.0], [0.2, 0.1]])
    none = np.zeros((0, 2))
    # front of two: units are the ranges of front and rows together, 2 and 2, which keep the order
    assert widest(expected, front, 3, none).tolist() == [0, 2]  # then (0.5, 0.5) lies behind (1, 1): no lead is left
    assert widest(expected, front, 1, none).tolist() == [0]
    assert widest(expected, front, 3, expected[:1]).tolist() == [2]
    assert widest(expected[3:] - 1.0, front, 2, none).size == 0
    assert widest(expected, none, 2, none).size == 0


def test_what_depends_on_the_design_alone_is_computed(families: SearchProblem) -> None:
    problem = make_families(objectives=THREE)
    block = problem.table.candidates(np.arange(0, len(problem.table), 37))
    features, own, equal = describe(problem, block)
    from shapefront.search.evaluate import evaluate

    priced = evaluate(problem, block)
    np.testing.assert_array_equal(own[:, 2], priced.objectives[:, 2])
    assert (own[:, :2] == 0).all() and (equal == priced.equal_quality).all()
    assert np.isfinite(features).all() and len(np.unique(features, axis=0)) == len(block)  # no two designs look alike


def test_the_model_finds_the_front_sooner() -> None:
    """Five seeds at 60 of 343 designs: the largest hypervolume missed with it is below the median missed without it."""
    problem = make_families(objectives=THREE)
    best = exhaust(problem).hypervolume

    def missed(seed: int, model: bool) -> float:
        return best - optimize(problem, trials=60, seed=seed, options=SearchOptions(polish=False, model=model)).hypervolume

    assert max(missed(s, True) for s in range(5)) < np.median([missed(s, False) for s in range(5)])
