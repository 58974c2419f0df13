"""The cheapest design whose predicted loss is no worse than a model's: total and active parameters float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.budget import Budget
from ..constraints.laws import CAVEATS
from ..constraints.quality import DEFAULT_TRAIN_TOKENS, SOFT_SHAPE_LIMIT, predicted_loss
from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch
from ..costmodel.errors import InvalidValueError
from ..costmodel.formats import TensorFormats
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.profile import load_profile
from ..costmodel.serving import ServingSetup
from ..search.space import NothingLegalError, build_table
from .deployment import setup_for
from .hf_config import read_config
from .suggest_pick import clearly_different
from .suggest_price import price_all
from .suggest_result import check_rates, make_problem, make_result, reachable
from .suggest_space import build_space, read_pins, rules_for
from .suggestion import SuggestResult

SPREAD = 0.3  # totals from 30 % below to 30 % above the model's are considered (design choice: the laws are local guides)
PRICED = 800  # designs priced: those with the least work per token


@dataclass(frozen=True, slots=True)
class IsoLossResult:
    """Designs no worse than a model by the default law, cheapest first.

    Attributes:
        found: the designs, as ``suggest`` reports them, compared with the model.
        model: the model.
        cost: GPU time per token at the user's rate over the model's, per design.
        loss_change: predicted loss minus the model's by each law, per design.
        agree: whether both laws say no worse, per design.
        considered: designs that are no worse by the default law.
    """

    found: SuggestResult
    model: Architecture
    cost: tuple[float, ...]
    loss_change: tuple[Mapping[str, float], ...]
    agree: tuple[bool, ...]
    considered: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; each design with ``cost``, ``laws_agree`` and ``laws_differ_by``."""
        table = self.found.to_dict()
        for row, cost, change, agree in zip(table["designs"], self.cost, self.loss_change, self.agree, strict=True):
            row["cost"] = cost
            row["loss_change"] = dict(change)
            row["laws_agree"] = agree
            row["laws_differ_by"] = abs(change["default"] - change["joint"])
        return table | {"iso_loss": self.model.name, "no_worse": self.considered}


def _work_per_token(batch: ArchitectureBatch, setup: ServingSetup) -> NDArray[np.float64]:
    """GPU seconds per token at a large batch: FLOP over the 4-bit peak plus the KV cache over bandwidth, ``(A,)``."""
    hardware = load_profile(setup.profile).hardware
    cache = kv_bytes_per_token(batch, setup.formats) * setup.workload.decode_context
    flop = 2.0 * batch.active_params
    return np.asarray(flop / hardware.peak_flop_per_second("nvfp4") + cache / hardware.memory_bytes_per_second, dtype=np.float64)


def _least_work(batch: ArchitectureBatch, setup: ServingSetup) -> NDArray[np.int64]:
    """Positions of the designs to price: the three with the least work of each (H, L, KV heads), least work first."""
    order = np.argsort(_work_per_token(batch, setup), kind="stable")
    keys = np.stack([batch.hidden_size, batch.num_hidden_layers, batch.num_key_value_heads])[:, order]
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    by_group = np.argsort(group, kind="stable")  # within a group still by work
    starts = np.r_[0, np.flatnonzero(np.diff(group[by_group])) + 1]
    rank = np.empty_like(group)
    rank[by_group] = np.arange(group.size) - np.repeat(starts, np.diff(np.r_[starts, group.size]))
    return np.asarray(order[rank < 3][:PRICED], dtype=np.int64)


def iso_loss(
    like: str | Path | Architecture,
    *,
    fix: Mapping[str, int] | None = None,
    min_user_rate: float = 50.0,
    count: int = 5,
    train_tokens: float = DEFAULT_TRAIN_TOKENS,
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT,
    formats: TensorFormats | None = None,
    setup: ServingSetup | None = None,
    with_review: bool = True,
    **options: Any,
) -> IsoLossResult:
    """The cheapest clearly different designs whose predicted loss is no worse than a model's.

    The default law of the class decides (dense, or the MoE law); the joint law is shown beside it. Bands, alignment and the
    shape-penalty limit hold as in a study; KV heads × head size per layer never fall.

    Args:
        like: the model: a design, a file or a built-in name.
        fix: dimension → value that every design must have.
        min_user_rate: tokens/s/user the deployment must give; cost is counted there.
        count: designs wanted.
        train_tokens: D of the quality laws.
        max_delta_loss_shape: limit of the shape penalty, nats/token; the model's own where that is larger.
        formats: number formats of the tensor classes.
        setup: deployment; None takes the study defaults for the size, changed by ``options``.
        with_review: hold each design to the guidelines as well.
        **options: see :func:`shapefront.studies.suggest.suggest`.

    Raises:
        InvalidValueError: nothing legal is no worse, or none of it reaches the rate.
    """
    model = like if isinstance(like, Architecture) else read_config(like)
    pins, rates = read_pins(fix or {}), check_rates(min_user_rate)
    formats = formats or TensorFormats()
    setup = setup or setup_for(model, formats=formats, **options)
    budget = Budget(float(model.total_params), None, SPREAD)
    rules = rules_for(model, budget, max_delta_loss_shape)
    space = build_space(model, budget, pins, 0, formats)
    try:
        table = build_table((space,), budget, rules)
    except NothingLegalError as error:
        raise InvalidValueError(f"no design within {SPREAD:.0%} of {model.name or 'the model'} is legal: {error}") from None
    problem = make_problem(space, table, budget, rules, setup, model, rates, train_tokens)
    columns = table.candidates(np.arange(len(table))).columns
    batch = space.batch({name: columns[:, j] for j, name in enumerate(table.names)})
    own = {law: float(predicted_loss(model, train_tokens, law)[0]) for law in ("default", "joint")}
    no_worse = np.flatnonzero(predicted_loss(batch, train_tokens) <= own["default"])
    if not no_worse.size:
        raise InvalidValueError(
            f"none of {len(table)} legal designs within {SPREAD:.0%} of {model.name or 'the model'} "
            "has a predicted loss as low; "
            "free a pin or raise max_delta_loss_shape"
        )
    order = _least_work(batch.take(no_worse), setup)
    at = problem.rates.index(float(min_user_rate))
    pool = reachable(
        price_all(problem, [problem.rates.index(r) for r in rates], np.sort(no_worse[order])), problem, float(min_user_rate)
    )
    chosen: list[tuple[int, str]] = []
    for position in np.argsort(-pool.throughput[:, at], kind="stable").tolist():
        if all(clearly_different(pool, position, other) for other, _ in chosen):
            chosen.append((position, "cheapest" if not chosen else "next cheapest that differs clearly"))
        if len(chosen) == count:
            break
    found = make_result(problem, pool, chosen, rates, len(table), with_review=with_review, beside=model)
    changes = [{law: float(predicted_loss(s.design, train_tokens, law)[0]) - own[law] for law in own} for s in found.designs]
    rate = float(min_user_rate)
    costs = [s.nearest_throughput[rate] / s.throughput[rate] for s in found.designs]
    return IsoLossResult(
        found=found,
        model=model,
        cost=tuple(costs),
        loss_change=tuple(changes),
        agree=tuple(all(value <= 0 for value in change.values()) for change in changes),
        considered=int(no_worse.size),
    )


NOTES = (CAVEATS[2], CAVEATS[0])
