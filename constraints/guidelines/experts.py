"""Guideline 5: many experts pay off with wide expert parallelism."""

from __future__ import annotations

import math

import numpy as np

from ...costmodel.architecture import Architecture
from ...costmodel.layout import Layout, LayoutBatch
from .considered import Considered
from .finding import Draft, Prices
from .neighbours import around
from .pricing import Pricer

MEASURED_ROUTING = "power_law_1.01"  # routing of measured kernel tables (measured)
WIDE = (16, 32, 64, 72)


def drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """SF012-SF014 of one design."""
    if not design.num_experts:
        return []
    return [*_wide_parallelism(design, considered), *_division(design, considered), _routing()]


def _wide_parallelism(design: Architecture, considered: Considered) -> list[Draft]:
    wide = [g for g in WIDE if considered.gpus < g <= considered.scale_up_gpus and design.num_experts % g == 0]
    if not wide:
        return []
    layouts = LayoutBatch.from_layouts([Layout(dpa=g, ep=g) for g in wide])

    def price(pricer: Pricer) -> Prices:
        points = pricer.best_points(pricer.setup.with_(layouts=layouts))
        own = pricer.point_throughput()
        best = np.array([math.nan if p is None else p.tokens_per_second_per_gpu for p in points])
        return tuple(np.maximum(1.0 - own / best, 0.0).tolist()), tuple(np.maximum(best / own - 1.0, 0.0).tolist())

    return [
        Draft(
            id="SF012",
            dimension="layout.ep",
            value=considered.expert,
            threshold=wide[-1],
            message=f"{design.num_experts} experts, top-{design.num_experts_per_tok}: each sees "
            f"{design.num_experts_per_tok}/"
            f"{design.num_experts} of the tokens in flight; expert parallelism over up to {wide[-1]} "
            "GPUs gathers more of them",
            fix={"layout.ep": wide[-1], "layout.dpa": wide[-1]},
            price=price,
            advisory=True,
            note="a choice of deployment, not of the design",
        )
    ]


def _division(design: Architecture, considered: Considered) -> list[Draft]:
    ranks = considered.expert
    if design.num_experts % ranks == 0:
        return []
    neighbours = around(design, "num_experts", ranks, lambda count: count >= design.num_experts_per_tok)
    if neighbours is None:
        return []
    low, high, fixed = neighbours
    return [
        Draft(
            id="SF013",
            dimension="num_experts",
            value=design.num_experts,
            threshold=ranks,
            message=f"{design.num_experts} experts do not divide over expert parallelism {ranks}",
            fix={"num_experts": fixed.num_experts},
            fixed=fixed,
            low=low,
            high=high,
            along="num_experts",
            reoptimise=True,
        )
    ]


def _routing() -> Draft:
    def price(pricer: Pricer) -> Prices:
        if pricer.setup.workload.load != "balanced":
            return tuple(math.nan for _ in pricer.rates), tuple(math.nan for _ in pricer.rates)
        costs = []
        for point in pricer.points:
            if point is None:
                costs.append(math.nan)
            else:
                costs.append(1.0 - point.seconds / pricer.step_with_load(point, MEASURED_ROUTING))
        return tuple(costs), tuple(math.nan for _ in costs)

    return Draft(
        id="SF014",
        dimension="workload.load",
        value=1.0,
        threshold=1.0,
        message=f"with measured routing ({MEASURED_ROUTING}) the fullest rank would set the pace; balanced routing is priced",
        fix={"workload.load": "balanced"},
        price=price,
        advisory=True,
        note="a load balancer's job, not the design's",
    )
