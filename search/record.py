"""Priced candidates as Optuna trials, and the study that records them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..costmodel.architecture import INTEGER_FIELDS
from .evaluate import Priced
from .problem import SearchProblem
from .space import FAMILY, Candidates

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LAYOUT_PARAMETERS = ("tpa", "kvp", "ep", "pp", "gpus")


def create_study(problem: SearchProblem, name: str, storage: Any = None) -> optuna.Study:
    """An Optuna study with the problem's objectives (maximised, named), in memory unless a storage is given."""
    import optuna
    from optuna.exceptions import ExperimentalWarning

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            directions=["maximize"] * len(problem.objectives),
            sampler=optuna.samplers.RandomSampler(seed=0),  # suggestions come from search.sampler, never from here
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=ExperimentalWarning)
            study.set_metric_names([o.name for o in problem.objectives])
    finally:
        optuna.logging.set_verbosity(level)
    return study


def make_trials(
    problem: SearchProblem,
    candidates: Candidates,
    priced: Priced,
    distributions: Mapping[str, BaseDistribution],
    *,
    generation: int,
    sources: Sequence[str],
) -> list[FrozenTrial]:
    """Finished trials in the order of the candidates.

    A trial's parameters are the realised dimensions (the legal design the suggestion was projected to), so that every
    trial, sampled, polished or enumerated, says what was priced. All dimensions of the design stand in its user
    attributes. A failed user function makes a failed trial with the message as attribute ``error``.

    Args:
        problem: the search problem.
        candidates: n designs.
        priced: their figures.
        distributions: the study's named distributions.
        generation: number of the generation, polish round or chunk.
        sources: ``seed``, ``sampler``, ``polish`` or ``enumerated``, one per design.
    """
    from optuna.trial import TrialState, create_trial

    params = _parameters(problem, candidates, distributions)
    attributes = _attributes(problem, candidates)
    trials: list[FrozenTrial] = []
    failed: list[bool] = list(np.any(np.isnan(priced.objectives), axis=1))
    violations = {name: value.tolist() for name, value in priced.violations.items()}
    values, equal = priced.objectives.tolist(), priced.equal_quality.tolist()
    for i in range(len(candidates)):
        attrs = {"generation": generation, "source": sources[i], **attributes[i], "equal_quality": equal[i]}
        if failed[i]:
            attrs["error"] = priced.errors[i]
        trial = create_trial(
            params=params[i],
            distributions=dict(distributions),
            values=None if failed[i] else values[i],
            state=TrialState.FAIL if failed[i] else TrialState.COMPLETE,
            user_attrs=attrs,
        )
        for name, value in violations.items():
            trial.set_constraint(name, value[i])
        trials.append(trial)
    return trials


def _parameters(
    problem: SearchProblem, candidates: Candidates, distributions: Mapping[str, BaseDistribution]
) -> list[dict[str, Any]]:
    """Realised parameters; a dimension the design's space does not search takes the middle of its range."""
    columns = {}
    for j, name in enumerate(candidates.names):
        if name not in distributions:
            continue
        grid = problem.table.lattice(name)
        searched = np.array([name in s.dimensions for s in problem.spaces])[candidates.space]
        columns[name] = np.where(searched, candidates.columns[:, j], grid[len(grid) // 2]).tolist()
    if FAMILY in distributions:
        columns[FAMILY] = [problem.spaces[s].name for s in candidates.space.tolist()]
    if candidates.layout is not None and candidates.concurrency is not None:
        layouts = problem.setup.layouts
        for name in LAYOUT_PARAMETERS:
            columns[name] = getattr(layouts, name)[candidates.layout].tolist()
        columns["concurrency"] = candidates.concurrency.tolist()
    return [{name: columns[name][i] for name in distributions} for i in range(len(candidates))]


def _attributes(problem: SearchProblem, candidates: Candidates) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = [{}] * len(candidates)
    for positions, space, batch in candidates.batches(problem.spaces):
        figures = {name: getattr(batch, name).tolist() for name in INTEGER_FIELDS}
        figures["total_params"], figures["active_params"] = batch.total_params.tolist(), batch.active_params.tolist()
        for row, position in enumerate(positions.tolist()):
            result[position] = {"space": problem.spaces[space].name, **{name: column[row] for name, column in figures.items()}}
    return result
