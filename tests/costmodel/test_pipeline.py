from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapefront.costmodel import InvalidValueError
from shapefront.costmodel.pipeline import equal_chunk_seconds, schedule, stage_imbalance, stage_layers


def test_two_stages_three_chunks_by_hand() -> None:
    # t = [[1, 2, 3], [2, 2, 2]]: stage 0 ends at 1, 3, 6; stage 1 runs 1-3, 3-5, 6-8.
    plan = schedule([[1, 2, 3], [2, 2, 2]])
    assert plan.start.tolist() == [[0, 1, 3], [1, 3, 6]]
    assert plan.finish.tolist() == [[1, 3, 6], [3, 5, 8]]
    assert plan.makespan_seconds == 8
    assert plan.bubble == pytest.approx(1 - 12 / 16)


def test_rows_are_the_blocks_of_a_picture() -> None:
    rows = schedule([[1, 2], [2, 2]]).rows()
    assert rows[0] == {"stage": 0, "chunk": 0, "start_seconds": 0, "end_seconds": 1}
    assert rows[-1] == {"stage": 1, "chunk": 1, "start_seconds": 3, "end_seconds": 5}
    assert len(rows) == 4


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.01, 10))
def test_equal_chunks_on_equal_stages_have_a_closed_form(stages: int, chunks: int, seconds: float) -> None:
    plan = schedule(np.full((stages, chunks), seconds))
    assert plan.makespan_seconds == pytest.approx(equal_chunk_seconds(chunks, stages, seconds))
    assert plan.bubble == pytest.approx((stages - 1) / (chunks + stages - 1), abs=1e-12)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
def test_recurrence_equals_the_longest_path(stages: int, chunks: int, seed: int) -> None:
    # The makespan is the longest monotone path through the (stage, chunk) grid: the definition, by plain recursion.
    t = np.random.default_rng(seed).uniform(0.1, 2, (stages, chunks))

    def path(s: int, c: int) -> float:
        before = [path(s - 1, c)] if s else []
        before += [path(s, c - 1)] if c else []
        return float(t[s, c]) + max(before, default=0.0)

    assert schedule(t).makespan_seconds == pytest.approx(path(stages - 1, chunks - 1))


def test_a_batch_of_pipelines_equals_each_alone() -> None:
    t = np.random.default_rng(0).uniform(0.1, 1, (3, 2, 4, 5))
    hop = np.random.default_rng(1).uniform(0, 0.2, (3, 2))
    whole = schedule(t, hop)
    for a in range(3):
        for p in range(2):
            np.testing.assert_array_equal(schedule(t[a, p], hop[a, p]).finish, whole.finish[a, p])


def test_hops_delay_every_stage_once() -> None:
    assert schedule(np.ones((4, 1)), 0.5).makespan_seconds == 4 + 3 * 0.5


def test_61_layers_never_split_evenly() -> None:
    assert stage_layers(61, 4).tolist() == [16, 15, 15, 15]
    assert stage_imbalance(61, 4) == pytest.approx(64 / 61)
    with pytest.raises(InvalidValueError, match=r"pp must divide num_hidden_layers=61, got pp=4.*4\.9%.*\[1, 61\]"):
        stage_layers(61, 4, balanced_only=True)


def test_refuses_more_stages_than_layers() -> None:
    with pytest.raises(InvalidValueError, match="between 1 and the 8 layers, got pp=9"):
        stage_layers(8, 9)


def test_refuses_an_empty_schedule() -> None:
    with pytest.raises(InvalidValueError, match="stages, chunks"):
        schedule(np.zeros((0, 3)))
