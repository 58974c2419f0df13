"""Fronts against brute force; volumes against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shapefront.costmodel import InvalidValueError
from shapefront.search.pareto import Front, dominated_by, hypervolume, non_dominated


def brute_front(values: NDArray[np.float64]) -> list[int]:
    return [
        i
        for i, a in enumerate(values)
        if not any(all(b >= a) and any(b > a) for b in values)  # nobody dominates a
    ]


def points(objectives: int, low: int = 1) -> st.SearchStrategy[NDArray[np.float64]]:
    row = st.tuples(*[st.integers(low, 6)] * objectives)  # few values, so ties are common
    return st.lists(row, min_size=1, max_size=25).map(lambda rows: np.array(rows, dtype=np.float64))


@given(st.sampled_from([1, 2, 3, 4]).flatmap(points))
@settings(max_examples=200, deadline=None)
def test_front_equals_the_plain_loop(values: NDArray[np.float64]) -> None:
    assert non_dominated(values).tolist() == brute_front(values)


@given(st.sampled_from([2, 3]).flatmap(lambda k: st.tuples(points(k), points(k))), st.booleans())
@settings(max_examples=200, deadline=None)
def test_dominated_by_equals_the_plain_loop(pair: tuple[NDArray[np.float64], NDArray[np.float64]], strict: bool) -> None:
    values, front = pair
    expected = [any(all(f > v) if strict else (all(f >= v) and any(f > v)) for f in front) for v in values]
    assert dominated_by(values, front, strict=strict).tolist() == expected


@given(st.sampled_from([1, 2, 3]).flatmap(points))
@settings(max_examples=200, deadline=None)
def test_hypervolume_of_integer_points_counts_unit_cells(values: NDArray[np.float64]) -> None:
    # With integer corners and the origin as reference, the union of boxes is a set of unit cells: count them.
    cells = {cell for row in values.astype(int) for cell in np.ndindex(*row)}
    assert hypervolume(values, np.zeros(values.shape[1])) == pytest.approx(len(cells), abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_hypervolume_of_all_grid_corners_is_a_full_cube_minus_nothing(k: int) -> None:
    # One point at 10 in every objective against reference 0 is the cube 10^k; a dominated point adds nothing.
    assert hypervolume([[10.0] * k, [3.0] * k], [0.0] * k) == 10.0**k


def test_hypervolume_two_boxes_by_hand() -> None:
    # [0,2]x[0,1] and [0,1]x[0,2]: 2 + 2 - 1 = 3; with heights 1 and 3 in a third objective:
    # boxes 2x1x1 and 1x2x3: 2 + 6 - overlap 1x1x1 = 7.
    assert hypervolume([[2, 1], [1, 2]], [0, 0]) == 3
    assert hypervolume([[2, 1, 1], [1, 2, 3]], [0, 0, 0]) == 7
    assert hypervolume([[2, 1]], [2, 0]) == 0  # a row on the reference plane has no volume


@given(st.sampled_from([2, 3]).flatmap(points), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_front_in_blocks_equals_front_at_once(values: NDArray[np.float64], block: int) -> None:
    front = Front(values.shape[1])
    for start in range(0, len(values), block):
        front.add(np.arange(start, min(start + block, len(values))), values[start : start + block])
    assert sorted(front.ids.tolist()) == brute_front(values)
    np.testing.assert_array_equal(front.values, values[front.ids])


def test_front_says_whether_it_changed() -> None:
    front = Front(2)
    assert front.add([0], [[1.0, 1.0]])
    assert not front.add([1], [[0.5, 1.0]])
    assert front.add([2], [[0.5, 2.0]])
    assert front.ids.tolist() == [0, 2]


def test_large_front_is_fast_and_right() -> None:
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, np.pi / 2, 100_000)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # every point of a quarter circle is non-dominated
    assert len(non_dominated(circle)) == len(np.unique(circle, axis=0))
    assert hypervolume(circle, [0, 0]) == pytest.approx(np.pi / 4, abs=1e-3)


@pytest.mark.parametrize(
    ("values", "reference", "words"),
    [([[1.0, np.nan]], [0, 0], "NaN"), ([[1.0] * 4], [0] * 4, "three"), ([[1.0, 2.0]], [0], "one value per"), ([1.0], [0], "shape")],
)
def test_errors_name_the_rule(values: Any, reference: list[float], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        hypervolume(values, reference)
