"""Suggestions, one generation at a time, from a named Optuna sampler seeded (seed, generation).

Optuna stores no sampler state, so a generation's sampler is made new from its own seed and shown the trials it needs:
same seed, same suggestions, wherever and after whatever interruption they are drawn. A genetic sampler is shown only
its parents and the newest trials in a scratch study, which keeps the cost of a trial constant instead of growing with
the study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..costmodel import InvalidValueError
from ..costmodel.errors import did_you_mean

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.samplers._ga import BaseGASampler
    from optuna.trial import FrozenTrial

GENETIC = ("nsgaii", "nsgaii-polynomial", "nsgaii-sbx", "nsgaiii")
SAMPLERS = (*GENETIC, "tpe", "gp", "random", "qmc")


def generation_seed(seed: int, generation: int) -> int:
    """A 32-bit seed for one generation of one run."""
    return int(np.random.SeedSequence([seed, generation]).generate_state(1)[0])


def check_sampler(name: str) -> str:
    """Return the name if it is one of :data:`SAMPLERS`.

    Raises:
        InvalidValueError: it is not.
    """
    if name not in SAMPLERS if isinstance(name, str) else True:
        raise InvalidValueError(f"unknown sampler '{str(name)[:60]}'{did_you_mean(str(name)[:60], SAMPLERS)}")
    return name


def make_sampler(name: str, *, seed: int, population: int) -> BaseSampler:
    """Build a named sampler.

    Args:
        name: one of :data:`SAMPLERS`; ``nsgaii`` resamples mutated parameters, ``nsgaii-polynomial`` mutates them
            polynomially around the parent, ``nsgaii-sbx`` crosses over by simulated binary crossover as well.
        seed: its random state.
        population: parents of a genetic sampler.
    """
    import optuna.samplers as s

    makers: dict[str, Callable[[], BaseSampler]] = {
        "nsgaii": lambda: s.NSGAIISampler(seed=seed, population_size=population),
        "nsgaii-polynomial": lambda: s.NSGAIISampler(
            seed=seed, population_size=population, mutation=s.nsgaii.PolynomialMutation(eta=20.0)
        ),
        "nsgaii-sbx": lambda: s.NSGAIISampler(
            seed=seed,
            population_size=population,
            crossover=s.nsgaii.SBXCrossover(),
            mutation=s.nsgaii.PolynomialMutation(eta=20.0),
        ),
        "nsgaiii": lambda: s.NSGAIIISampler(seed=seed, population_size=population),
        "tpe": lambda: s.TPESampler(seed=seed, n_startup_trials=population),
        "gp": lambda: s.GPSampler(seed=seed, n_startup_trials=population),
        "random": lambda: s.RandomSampler(seed=seed),
        "qmc": lambda: s.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=_experimental())
        try:
            return makers[check_sampler(name)]()
        except ImportError as error:
            raise InvalidValueError(f"sampler '{name}' needs a package that is not installed: {error}") from None


def _experimental() -> type[Warning]:
    from optuna.exceptions import ExperimentalWarning

    return ExperimentalWarning


@dataclass(eq=False)
class Proposer:
    """Draws generations of suggestions for named dimensions.

    Attributes:
        name: sampler name.
        distributions: dimension → Optuna distribution, fixed for the whole study.
        objectives: number of objectives, all maximised.
        seed: the run's seed.
        population: parents of a genetic sampler.
    """

    name: str
    distributions: Mapping[str, BaseDistribution]
    objectives: int
    seed: int
    population: int
    _parents: list[FrozenTrial] = field(default_factory=list, repr=False)
    _fresh: list[FrozenTrial] = field(default_factory=list, repr=False)
    _history: Any = field(default=None, repr=False)

    def tell(self, trials: Sequence[FrozenTrial]) -> None:
        """Show finished trials, in trial order."""
        self._fresh.extend(t for t in trials if t.values is not None)

    def propose(self, generation: int, count: int) -> list[dict[str, Any]]:
        """``count`` suggestions for one generation, each a value per named dimension."""
        seed = generation_seed(self.seed, generation)
        if self.name in GENETIC:
            return self._genetic(seed, count)
        if self._history is None:
            self._history = _scratch_study(self.objectives)
        if self.name == "qmc":  # one low-discrepancy sequence for the whole run; its position lives in the scratch study
            self._history.sampler = make_sampler("qmc", seed=generation_seed(self.seed, 0), population=self.population)
        else:
            self._history.sampler = make_sampler(self.name, seed=seed, population=self.population)
            self._history.add_trials(self._fresh)
        self._fresh = []
        return self._ask(self._history, count)

    def _genetic(self, seed: int, count: int) -> list[dict[str, Any]]:
        pool = self._parents + self._fresh
        population = max(2, min(self.population, len(pool)))
        sampler = make_sampler(self.name, seed=seed, population=population)
        study = _scratch_study(self.objectives)
        study.sampler = sampler
        key = f"{type(sampler).__name__}:generation"
        for trial in pool:
            study.add_trial(_light_copy(trial, {key: 0}))
        asked = self._ask(study, count)
        if len(pool) >= population and count:
            parents = cast("BaseGASampler", sampler).get_parent_population(study, 1)
            self._parents = [pool[t.number] for t in parents]
        else:
            self._parents = pool
        self._fresh = []
        return asked

    def _ask(self, study: optuna.Study, count: int) -> list[dict[str, Any]]:
        fixed = dict(self.distributions)
        return [dict(study.ask(fixed_distributions=fixed).params) for _ in range(count)]


def _light_copy(trial: FrozenTrial, system_attrs: Mapping[str, Any]) -> FrozenTrial:
    """What a sampler needs of a trial: parameters, values, constraints."""
    from optuna.trial import create_trial

    copy = create_trial(
        params=trial.params,
        distributions=trial.distributions,
        values=trial.values,
        state=trial.state,
        system_attrs=dict(system_attrs),
    )
    for name, value in trial.constraints.items():
        copy.set_constraint(name, value)
    return copy


def _scratch_study(objectives: int) -> optuna.Study:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=["maximize"] * objectives, sampler=optuna.samplers.RandomSampler(seed=0))
    finally:
        optuna.logging.set_verbosity(level)
