"""Review one design: every guideline's drafts, priced, worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...costmodel.architecture import Architecture
from ...costmodel.errors import InvalidValueError
from ...costmodel.serving import ServingSetup
from ..quality import SOFT_SHAPE_LIMIT, predicted_loss
from . import alignment, decoupling, depth, experts, pipeline, precision, shape
from .catalogue import RULES
from .considered import Considered
from .finding import FINDING_SHARE, Draft, Finding
from .pricing import OperatingPoint, Pricer

DEFAULT_RATES = (20.0, 100.0)  # tokens/s/user: throughput and latency (the project's study defaults)
GUIDELINES = (shape, alignment, depth, precision, experts, pipeline, decoupling)


@dataclass(frozen=True, slots=True)
class Review:
    """What a review found.

    Attributes:
        design: the design.
        rates: user rates, tokens/s/user: throughput and latency.
        points: the design's best operating point at each rate, None where no layout reaches it.
        findings: departures that cost at least the threshold share of the step time at a rate, worst first.
        information: the cheaper ones, those that are no property of the design and those without an acceptable fix, worst first.
    """

    design: Architecture
    rates: tuple[float, float]
    points: tuple[OperatingPoint | None, ...]
    findings: tuple[Finding, ...]
    information: tuple[Finding, ...]

    @property
    def all(self) -> tuple[Finding, ...]:
        """Findings, then information."""
        return self.findings + self.information


def structural_drafts(design: Architecture, considered: Considered) -> list[Draft]:
    """Every departure from a guideline, unpriced."""
    return [draft for guideline in GUIDELINES for draft in guideline.drafts(design, considered)]


def review(
    design: Architecture,
    setup: ServingSetup,
    *,
    rates: Sequence[float] = DEFAULT_RATES,
    finding_share: float = FINDING_SHARE,
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT,
) -> Review:
    """Hold a design to the seven guidelines and price each departure in one deployment.

    A departure's cost is the share of the decode step's time that the compliant neighbours save, everything else equal, at the
    design's best layout and concurrency for each rate. Where a neighbour is smaller or larger, the time is taken on the straight
    line between the neighbours below and above, so that the mere effect of size does not count. A fix that is slower at every
    rate, or whose predicted loss rises by more than the guard's limit, is not offered; such a departure is information.

    Args:
        design: the design.
        setup: deployment: workload, formats, profile and the layouts considered.
        rates: user rates, tokens/s/user: throughput and latency.
        finding_share: least share of the step time that makes a finding.
        max_delta_loss_shape: limit of the shape penalty and of the predicted loss a fix may add, nats/token.

    Raises:
        InvalidValueError: the rates are not two positive numbers, or the design fits no layout at either rate.
    """
    if len(rates) != 2 or not all(0 < rate < math.inf for rate in rates):
        raise InvalidValueError(f"rates must be two positive numbers of tokens/s/user (throughput, latency), got {rates!r:.60}")
    pricer = Pricer(design, setup, (float(rates[0]), float(rates[1])))
    if all(point is None for point in pricer.points):
        from ...costmodel.serving_frontier import frontier
        from ..divisibility import layout_allowed

        batch = pricer.batch
        frontier(design, setup, allowed=layout_allowed(batch, setup.layouts))  # raises when it does not fit, naming the GPUs
        raise InvalidValueError(
            f"no layout considered serves {rates[0]:g} or {rates[1]:g} tokens/s/user; lower the rates or add GPUs"
        )
    drafts = structural_drafts(design, Considered.of(design, setup, max_delta_loss_shape))
    pricer.prepare(drafts)
    priced = [_finding(draft, pricer, finding_share, max_delta_loss_shape) for draft in drafts]
    priced.sort(key=lambda f: (-f.cost_share, f.id, f.dimension))
    return Review(
        design,
        (float(rates[0]), float(rates[1])),
        pricer.points,
        tuple(f for f in priced if f.level == "finding"),
        tuple(f for f in priced if f.level != "finding"),
    )


def _refused(draft: Draft, own: Architecture, gains: Sequence[float | None], max_loss_rise: float) -> str:
    """Why a draft's fix is not offered; empty where it is."""
    if draft.fixed is None:
        return ""
    what = ", ".join(f"{name}={value}" for name, value in draft.fix.items())
    told = [gain for gain in gains if gain is not None]
    if told and max(told) < 0:
        return f"no fix offered: {what} would be slower at every rate ({' / '.join(f'{gain:+.2%}' for gain in told)})"
    rise = float(predicted_loss(draft.fixed)[0] - predicted_loss(own)[0])
    if rise > max_loss_rise:
        return f"no fix offered: {what} would raise the predicted loss by more than {max_loss_rise:g} nats/token ({rise:+.4f})"
    return ""


def _finding(draft: Draft, pricer: Pricer, finding_share: float, max_loss_rise: float) -> Finding:
    costs, gains = ([None if math.isnan(v) else float(v) for v in row] for row in pricer.price(draft))
    prefill = pricer.prefill_cost(draft)
    rule, refused = RULES[draft.id], _refused(draft, pricer.design, gains, max_loss_rise)
    fixed = None if refused else draft.fixed
    if refused:
        gains = [None] * len(gains)
    advisory = draft.advisory if isinstance(draft.advisory, bool) else draft.advisory(pricer)
    worst = max([c for c in costs if c is not None], default=0.0)
    own = pricer.design
    return Finding(
        id=draft.id,
        guideline=rule.guideline,
        dimension=draft.dimension,
        value=float(draft.value),
        threshold=float(draft.threshold),
        message=draft.message,
        fix={} if refused else dict(draft.fix),
        source=rule.source,
        note="; ".join(filter(None, (draft.note, refused))),
        level="finding" if worst >= finding_share and not advisory and not refused else "information",
        cost_share_throughput=costs[0],
        cost_share_latency=costs[1],
        cost_share_prefill=None if math.isnan(prefill) else prefill,
        gain_throughput=gains[0],
        gain_latency=gains[1],
        total_params_change=None if fixed is None else fixed.total_params / own.total_params - 1,
        active_params_change=None if fixed is None else fixed.active_params / own.active_params - 1,
    )
