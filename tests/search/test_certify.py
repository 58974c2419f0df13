"""The certificate against exhaustive truth, and the bounds it rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapefront.costmodel import InvalidValueError, profile_names
from shapefront.search.certify import Certificate, certify
from shapefront.search.evaluate import evaluate
from shapefront.search.exhaustive import estimate_seconds, exhaust
from shapefront.search.objectives import FrontierArea, QualityGain, ThroughputAt, UserObjective
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.outcome import SearchOutcome
from shapefront.search.problem import SearchProblem
from shapefront.search.units import Unit, units
from tests.search.problems import make_dense, make_families

TWO_AND_QUALITY = (ThroughputAt(rate=20.0), ThroughputAt(rate=100.0), QualityGain())


@pytest.fixture(scope="module", params=["two", "quality", "area"])
def problem(request: pytest.FixtureRequest) -> SearchProblem:
    objectives = {"two": (), "quality": TWO_AND_QUALITY, "area": (FrontierArea(area_rates=(20.0, 50.0, 120.0)), QualityGain())}
    return make_families(objectives=objectives[request.param], max_pp=2)


@pytest.fixture(scope="module")
def truth(problem: SearchProblem) -> SearchOutcome:
    return exhaust(problem)


def check(certificate: Certificate, truth: SearchOutcome) -> None:
    """The independent checker: counts, and both fronts bit for bit against every design's price."""
    assert certificate.legal == certificate.priced + certificate.pruned + certificate.open == truth.trials
    ids = truth.evaluated.ids
    assert certificate.open_front.tolist() == sorted(ids[truth.open_front].tolist())
    assert certificate.equal_quality_front.tolist() == sorted(ids[truth.equal_quality_front].tolist())
    assert certificate.hypervolume == truth.hypervolume


def test_proves_the_fronts_from_nothing(problem: SearchProblem, truth: SearchOutcome) -> None:
    certificate = certify(problem)
    assert certificate.status == "exact" and certificate.open == 0 and certificate.gap_hypervolume == 0
    assert certificate.pruned > certificate.legal // 4  # the bounds do work
    check(certificate, truth)


def test_completes_a_poor_search(problem: SearchProblem, truth: SearchOutcome) -> None:
    poor = optimize(problem, trials=5, seed=0, options=SearchOptions(polish=False, seeds=False, population=5))
    certificate = certify(problem, poor)
    check(certificate, truth)
    assert certificate.found > 0 and certificate.outcome is not None
    done = certificate.outcome
    assert sorted(done.evaluated.ids[done.open_front].tolist()) == certificate.open_front.tolist()
    assert done.hypervolume == truth.hypervolume and done.study is not None
    assert [t.number for t in done.study.best_trials] == done.open_front.tolist()


def test_out_of_time_states_a_gap_that_covers_the_truth(problem: SearchProblem, truth: SearchOutcome) -> None:
    poor = optimize(problem, trials=3, seed=0, options=SearchOptions(polish=False, seeds=False, population=3))
    certificate = certify(problem, poor, max_seconds=0.0)
    assert certificate.status == "gap" and certificate.open > 0
    assert certificate.legal == certificate.priced + certificate.pruned + certificate.open
    assert certificate.hypervolume <= truth.hypervolume <= certificate.hypervolume + certificate.gap_hypervolume


def every_unit(problem: SearchProblem) -> list[Unit]:
    return list(units(problem))


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("kind", ["dense", "families"])
def test_no_design_beats_its_bounds(profile: str, kind: str) -> None:
    if kind == "dense":
        problem = make_dense(objectives=TWO_AND_QUALITY, profile=profile)
    else:
        problem = make_families(objectives=TWO_AND_QUALITY, profile=profile, max_pp=2)
    rng = np.random.default_rng(0)
    for unit in every_unit(problem)[:: 2 if kind == "dense" else 1]:
        members = rng.choice(len(unit.ids), min(24, len(unit.ids)), replace=False)
        true = evaluate(problem, problem.table.candidates(unit.ids[members])).objectives
        single = unit.designs(members)
        coarse, fine = unit.groups(), unit.groups(members, by_depth=True)
        assert (single >= true).all()
        # without pipeline stages the factored step is the step itself; stages add hops and waiting, a few per cent
        np.testing.assert_allclose(single[:, :2], true[:, :2], rtol=0.05 if kind == "families" else 1e-6)
        assert (coarse.bounds[coarse.of_member[members]] >= true).all()
        assert (fine.bounds[fine.of_member] >= true).all()


@given(
    rate=st.floats(5, 400),
    context=st.sampled_from([(512, 128), (8192, 1024), (131072, 2048)]),
    usable=st.floats(0.1, 0.95),
    mode=st.sampled_from(["decode", "disaggregated", "aggregated"]),
)
@settings(max_examples=20, deadline=None)
def test_bounds_hold_for_any_workload(rate: float, context: tuple[int, int], usable: float, mode: str) -> None:
    base = make_dense(objectives=(ThroughputAt(rate=rate),))
    workload = base.setup.workload.__class__(input_tokens=context[0], output_tokens=context[1])
    setup = base.setup.with_(workload=workload, usable_fraction=usable, mode=mode)
    problem = SearchProblem(base.spaces, base.budget, base.rules, setup, base.reference, base.objectives)
    unit = every_unit(problem)[3]
    true = evaluate(problem, problem.table.candidates(unit.ids)).objectives
    groups = unit.groups()
    assert (unit.designs(np.arange(len(unit.ids))) >= true).all()
    assert (groups.bounds[groups.of_member] >= true).all()


def test_units_hold_every_design_once(families: SearchProblem) -> None:
    ids = np.concatenate([u.ids for u in units(families)])
    np.testing.assert_array_equal(np.sort(ids), np.arange(len(families.table)))


def test_exhaustive_does_not_depend_on_workers_or_recording(families: SearchProblem) -> None:
    alone, two, bare = exhaust(families), exhaust(families, workers=2), exhaust(families, record=False)
    np.testing.assert_array_equal(alone.priced.objectives, two.priced.objectives)
    np.testing.assert_array_equal(alone.evaluated.ids, np.arange(len(families.table)))
    for other in (two, bare):
        assert sorted(other.evaluated.ids[other.open_front]) == sorted(alone.evaluated.ids[alone.open_front])
        assert sorted(other.evaluated.ids[other.equal_quality_front]) == sorted(alone.evaluated.ids[alone.equal_quality_front])
    assert alone.study is not None and len(alone.study.trials) == len(families.table)
    assert estimate_seconds(families, workers=2) == pytest.approx(estimate_seconds(families) / 2, rel=1.0)


def test_what_cannot_be_proven_is_refused(dense: SearchProblem) -> None:
    with pytest.raises(InvalidValueError, match="sweep"):
        certify(make_dense(layout_mode="suggest"))
    user = UserObjective("mine", function=lambda design, figures: 1.0)
    with pytest.raises(InvalidValueError, match="no optimistic bound"):
        certify(make_dense(objectives=(ThroughputAt(rate=20.0), user)))
