"""Frontiers of several models side by side, in one deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..constraints.divisibility import layout_allowed
from ..constraints.equal_quality import LOSS_SLACK, gives_up, loss_terms
from ..constraints.quality import DEFAULT_TRAIN_TOKENS, delta_loss_shape, predicted_loss
from ..costmodel.architecture import INTEGER_FIELDS, Architecture
from ..costmodel.batch import ArchitectureBatch
from ..costmodel.errors import InvalidValueError
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.profile import load_profile
from ..costmodel.serving import ServingSetup, throughput_at_rates
from ..costmodel.serving_frontier import Frontier, frontier
from .deployment import setup_for
from .hf_config import read_config

RATES = (20.0, 50.0, 100.0)  # tokens/s/user shown side by side (the project's study defaults)
MAX_MODELS = 20


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model in a comparison.

    Attributes:
        design: the model.
        frontier: its operating points, None where no layout serves it.
        error: why there is no frontier; empty otherwise.
        throughput: tokens/s/GPU at the comparison's rates, 0 out of reach, ``(R,)``.
        area: frontier area over ln(tokens/s/user) between the bounds of :data:`.serving_frontier.AREA`.
        area_over_first: area over the first model's, a ratio.
        gives_up: what it gives up against the first model, empty at equal quality.
        shape_change: ΔL_shape minus the first model's, nats/token; equal quality allows +0.002.
        size_change: L_size minus the first model's, nats/token; equal quality allows +0.002.
        size_law: the law of ``size_change``: ``zhao`` among mixtures of experts, ``dense``, or ``joint`` between the two.
        loss_change: predicted loss minus the first model's by the joint law, nats/token; for information, decides nothing.
    """

    design: Architecture
    frontier: Frontier | None
    error: str
    throughput: tuple[float, ...]
    area: float
    area_over_first: float
    gives_up: tuple[str, ...]
    shape_change: float
    size_change: float
    size_law: str
    loss_change: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several models in one deployment; the first is the one the others are held against.

    Attributes:
        models: in the order given.
        setup: the deployment.
        rates: user rates, tokens/s/user.
    """

    models: tuple[ComparedModel, ...]
    setup: ServingSetup
    rates: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values by the stable names."""
        return {
            "rates": list(self.rates),
            "profile": load_profile(self.setup.profile).name,
            "models": [_model_dict(m, self.setup, self.rates) for m in self.models],
        }


def _model_dict(m: ComparedModel, setup: ServingSetup, rates: tuple[float, ...]) -> dict[str, Any]:
    d = m.design
    return {
        "name": d.name,
        **{name: getattr(d, name) for name in (*INTEGER_FIELDS, "tie_word_embeddings", "attention")},
        "total_params": d.total_params,
        "active_params": d.active_params,
        "active_params_with_embedding": d.active_params_with_embedding,
        "kv_bytes_per_token": float(kv_bytes_per_token(d, setup.formats)[0]),
        "delta_loss_shape": float(delta_loss_shape(d.hidden_size, d.num_hidden_layers)),
        "tokens_per_second_per_gpu": {f"{rate:g}": value for rate, value in zip(rates, m.throughput, strict=True)},
        "frontier_area": m.area,
        "frontier_area_over_first": m.area_over_first,
        "equal_quality": not m.gives_up,
        "gives_up": list(m.gives_up),
        "delta_loss_shape_change": m.shape_change,
        "size_loss_change": m.size_change,
        "size_law": m.size_law,
        "loss_term_limit": LOSS_SLACK,
        "loss_change": m.loss_change,
        "error": m.error,
        "frontier": [] if m.frontier is None else m.frontier.rows(),
    }


def compare(
    sources: Sequence[str | Path | Architecture],
    *,
    setup: ServingSetup | None = None,
    rates: Sequence[float] = RATES,
    train_tokens: float = DEFAULT_TRAIN_TOKENS,
    **options: Any,
) -> Comparison:
    """Price several models in one deployment.

    Args:
        sources: two or more designs, files or built-in names; the first is what the others are held against.
        setup: deployment; None takes the study defaults for the largest model, changed by ``options``
            (:func:`shapefront.studies.deployment.default_setup`).
        rates: user rates to show, tokens/s/user.
        train_tokens: D of the quality laws.
        **options: ``input_tokens``, ``output_tokens``, ``profile``, ``hardware``, ``gpus``, ``formats``, ``load``.

    Raises:
        InvalidValueError: fewer than two models or too many, a bad rate, a model that cannot be read, or none that is served.
    """
    if not 2 <= len(sources) <= MAX_MODELS:
        raise InvalidValueError(f"compare takes 2 to {MAX_MODELS} models, got {len(sources)}")
    if not rates or not all(0 < rate < 1e6 for rate in rates):
        raise InvalidValueError(f"rates must be above 0 and below 1e6 tokens/s/user, got {list(rates)!r:.60}")
    designs = [source if isinstance(source, Architecture) else read_config(source) for source in sources]
    if setup is None:
        largest = max(designs, key=lambda d: d.total_params)
        moe = max(designs, key=lambda d: d.num_experts)
        setup = setup_for(largest if not moe.num_experts else moe.with_(name=largest.name), **_sized(largest, options))
    shown = tuple(sorted(float(rate) for rate in rates))
    rows = [_price(design, setup, shown) for design in designs]
    if all(row[0] is None for row in rows):
        raise InvalidValueError(f"no layout considered serves any of the models: {rows[0][1]}")
    first = designs[0]
    models = []
    for design, (found, error, throughput, area) in zip(designs, rows, strict=True):
        batch = ArchitectureBatch.from_architectures([design])
        loss = [float(predicted_loss(d, train_tokens, "joint")[0]) for d in (design, first)]
        base = rows[0][3]
        reasons = tuple(gives_up(batch, first, train_tokens=train_tokens)[0])
        shape, size, law = loss_terms(batch, first, train_tokens=train_tokens)
        terms = (float(shape[0]), float(size[0]), law)
        over = area / base if base > 0 else float("nan")
        models.append(ComparedModel(design, found, error, throughput, area, over, reasons, *terms, loss[0] - loss[1]))
    return Comparison(tuple(models), setup, shown)


def _sized(largest: Architecture, options: dict[str, Any]) -> dict[str, Any]:
    """GPU counts by the largest model, where the user names none."""
    from .deployment import LARGE_GPUS, SMALL, SMALL_GPUS

    if options.get("gpus"):
        return options
    return options | {"gpus": SMALL_GPUS if largest.total_params <= SMALL else LARGE_GPUS}


def _price(
    design: Architecture, setup: ServingSetup, rates: tuple[float, ...]
) -> tuple[Frontier | None, str, tuple[float, ...], float]:
    batch = ArchitectureBatch.from_architectures([design])
    allowed = np.asarray(layout_allowed(batch, setup.layouts))
    try:
        found = frontier(design, setup, allowed=allowed)
    except InvalidValueError as error:
        return None, str(error), tuple(0.0 for _ in rates), 0.0
    table = throughput_at_rates(batch, setup, np.asarray(rates), allowed=allowed)
    return found, "", tuple(table.tokens_per_second_per_gpu[0].tolist()), found.area()
