"""The table of legal designs, suggestions projected onto it, neighbours."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapefront.constraints.budget import Budget
from shapefront.search.optimize import optimize
from shapefront.search.problem import SearchProblem
from shapefront.search.space import Candidates, NothingLegalError, distributions, suggestions


def test_every_row_is_legal_and_distinct(families: SearchProblem) -> None:
    table = families.table
    assert sum(table.counts.values()) == len(table) > 300
    everything = table.candidates(np.arange(len(table)))
    for _, space, batch in everything.batches(families.spaces):
        assert families.budget.feasible(batch).all()
        assert families.rules.feasible(batch).all()
        for name, values in families.spaces[space].dimensions.items():
            if name != "sliding_window_period":
                assert set(np.unique(getattr(batch, name)).tolist()) <= set(values)
    assert len(set(everything.keys(families.spaces))) == len(table)


def test_reference_model_is_in_the_dense_table(dense: SearchProblem) -> None:
    reference = dense.reference
    row = np.array([[getattr(reference, name) for name in dense.table.names]])
    (found,) = dense.projector.find(np.array([0]), row)
    _, _, batch = dense.table.candidates([found]).batches(dense.spaces)[0]
    assert batch.architecture(0, name=reference.name) == reference
    assert found in dense.equal_quality_ids


def test_distributions_have_fixed_ranges_that_hold_the_lattice(families: SearchProblem) -> None:
    found = distributions(families.table)
    assert list(found) == ["family", *families.table.names]  # named dimensions, never an index
    for name in families.table.names:
        for value in families.table.lattice(name):
            assert found[name]._contains(found[name].to_internal_repr(value)), (name, value)


def test_nothing_legal_names_the_constraint_and_the_relaxation(dense: SearchProblem) -> None:
    impossible = replace(dense, budget=Budget(8.03e9, tolerance=1e-7))
    start = time.process_time()
    with pytest.raises(NothingLegalError, match="budget tolerance") as error:
        optimize(impossible)
    assert "nearest" in str(error.value)
    assert time.process_time() - start < 5  # it ends at once


def test_projection_equals_the_plain_nearest_design(families: SearchProblem) -> None:
    table, projector = families.table, families.projector
    rng = np.random.default_rng(1)
    space = rng.integers(0, 3, 40)
    values = np.stack([rng.uniform(*table.bounds(name), 40) for name in table.names], axis=1)
    found = projector.nearest(space, values)
    for i in range(40):
        rows = np.arange(table.starts[space[i]], table.starts[space[i] + 1])
        own = projector.coordinates(int(space[i]), table.columns[rows])
        distance = ((own - projector.coordinates(int(space[i]), values[i : i + 1])) ** 2).sum(axis=1)
        at = found[i] - table.starts[space[i]]
        assert distance[at] == pytest.approx(distance.min(), abs=1e-12)


def test_taken_designs_are_not_given_again(dense: SearchProblem) -> None:
    size = len(dense.table)
    taken = np.zeros(size, dtype=np.bool_)
    target = dense.table.columns[[7]].astype(np.float64)
    for step in range(3):
        count = min(100, size)
        ids = dense.projector.nearest(np.zeros(count, dtype=np.int64), np.repeat(target, count, axis=0), taken=taken)
        assert len(set(ids.tolist())) == count and not taken[ids].any(), step
        assert (7 in ids) == (step == 0)
        taken[ids] = True
        if taken.sum() + count > size:
            break
    taken[:] = True
    assert dense.projector.nearest(np.array([0]), target, taken=taken).tolist() == [-1]


@given(st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_neighbours_hold_the_nearest_and_every_family(families: SearchProblem, pick: int) -> None:
    table = families.table
    design = pick % len(table)
    found = families.projector.neighbours([design], nearest=5)
    assert design not in found and len(np.unique(found)) == len(found)
    assert set(table.space_of(found).tolist()) == {0, 1, 2}
    own = int(table.space_of(np.array([design]))[0])
    rows = np.arange(table.starts[own], table.starts[own + 1])
    points = families.projector.coordinates(own, table.columns[rows])
    distance = ((points - points[design - table.starts[own]]) ** 2).sum(axis=1)
    closest = np.sort(distance)[1:4]  # without itself
    mine = np.sort(distance[found[table.space_of(found) == own] - table.starts[own]])[:3]
    np.testing.assert_allclose(mine, closest, atol=1e-12)


def test_candidates_split_and_join(families: SearchProblem) -> None:
    ids = np.arange(0, len(families.table), 37)
    whole = families.table.candidates(ids)
    joined = Candidates.concatenate([whole.take(slice(0, 5)), whole.take(slice(5, None))])
    assert joined.keys(families.spaces) == whole.keys(families.spaces)
    params = [
        {"family": families.spaces[s].name, **dict(zip(whole.names, row, strict=True))}
        for s, row in zip(whole.space.tolist(), whole.columns.tolist(), strict=True)
    ]
    space, values = suggestions(families.table, params)
    np.testing.assert_array_equal(families.projector.nearest(space, np.maximum(values, 1)), ids)


def test_problem_survives_pickling_without_its_table(families: SearchProblem) -> None:
    size = len(families.table)
    copy = pickle.loads(pickle.dumps(families))
    assert "table" not in vars(copy)
    assert len(copy.table) == size
    assert len(pickle.dumps(families)) < 100_000
