"""What is no number, out of range, empty or of another shape is refused in words, at once."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shapefront.constraints import alignment, bands, budget, equal_quality, quality, rules, space
from shapefront.costmodel import ArchitectureBatch, ArchitectureKind, ShapefrontError
from shapefront.costmodel.models import load_model
from shapefront.search import objectives, pareto
from shapefront.search.certify import certify
from shapefront.search.exhaustive import exhaust
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.problem import SearchProblem
from tests.search.problems import make_dense

ODD: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), -1, 10**400, "x", None, [], np.array([]), [1, "a"], object())
SIZES = {"head_dim": 64, "vocab_size": 1000, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8}
MODEL = load_model("Llama-3.1-8B")
BATCH = ArchitectureBatch.from_architectures([MODEL])


def a_space(**changes: Any) -> space.DesignSpace:
    return space.DesignSpace(
        "s",
        ArchitectureKind(),
        {"hidden_size": (1024,), "intermediate_size": (1024, 2048), **changes.get("dimensions", {})},
        {**SIZES, **changes.get("fixed", {})},
    )


CONSTRAINTS: dict[str, Callable[[Any], Any]] = {
    "shape penalty, width": lambda v: quality.delta_loss_shape(v, 32),
    "shape penalty, depth": lambda v: quality.delta_loss_shape(4096, v),
    "shape penalty, lengths": lambda v: quality.delta_loss_shape([1024, 2048], [[8, 16, 24], v]),
    "dense law": lambda v: quality.size_loss_dense(1e9, v),
    "MoE law": lambda v: quality.size_loss_zhao(1e11, 1e10, 1e12, v, 0.1),
    "joint law": lambda v: quality.size_loss_joint(1e10, 1e12, v),
    "train tokens": lambda v: quality.predicted_loss(MODEL, v),
    "law": lambda v: quality.size_loss(MODEL, 1e12, v),
    "designs": lambda v: quality.predicted_loss(v),
    "shape limit": lambda v: quality.quality_violations(BATCH, max_delta_loss_shape=v),
    "equal quality": lambda v: equal_quality.equal_quality(BATCH, MODEL, train_tokens=v),
    "bands' mode": lambda v: bands.load_bands(True, mode=v),
    "band": lambda v: bands.load_bands(True).with_limits({"width_over_depth": (1, v)}),
    "budget": lambda v: budget.Budget(v),
    "active budget": lambda v: budget.Budget(1e10, float("nan") if v is None else v),
    "tolerance": lambda v: budget.Budget(1e10, None, v),
    "least shard": lambda v: rules.Rules(min_shard=v),
    "floor": lambda v: rules.Rules(alignment={"hidden_size": v}),
    "rule's band": lambda v: rules.Rules(bands={"width_over_depth": v}),
    "loss guard": lambda v: rules.LossGuard(MODEL, 0.01, v),
    "fixed dimension": lambda v: a_space(fixed={"head_dim": v}),
    "dimension": lambda v: a_space(dimensions={"hidden_size": (v,)}),
    "lattice": lambda v: space.lattice(v, 10, 1),
    "lattice step": lambda v: space.lattice(1, 10, v),
    "misalignment": lambda v: alignment.misalignment(v, 128) if np.size(v) and v != -1 else alignment.misalignment(128, v),
    "chunk": lambda v: list(budget.iter_legal(a_space(), budget.Budget(1e8), rules.Rules(), chunk=v)),
}
SEARCH: dict[str, Callable[[SearchProblem, Any], Any]] = {
    "trials": lambda p, v: optimize(p, trials=v),
    "seed": lambda p, v: optimize(p, trials=3, seed=v),
    "population": lambda _, v: SearchOptions(population=v),
    "neighbour share": lambda _, v: SearchOptions(neighbour_share=v),
    "sampler": lambda _, v: SearchOptions(sampler=v),
    "workers": lambda p, v: exhaust(p, workers=v),
    "seconds": lambda p, v: certify(p, max_seconds=-1 if isinstance(v, float) and v > 0 else v),
    "user rate": lambda _, v: objectives.ThroughputAt(rate=v),
    "area rates": lambda _, v: objectives.FrontierArea(area_rates=(20.0, v)),
    "area axis": lambda _, v: objectives.FrontierArea(axis=v),
    "quality law": lambda _, v: objectives.QualityGain(law=v),
    "train tokens": lambda p, v: replace(p, train_tokens=v),
    "layout mode": lambda p, v: replace(p, layout_mode=v),
    "objectives": lambda p, v: replace(p, objectives=v),
    "spaces": lambda p, v: replace(p, spaces=v).table,
    "design ids": lambda p, v: p.table.candidates([0, v]),
    "front": lambda _, v: pareto.non_dominated(v),
    "reference point": lambda _, v: pareto.hypervolume(
        np.ones((2, 2)), [0.0, float("nan") if v == -1 else v] if np.ndim(v) == 0 else v
    ),
    "front members": lambda _, v: pareto.best_layers(np.ones((2, 2)), v),
}


@pytest.fixture(scope="module")
def problem() -> SearchProblem:
    found = make_dense()
    assert len(found.table)
    return found


def refused(call: Callable[[], Any]) -> None:
    start = time.perf_counter()
    with warnings.catch_warnings(), pytest.raises(ShapefrontError) as error:
        warnings.simplefilter("error")
        call()
    assert time.perf_counter() - start < 2
    assert 20 < len(str(error.value)) < 400


@pytest.mark.parametrize("value", ODD, ids=lambda v: f"{type(v).__name__} {v!r:.12}")
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_refuse_what_they_cannot_read(name: str, value: Any) -> None:
    empty_is_fine = {"shape penalty, width", "shape penalty, depth", "dense law", "MoE law", "joint law"}
    if name in empty_is_fine and isinstance(value, list | np.ndarray) and not len(value):
        return  # no designs, no losses
    refused(lambda: CONSTRAINTS[name](value))


@pytest.mark.parametrize("value", ODD, ids=lambda v: f"{type(v).__name__} {v!r:.12}")
@pytest.mark.parametrize("name", SEARCH)
def test_the_search_refuses_what_it_cannot_read(name: str, value: Any, problem: SearchProblem) -> None:
    refused(lambda: SEARCH[name](problem, value))
