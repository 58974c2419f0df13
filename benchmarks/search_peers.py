"""Contenders on one problem: what each of them prices goes through the meter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from search_meter import Meter, Stop

from shapefront.costmodel import InvalidValueError
from shapefront.search.objectives import PointInteractivity, PointThroughput, QualityGain
from shapefront.search.optimize import MAX_TRIALS, SearchOptions, optimize
from shapefront.search.problem import SearchProblem
from shapefront.search.sampler import generation_seed
from shapefront.search.space import FAMILY, Candidates, distributions, suggestions

Contender = Callable[[SearchProblem, Meter, int], None]


def ours(**options: Any) -> Contender:
    """The package's search."""

    def run(problem: SearchProblem, meter: Meter, seed: int) -> None:
        trials = min(meter.evaluations, MAX_TRIALS)
        try:
            optimize(problem, trials=trials, seed=seed, options=SearchOptions(**options), evaluator=meter.price)
        except Stop:
            pass

    return run


def without_sweep(problem: SearchProblem, meter: Meter, seed: int) -> None:
    """Ours with layout and concurrency as parameters of the search: one operating point a trial."""
    quality = [o for o in problem.objectives if isinstance(o, QualityGain)]
    points = replace(problem, layout_mode="suggest", objectives=(PointThroughput(), PointInteractivity(), *quality))
    points.__dict__["table"], points.__dict__["projector"] = problem.table, problem.projector
    ours()(points, meter, seed)


def plain_optuna(sampler: Callable[[int], optuna.samplers.BaseSampler], *, project: bool = True) -> Contender:
    """A plain Optuna study: one design a trial, suggested by name, no seeds, no polish, repeats priced again.

    ``project``: the suggestion is taken to the nearest legal design, as ours does; without, the budget and the rules
    are constraints and only designs that meet them are priced.
    """

    def run(problem: SearchProblem, meter: Meter, seed: int) -> None:
        named = distributions(problem.table)
        optuna.logging.set_verbosity(optuna.logging.ERROR)

        def objective(trial: optuna.Trial) -> tuple[float, ...]:
            params = {name: trial._suggest(name, d) for name, d in named.items()}
            space, values = suggestions(problem.table, [params])
            if project:
                candidates = problem.table.candidates(problem.projector.nearest(space, values))
            else:
                row = np.round(values).astype(np.int64)
                candidates = Candidates(np.full(1, trial.number), space, row, problem.table.names)
                worst = violations(problem, candidates)
                trial.set_constraint("violation", worst)
                if worst > 0:
                    meter.count(1)
                    return (0.0,) * len(problem.objectives)
            return tuple(meter.price(problem, candidates).objectives[0].tolist())

        study = optuna.create_study(directions=["maximize"] * len(problem.objectives), sampler=sampler(seed))
        try:
            study.optimize(objective, n_trials=meter.evaluations)
        except Stop:
            pass

    return run


def violations(problem: SearchProblem, candidates: Candidates) -> float:
    """Sum of a single design's violations; 10 for a shape that does not exist."""
    try:
        _, _, batch = candidates.batches(problem.spaces)[0]
    except InvalidValueError:
        return 10.0
    found = {**problem.budget.violations(batch), **problem.rules.violations(batch)}
    return float(sum(max(float(v[0]), 0.0) for v in found.values()))


def random(problem: SearchProblem, meter: Meter, seed: int) -> None:
    """Uniform random suggestions, projected, 64 at a time, repeats priced again."""
    named = distributions(problem.table)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=generation_seed(seed, 0)))
    try:
        while True:
            params = [study.ask(fixed_distributions=dict(named)).params for _ in range(64)]
            ids = problem.projector.nearest(*suggestions(problem.table, params))
            meter.price(problem, problem.table.candidates(ids))
    except Stop:
        pass


def pymoo_nsga2(problem: SearchProblem, meter: Meter, seed: int) -> None:
    """NSGA-II of pymoo (population 100, its default operators) over the named dimensions, projected, by populations."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.optimize import minimize

    table = problem.table
    several = len(problem.spaces) > 1
    bounds = np.array([table.bounds(name) for name in table.names], dtype=np.float64)
    lows, highs = np.log(np.maximum(bounds[:, 0], 1)), np.log(bounds[:, 1])

    class Designs(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            extra = 1 if several else 0
            super().__init__(n_var=len(lows) + extra, n_obj=len(problem.objectives), xl=0.0, xu=1.0)

        def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
            values = np.exp(lows + x[:, : len(lows)] * (highs - lows))
            count = len(problem.spaces)
            space = np.minimum((x[:, -1] * count).astype(np.int64), count - 1) if several else np.zeros(len(x), dtype=np.int64)
            ids = problem.projector.nearest(space, values)
            priced = meter.price(problem, table.candidates(ids))
            full = np.zeros((len(x), len(problem.objectives)))
            full[: len(priced)] = priced.objectives
            out["F"] = -full

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            minimize(Designs(), NSGA2(pop_size=100), ("n_gen", 10**6), seed=seed, verbose=False)
        except Stop:
            pass


def peers() -> dict[str, Contender]:
    """All contenders by the names the tables show."""
    found = {
        "shapefront": ours(),
        "shapefront without the model": ours(model=False),
        "Optuna NSGA-II, projected": plain_optuna(lambda seed: optuna.samplers.NSGAIISampler(seed=seed)),
        "Optuna TPE, projected": plain_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed)),
        "Optuna NSGA-II, constraints": plain_optuna(lambda seed: optuna.samplers.NSGAIISampler(seed=seed), project=False),
        "pymoo NSGA-II, projected": pymoo_nsga2,
        "random, projected": random,
    }
    if find_spec("torch") is not None:  # Optuna's GP sampler is written in it
        found["Optuna GP, projected"] = plain_optuna(lambda seed: optuna.samplers.GPSampler(seed=seed))
    return found


def ablations() -> dict[str, Contender]:
    """Ours with parts taken out, and what is left of a search without its sampler."""
    return {
        "all of it": ours(),
        "without the model": ours(model=False),
        "without seeds": ours(seeds=False),
        "without polish": ours(neighbour_share=0.0, polish=False),
        "without the sweep": without_sweep,
        "sampler alone": ours(seeds=False, neighbour_share=0.0, polish=False, model=False),
        "random sampler alone": ours(sampler="random", seeds=False, neighbour_share=0.0, polish=False, model=False),
        "random sampler, seeds, polish": ours(sampler="random", model=False),
    }


__all__ = ["FAMILY", "ablations", "ours", "peers"]
