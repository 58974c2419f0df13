"""From chosen designs to explained suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..constraints.budget import Budget
from ..constraints.equal_quality import gives_up
from ..constraints.guidelines import review
from ..constraints.laws import CAVEATS, fit_warnings
from ..constraints.quality import compare_laws, delta_loss_shape
from ..constraints.rules import Rules
from ..constraints.space import DesignSpace
from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch
from ..costmodel.errors import InvalidValueError
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.serving import ServingSetup
from ..search.objectives import AREA_RATES, FrontierArea, QualityGain, ThroughputAt
from ..search.problem import SearchProblem
from ..search.space import DesignTable
from .suggest_explain import explain
from .suggest_price import Pool
from .suggest_template import nearest_model
from .suggestion import Suggestion, SuggestResult
from .waterfall import waterfall

THROUGHPUT_RATE, LATENCY_RATE = 20.0, 100.0  # tokens/s/user; the study defaults' two ends


def check_rates(min_user_rate: float) -> tuple[float, ...]:
    """The three rates designs are judged at, ascending.

    Raises:
        InvalidValueError: the user's rate is not a positive number below a million.
    """
    if not 0 < min_user_rate < 1e6:
        raise InvalidValueError(f"min_user_rate must be above 0 and below 1e6 tokens/s/user, got {min_user_rate}")
    return tuple(sorted({THROUGHPUT_RATE, float(min_user_rate), LATENCY_RATE}))


def make_problem(
    space: DesignSpace,
    table: DesignTable,
    budget: Budget,
    rules: Rules,
    setup: ServingSetup,
    reference: Architecture,
    rates: Sequence[float],
    train_tokens: float,
) -> SearchProblem:
    """The search problem whose legal table is already known.

    Raises:
        InvalidValueError: ``train_tokens`` is out of range.
    """
    if not 1e9 < train_tokens <= 1e16:
        raise InvalidValueError(f"train_tokens must be above 1e9 and at most 1e16, got {train_tokens:g}")
    problem = SearchProblem(
        spaces=(space,),
        budget=budget,
        rules=rules,
        setup=setup,
        reference=reference,
        objectives=(*(ThroughputAt(rate=rate) for rate in rates), FrontierArea(), QualityGain()),
        train_tokens=train_tokens,
    )
    problem.__dict__["table"] = table  # built once: the problem would enumerate the same designs again
    return problem


def reachable(pool: Pool, problem: SearchProblem, min_user_rate: float) -> Pool:
    """The designs that give every user the rate.

    Raises:
        InvalidValueError: none does.
    """
    usable = np.flatnonzero(pool.throughput[:, problem.rates.index(min_user_rate)] > 0)
    if not usable.size:
        raise InvalidValueError(
            f"none of {len(pool.ids)} legal designs gives every user {min_user_rate:g} tokens/s on the layouts considered; "
            "lower --min-user-rate or allow more GPUs"
        )
    return pool.take(usable)


def make_result(
    problem: SearchProblem,
    pool: Pool,
    chosen: Sequence[tuple[int, str]],
    rates: tuple[float, ...],
    legal: int,
    *,
    with_review: bool = True,
    beside: Architecture | None = None,
) -> SuggestResult:
    """Explain the chosen designs.

    Args:
        problem: what they were chosen from.
        pool: priced designs.
        chosen: position in the pool and reason, per design.
        rates: user rates to report.
        legal: legal designs.
        with_review: hold each to the guidelines as well.
        beside: model each is compared with; None takes the nearest real one.
    """
    space = problem.spaces[0]
    table = problem.table.candidates(pool.ids[[p for p, _ in chosen]])
    batch = space.batch({n: table.columns[:, j] for j, n in enumerate(problem.table.names)})
    designs = [batch.architecture(i, name=f"suggestion-{i + 1}") for i in range(len(batch))]
    explanations = explain(problem, designs, rates)
    found = []
    for (position, reason), design, steps in zip(chosen, designs, explanations, strict=True):
        nearest = beside or nearest_model(design.total_params, design.active_params, design.num_experts > 0).architecture
        compared = replace(problem, reference=nearest)
        own = ArchitectureBatch.from_architectures([design])
        reasons = gives_up(own, nearest, train_tokens=problem.train_tokens)[0]
        names = [o.name for o in problem.objectives]
        nearest_values = {rate: float(compared.reference_values[names.index(ThroughputAt(rate=rate).name)]) for rate in rates}
        found.append(
            Suggestion(
                design=design,
                reason=reason,
                throughput={rate: float(pool.throughput[position, problem.rates.index(rate)]) for rate in rates},
                frontier_area=float(pool.area[position]),
                delta_loss_shape=float(delta_loss_shape(design.hidden_size, design.num_hidden_layers)),
                laws=compare_laws(design, nearest, problem.train_tokens),
                kv_bytes_per_token=float(kv_bytes_per_token(design, problem.setup.formats)[0]),
                nearest=nearest,
                nearest_throughput=nearest_values,
                equal_quality=not reasons,
                gives_up=tuple(reasons),
                waterfall=waterfall(compared, design, rates=AREA_RATES),
                explanation=tuple(steps),
                review=review(design, problem.setup) if with_review else None,
            )
        )
    notes = [f"quality: {CAVEATS[0]}"] if any(fit_warnings(s.design) for s in found) else []
    notes.append("a real model of another size than the budget is never at equal quality: totals must lie within -0.5 to +1 %")
    return SuggestResult(tuple(found), problem, problem.reference, legal, rates, tuple(notes))
