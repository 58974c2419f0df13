"""The search end to end: the truth of small studies, exact repetition, the Optuna study as record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest

from shapefront.costmodel import Architecture, InvalidValueError
from shapefront.search.evaluate import Priced, evaluate
from shapefront.search.exhaustive import exhaust
from shapefront.search.objectives import QualityGain, ThroughputAt, UserObjective
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.outcome import Progress, SearchOutcome
from shapefront.search.problem import SearchProblem
from shapefront.search.sampler import SAMPLERS
from shapefront.search.space import Candidates
from tests.search.problems import make_dense, make_families

TWO_AND_QUALITY = (ThroughputAt(rate=20.0), ThroughputAt(rate=100.0), QualityGain())


def front_ids(outcome: SearchOutcome) -> tuple[list[int], list[int]]:
    ids = outcome.evaluated.ids
    return sorted(ids[outcome.open_front].tolist()), sorted(ids[outcome.equal_quality_front].tolist())


def fingerprint(outcome: SearchOutcome) -> str:
    assert outcome.study is not None
    rows = [(t.number, t.params, t.values, t.user_attrs, dict(t.constraints)) for t in outcome.study.get_trials(deepcopy=False)]
    return json.dumps(rows, sort_keys=True)


@pytest.fixture(scope="module")
def quality() -> SearchProblem:
    return make_families(objectives=TWO_AND_QUALITY)


@pytest.fixture(scope="module")
def truth(quality: SearchProblem) -> SearchOutcome:
    return exhaust(quality)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_finds_the_true_fronts_without_pricing_everything(quality: SearchProblem, truth: SearchOutcome, seed: int) -> None:
    found = optimize(quality, trials=100, seed=seed)
    assert front_ids(found) == front_ids(truth)
    assert found.hypervolume == truth.hypervolume
    assert found.polished and found.trials < len(quality.table)


def test_fronts_hold_by_brute_force(truth: SearchOutcome) -> None:
    values, legal = truth.priced.objectives, truth.priced.legal
    for front, allowed in ((truth.open_front, legal), (truth.equal_quality_front, legal & truth.priced.equal_quality)):
        rivals = values[allowed]
        beaten = [bool(((rivals >= v).all(axis=1) & (rivals > v).any(axis=1)).any()) for v in values]
        assert front.tolist() == [i for i in np.flatnonzero(allowed).tolist() if not beaten[i]]


def test_same_seed_same_study_other_seed_other_path() -> None:
    first, again, other = (optimize(make_dense(), trials=80, seed=s, options=SearchOptions(polish=False)) for s in (3, 3, 4))
    assert fingerprint(first) == fingerprint(again)
    assert fingerprint(first) != fingerprint(other)


def test_best_trials_are_the_open_front_and_every_trial_is_named(dense: SearchProblem) -> None:
    found = optimize(dense, trials=60, seed=0)
    study = found.study
    assert study is not None and study.metric_names == [o.name for o in dense.objectives]
    assert [t.number for t in study.best_trials] == found.open_front.tolist()
    trials = study.get_trials(deepcopy=False)
    assert len(trials) == found.trials == found.legal_trials  # every trial legal by construction
    assert len({tuple(sorted(t.params.items())) for t in trials}) == len(trials)  # no design twice
    assert {t.user_attrs["source"] for t in trials} == {"seed", "sampler", "polish", "model"}
    for t in trials:
        assert all(t.user_attrs[name] == value for name, value in t.params.items())  # parameters are the realised dimensions
        assert t.constraints and all(v <= 0 for v in t.constraints.values())


def test_a_small_space_is_exhausted_and_says_so(dense: SearchProblem) -> None:
    found = optimize(dense, trials=5000, seed=0)
    assert found.exhausted and found.trials == len(dense.table) == found.legal_architectures
    assert front_ids(found) == front_ids(exhaust(dense))


@pytest.mark.parametrize("name", [s for s in SAMPLERS if s != "gp"])
def test_every_sampler_runs(name: str) -> None:
    problem = make_families()
    found = optimize(problem, trials=60, seed=1, options=SearchOptions(sampler=name, population=12, polish=False))
    assert found.trials == 60 and len(np.unique(found.evaluated.ids)) == 60


def test_evaluator_and_recorder_see_whole_generations_in_order(dense: SearchProblem) -> None:
    blocks: list[int] = []
    recorded: list[optuna.trial.FrozenTrial] = []
    seen: list[Progress] = []

    def price(problem: SearchProblem, candidates: Candidates) -> Priced:
        blocks.append(len(candidates))
        return evaluate(problem, candidates)

    found = optimize(
        dense,
        trials=70,
        seed=0,
        options=SearchOptions(population=20),
        evaluator=price,
        recorder=recorded.extend,
        callback=seen.append,
    )
    assert found.study is not None
    assert [t.params for t in recorded] == [t.params for t in found.study.trials]
    assert [t.user_attrs["generation"] for t in recorded] == [g for g, n in enumerate(blocks) for _ in range(n)]
    assert seen[-1].priced == found.trials and seen[-1].hypervolume == found.hypervolume


def test_replaying_stored_prices_repeats_the_run(dense: SearchProblem) -> None:
    stored: dict[tuple[Any, ...], Priced] = {}

    def price(problem: SearchProblem, candidates: Candidates) -> Priced:
        priced = evaluate(problem, candidates)
        stored.update({key: priced.take(np.array([i])) for i, key in enumerate(candidates.keys(problem.spaces))})
        return priced

    def replay(problem: SearchProblem, candidates: Candidates) -> Priced:
        return Priced.concatenate([stored[key] for key in candidates.keys(problem.spaces)])

    assert fingerprint(optimize(dense, trials=60, evaluator=price)) == fingerprint(optimize(dense, trials=60, evaluator=replay))


def test_an_interrupt_keeps_what_there_is(dense: SearchProblem) -> None:
    def stop(progress: Progress) -> None:
        if progress.trials >= 40:
            raise KeyboardInterrupt

    found = optimize(dense, trials=200, seed=0, options=SearchOptions(population=20), callback=stop)
    assert found.interrupted and 40 <= found.trials < 200
    assert found.study is not None and [t.number for t in found.study.best_trials] == found.open_front.tolist()


def shallow(design: Architecture, figures: Mapping[str, Any]) -> float:
    if design.num_hidden_layers == 32:
        raise ValueError("no 32 layers today")
    return -design.num_hidden_layers


def test_failed_trials_are_recorded_with_their_message() -> None:
    problem = make_dense(objectives=(ThroughputAt(rate=20.0), UserObjective("shallow", function=shallow)))
    found = optimize(problem, trials=80, seed=0)
    assert found.study is not None
    failed = found.study.get_trials(states=[optuna.trial.TrialState.FAIL])
    assert failed and all("no 32 layers today" in t.user_attrs["error"] for t in failed)
    assert found.legal_trials == found.trials - len(failed)
    assert all(t.user_attrs["num_hidden_layers"] != 32 for t in found.study.best_trials)


def test_suggested_layouts_are_parameters() -> None:
    problem = make_dense(layout_mode="suggest")
    found = optimize(problem, trials=120, seed=0, options=SearchOptions(max_polish=300))
    assert found.study is not None
    trial = found.study.trials[-1]
    assert {"gpus", "tpa", "kvp", "ep", "pp", "concurrency"} <= set(trial.params)
    assert found.legal_trials >= 0.95 * found.trials
    keys = found.evaluated.keys(problem.spaces)
    assert len(set(keys)) == len(keys)
    # a point's tokens/s/GPU is its users' rate times the users over the GPUs
    rate = found.priced.objectives[:, 1] * np.asarray(found.evaluated.concurrency)
    np.testing.assert_allclose(
        found.priced.objectives[:, 0], rate / problem.setup.layouts.gpus[found.evaluated.layout], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trials": 0}, "trials must be a whole number from 1"),
        ({"trials": -5}, "got -5"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_bad_arguments(dense: SearchProblem, arguments: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        optimize(dense, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "nsga2"}, "did you mean 'nsgaii'"),
        ({"population": 1}, "population must be a whole number from 2"),
        ({"neighbour_share": 1.0}, "below 1"),
        ({"max_polish": -1}, "max_polish"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        SearchOptions(**options)
