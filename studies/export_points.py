"""From a result's design to pools of replicas: the operating point, what a server can run, prefill and decode apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError, Layout, LayoutBatch, TensorFormats, Workload
from .exporters.deployment import GPUS_PER_NODE, Deployment, Pool
from .result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..costmodel.serving import ServingSetup
    from ..search.problem import SearchProblem

Refusals = Callable[..., list[str]]  # (architecture, pool, disaggregated) → why a server cannot run the pool


def design_formats(result: Result, row: Mapping[str, Any]) -> TensorFormats:
    """Number formats of one design: the study's, changed by its family where the study has families."""
    formats = dict(result.data.get("settings", {}).get("formats", {}))
    for family in result.data.get("spec", {}).get("families", []):
        if family.get("name") == row.get("family"):
            formats |= {key: value for key, value in (family.get("formats") or {}).items() if value is not None}
    return TensorFormats(**formats)


def deployment_of(result: Result, row: Mapping[str, Any], *, rate: float | None = None, replicas: int = 1) -> Deployment:
    """The operating point of one design at a user rate, as pools to start.

    Args:
        result: what a study found.
        row: one of its architectures (or the reference).
        rate: tokens/s/user each user must get; the study's first rate if None.
        replicas: (decode) replicas.

    Raises:
        InvalidValueError: the design has no operating point at this rate.
    """
    wanted = float(result.data["rates"][0]) if rate is None else rate
    return _deployment(result, row, operating_point(row, wanted), replicas)


def _deployment(result: Result, row: Mapping[str, Any], point: Mapping[str, Any], replicas: int) -> Deployment:
    settings, spec = result.data.get("settings", {}), result.data.get("spec", {})
    workload = {
        key: spec.get("workload", {})[key] for key in ("input_tokens", "output_tokens") if key in spec.get("workload", {})
    }
    figures = (
        f"estimate of the cost model: {point['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU at "
        f"{point['tokens_per_second_per_user']:,.0f} tokens/s/user (profile {settings.get('profile', '?')}"
        f"{'' if point.get('prefill_layout') else '; decode steps, prefill is not in it'})"
    )
    return Deployment(
        architecture=result.architecture(row["architecture_id"]),
        pools=_pools(point, replicas),
        formats=design_formats(result, row),
        workload=Workload(**workload),
        name=f"{result.data['study']} {row['architecture_id']}",
        gpus_per_node=GPUS_PER_NODE.get(str(settings.get("hardware")), 8),
        note=figures,
    )


def operating_point(row: Mapping[str, Any], rate: float) -> Mapping[str, Any]:
    """The point with the highest throughput at which every user gets ``rate``.

    Raises:
        InvalidValueError: no layout reaches it; the message names the highest rate that one does.
    """
    exact = [point for point in row["at_rates"] if point["rate"] == rate and point["gpus"]]
    reached = [point for point in row["frontier"] if point["tokens_per_second_per_user"] >= rate]
    if exact and not any(point.get("prefill_layout") for point in reached):
        chosen: Mapping[str, Any] = exact[0]  # concurrency between the grid points of the frontier
        return chosen
    if not reached:
        best = max((point["tokens_per_second_per_user"] for point in row["frontier"]), default=0.0)
        raise InvalidValueError(
            f"no operating point of {row['architecture_id']} gives every user {rate:g} tokens/s; the highest is {best:.4g}"
        )
    found: Mapping[str, Any] = max(reached, key=lambda point: float(point["tokens_per_second_per_gpu"]))
    return found


