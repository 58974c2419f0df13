"""Suggest designs for a parameter budget within seconds: on the frontier, clearly different, each explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..constraints.budget import Budget, parse_count
from ..constraints.quality import DEFAULT_TRAIN_TOKENS, SOFT_SHAPE_LIMIT
from ..costmodel.architecture import Architecture
from ..costmodel.errors import InvalidValueError
from ..costmodel.formats import TensorFormats
from ..costmodel.serving import ServingSetup
from .deployment import default_setup
from .hf_config import read_config
from .suggest_pick import pick
from .suggest_price import price_all
from .suggest_result import check_rates, make_problem, make_result, reachable
from .suggest_space import check_floor, find_table, read_pins, rules_for
from .suggest_template import nearest_model
from .suggestion import Suggestion, SuggestResult

__all__ = ["SuggestResult", "Suggestion", "suggest"]


def suggest(
    params: str | float | None = None,
    active: str | float | None = None,
    *,
    like: str | Path | Architecture | None = None,
    fix: Mapping[str, int] | None = None,
    min_user_rate: float = 50.0,
    count: int = 5,
    tolerance: float = 0.01,
    train_tokens: float = DEFAULT_TRAIN_TOKENS,
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT,
    formats: TensorFormats | None = None,
    setup: ServingSetup | None = None,
    with_review: bool = True,
    **options: Any,
) -> SuggestResult:
    """The best clearly different designs of a parameter budget.

    Args:
        params: total parameters, ``"30B"``; None takes those of ``like``.
        active: active parameters (matrices that multiply a token, LM head in); given = a MoE; None with ``like`` takes its own.
        like: model whose tokenizer, head size, attention kind and statics are kept, and which the designs are set beside; None
            takes the nearest built-in model.
        fix: dimension → value that every design must have.
        min_user_rate: tokens/s/user the deployment must give.
        count: designs wanted.
        tolerance: allowed distance from the budget.
        train_tokens: D of the quality laws.
        max_delta_loss_shape: limit of the shape penalty, nats/token.
        formats: number formats of the tensor classes.
        setup: deployment; None takes the study defaults for the size, changed by ``options``.
        with_review: hold each design to the guidelines as well.
        **options: ``input_tokens``, ``output_tokens``, ``profile``, ``hardware``, ``gpus``, ``load``.

    Raises:
        InvalidValueError: an impossible budget (names the floor), pins that contradict (names what binds), a rate out of reach.
    """
    pins = read_pins(fix or {})
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 20:
        raise InvalidValueError(f"count must be a whole number from 1 to 20, got {count!r:.40}")
    budget, template = _budget(params, active, like, tolerance)
    formats = formats or TensorFormats()
    check_floor(budget, template, pins)
    rules = rules_for(template, budget, max_delta_loss_shape)
    space, table = find_table(template, budget, rules, pins, formats)
    setup = setup or default_setup(budget.total_params, template.num_experts > 0, formats=formats, **options)
    rates = check_rates(min_user_rate)
    problem = make_problem(space, table, budget, rules, setup, template, rates, train_tokens)
    columns = [problem.rates.index(rate) for rate in rates]
    pool = reachable(price_all(problem, columns), problem, float(min_user_rate))
    chosen = pick(pool, columns, count)
    beside = None if like is None else template
    found = make_result(problem, pool, chosen, rates, len(table), with_review=with_review, beside=beside)
    if len(chosen) == count:
        return found
    few = f"only {len(chosen)} of the {len(table)} legal designs differ clearly (by a tenth in H, L or KV bytes)"
    return replace(found, notes=(few, *found.notes))


def _budget(
    params: str | float | None, active: str | float | None, like: str | Path | Architecture | None, tolerance: float
) -> tuple[Budget, Architecture]:
    """Budget and template from what the user gave."""
    if like is None:
        if params is None:
            raise InvalidValueError("give --params, like --params 30B, or --like a config.json or a built-in model")
        total, used = parse_count(params), None if active is None else parse_count(active)
        budget = Budget(total, used, tolerance)  # refuses active > total before a template is looked for
        return budget, nearest_model(total, used, active is not None).architecture
    template = like if isinstance(like, Architecture) else read_config(like)
    total = float(template.total_params) if params is None else parse_count(params)
    if active is not None:
        if not template.num_experts:
            raise InvalidValueError(f"--active needs a MoE, but {template.name or 'the template'} is dense; leave --active out")
        used = parse_count(active)
    else:
        used = float(template.active_params) * total / template.total_params if template.num_experts else None
    return Budget(total, used, tolerance), template
