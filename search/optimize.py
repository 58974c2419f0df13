"""The search: seeds, generations of an Optuna sampler beside lattice neighbours of the front, and a final polish.

A pure function of (problem, trials, seed, options): nothing here reads a clock, and no result depends on how an
evaluator splits the work, so that replaying a run with stored prices continues it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..costmodel import InvalidValueError
from ..costmodel.checks import number, whole
from .evaluate import Evaluator, evaluate
from .model import Model
from .modes import Mode, Sweep, make_mode
from .outcome import Callback, Recorder, Run, SearchOutcome
from .polish import Neighbours, polish
from .problem import SearchProblem
from .sampler import Proposer, check_sampler
from .seeds import seed_ids
from .space import Candidates

MAX_TRIALS = 10_000_000


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How the search spends its trials; the defaults are what measured best (docs/search-benchmark.md).

    Attributes:
        sampler: one of :data:`.sampler.SAMPLERS`.
        population: designs of a generation, and parents of a genetic sampler.
        seeds: start from the reference model, scaled known models and an aspect-ratio ladder.
        neighbour_share: largest part of a generation spent on lattice neighbours of the front, [0, 1).
        model: spend a part of each generation on designs that a model of the objectives expects on the front (in studies of
            more designs than trials).
        polish: after the trials, price every neighbour of every front member until none improves.
        max_polish: designs the polish may price; 0 = four times the trials, at least 2000.
    """

    sampler: str = "nsgaii"
    population: int = 24
    seeds: bool = True
    neighbour_share: float = 0.9
    model: bool = True
    polish: bool = True
    max_polish: int = 0

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        whole("population", self.population, 2, 10_000)
        share = number("neighbour_share", self.neighbour_share, "at least 0 and below 1", high=1.0)
        if share == 1:
            raise InvalidValueError(f"neighbour_share must be at least 0 and below 1, got {share:g}; the sampler needs a part")
        whole("max_polish", self.max_polish, 0, MAX_TRIALS)


def polish_limit(trials: int) -> int:
    """Designs the polish may price where nothing else is said."""
    return max(4 * trials, 2000)


def optimize(
    problem: SearchProblem,
    *,
    trials: int = 400,
    seed: int = 0,
    options: SearchOptions | None = None,
    evaluator: Evaluator | None = None,
    recorder: Recorder | None = None,
    callback: Callback | None = None,
    study_name: str = "shapefront",
) -> SearchOutcome:
    """Search a study.

    Args:
        problem: designs, constraints, pricing, objectives.
        trials: candidates the seeds and the sampler may price; the polish adds its own.
        seed: same seed, same outcome.
        options: sampler and shares.
        evaluator: prices a whole generation; default in process.
        recorder: called with the finished trials of each generation, in trial order.
        callback: told of the progress after each generation.
        study_name: name of the Optuna study.

    Returns:
        Everything priced, the fronts and the study; ``interrupted`` after a KeyboardInterrupt.

    Raises:
        NothingLegalError: the constraints leave no design.
        InvalidValueError: trials below 1, a negative seed.
    """
    whole("trials", trials, 1, MAX_TRIALS)
    whole("seed", seed, 0, 2**63 - 1)
    chosen = options or SearchOptions()
    mode = make_mode(problem)
    run = Run(problem, mode.distributions(), evaluator or evaluate, recorder, callback, name=study_name)
    try:
        _sample(run, mode, trials, seed, chosen)
        if chosen.polish and not run.exhausted:
            limit = chosen.max_polish or polish_limit(trials)
            run.polished = polish(run, mode, limit=limit)
            run.exhausted = mode.left == 0
        run.polished = run.polished or run.exhausted
    except KeyboardInterrupt:
        run.interrupted = True
        if not run.parts:
            raise
    return run.outcome()


def _sample(run: Run, mode: Mode, trials: int, seed: int, options: SearchOptions) -> None:
    proposer = Proposer(options.sampler, run.distributions, len(run.problem.objectives), seed, options.population)
    guided = options.model and isinstance(mode, Sweep) and len(run.problem.table) > trials  # else all of it is priced anyway
    model = Model(run, mode, seed) if guided and isinstance(mode, Sweep) else None
    near_by = Neighbours(run, mode, options.neighbour_share, sources=("polish", "sampler", *(["model"] if model else [])))
    for phase, count in _plan(run, trials, options):
        if phase == "seed":
            candidates = mode.place(seed_ids(run.problem, count))
            candidates = candidates.take(np.arange(min(len(candidates), count)))
            sources = ["seed"] * len(candidates)
        else:
            parts: list[tuple[str, Candidates]] = []
            if run.count and model is not None and (found := model.take(round(near_by.share("model") * count))) is not None:
                parts.append(("model", found))
            if run.count and (found := near_by.take(round(near_by.share("polish") * count))) is not None:
                parts.append(("polish", found))
            left = max(0, count - sum(len(part) for _, part in parts))
            drawn = mode.project(proposer.propose(run.generation, left))
            parts.append(("sampler", drawn))
            sources = [source for source, part in parts for _ in range(len(part))]
            candidates = Candidates.concatenate([part for _, part in parts])
        if not len(candidates) and mode.left == 0:
            run.exhausted = True
            return
        first = run.count
        proposer.tell(run.price(candidates, sources))
        near_by.learn(sources, first)
        run.report("seed" if phase == "seed" else "sample", trials)


def _plan(run: Run, trials: int, options: SearchOptions) -> Iterator[tuple[str, int]]:
    """Phases and their sizes until the trials are spent; a generation that yields nothing twice ends the search."""
    if options.seeds:
        yield "seed", min(trials, options.population)
    idle = 0
    while run.count < trials and idle < 3:
        before = run.count
        yield "sample", min(options.population, trials - run.count)
        idle = idle + 1 if run.count == before else 0