def runnable_deployment(
    result: Result, row: Mapping[str, Any], refusals: Refusals, refused: Deployment, rate: float | None
) -> Deployment | None:
    """The best operating point among the layouts this server can run; None where there is none (or two pools)."""
    if refused.disaggregated:
        return None
    from ..costmodel.serving import throughput_at_rates

    problem, setup, batch = _priced_again(result, row)
    allowed = problem.rules.layouts_allowed(batch, setup.layouts) & _runnable(
        refusals, refused.architecture, setup.layouts, "both"
    )
    wanted = float(result.data["rates"][0]) if rate is None else rate
    table = throughput_at_rates(batch, setup, [wanted], allowed=allowed)
    throughput, index = float(table.tokens_per_second_per_gpu[0, 0]), int(table.layout_index[0, 0])
    if index < 0:
        return None
    pool = Pool(
        layout=setup.layouts.layout(index), concurrency=float(table.concurrency[0, 0]), replicas=refused.pools[0].replicas
    )
    best = operating_point(row, wanted)["tokens_per_second_per_gpu"]
    note = (
        f"estimate of the cost model: {throughput:,.0f} tokens/s/GPU, {throughput / best - 1:+.1%} against the best layout "
        f"({refused.pools[0].layout}), which this server cannot run"
    )
    return replace(refused, pools=(pool,), note=note)


def disaggregated_deployment(
    result: Result,
    row: Mapping[str, Any],
    refusals: Refusals,
    *,
    rate: float | None = None,
    replicas: int = 1,
    gpu_budget: int = 0,
) -> Deployment:
    """A prefill and a decode pool for one design, both of layouts that the server can run.

    Args:
        result: what a study found.
        row: one of its architectures (or the reference).
        refusals: why the server cannot run a pool.
        rate: tokens/s/user each user must get; the study's first rate if None.
        replicas: decode replicas where there is no budget.
        gpu_budget: GPUs of both pools together; 0 = none.

    Raises:
        InvalidValueError: no pair of pools serves the design at this rate.
    """
    from ..costmodel.serving_frontier import frontier

    problem, setup, batch = _priced_again(result, row)
    design = batch.architecture(0)
    legal = problem.rules.layouts_allowed(batch, setup.layouts)
    decode = legal & _runnable(refusals, design, setup.layouts, "decode")
    prefill = legal & _runnable(refusals, design, setup.layouts, "prefill")
    if not decode.any() or not prefill.any():
        raise InvalidValueError(
            f"none of the study's {len(setup.layouts)} layouts can be run by the server in a disaggregated pair"
        )
    pair = setup.with_(mode="disaggregated", prefill_layouts=setup.layouts.take(prefill[0]), gpu_budget=gpu_budget)
    wanted = float(result.data["rates"][0]) if rate is None else rate
    rows = frontier(design, pair, allowed=decode).rows()
    point = operating_point({"architecture_id": row["architecture_id"], "frontier": rows, "at_rates": []}, wanted)
    return _deployment(result, row, point, replicas)


def _priced_again(result: Result, row: Mapping[str, Any]) -> tuple[SearchProblem, ServingSetup, ArchitectureBatch]:
    """The study's problem, its deployment at the design's formats, and the design as a batch of one."""
    from .study import Study

    problem = Study.from_dict(result.spec).problem()
    design = result.architecture(row["architecture_id"])
    return problem, problem.setup.with_(formats=design_formats(result, row)), ArchitectureBatch.from_architectures([design])


def _runnable(refusals: Refusals, design: Architecture, layouts: LayoutBatch, role: str) -> NDArray[np.bool_]:
    """Which layouts the server can run in this role, ``(P,)``."""
    pools = (Pool(layout=layout, concurrency=1.0, role=role) for layout in layouts)
    return np.array([not refusals(design, pool, role != "both") for pool in pools])


def _pools(point: Mapping[str, Any], replicas: int) -> tuple[Pool, ...]:
    layout = _layout(point)
    prefill = point.get("prefill_layout")
    if not prefill:
        return (Pool(layout=layout, concurrency=point["concurrency"], replicas=replicas),)
    place = _layout(prefill)
    if replicas == 1 and float(point["decode_workers"]).is_integer() and float(point["prefill_workers"]).is_integer():
        replicas = int(point["decode_workers"])  # a split within a GPU budget is in whole replicas already
    share = point["prefill_workers"] / point["decode_workers"] * replicas
    decode = Pool(layout=layout, concurrency=point["concurrency"], replicas=replicas, role="decode")
    # a prefill replica takes one chunk at a time: one prompt per attention rank
    return (Pool(layout=place, concurrency=float(place.dpa), replicas=max(1, round(share)), role="prefill"), decode)


def _layout(point: Mapping[str, Any]) -> Layout:
    return Layout(**{name: int(point[name]) for name in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")})
