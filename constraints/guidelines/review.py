"""Review one design: every guideline's drafts, priced, worst first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...costmodel.architecture import Architecture
from ...costmodel.errors import InvalidValueError
from ...costmodel.serving import ServingSetup
from ..quality import SOFT_SHAPE_LIMIT, predicted_loss
from . import alignment, decoupling, depth, experts, pipeline, precision, shape
from .alternatives import rounded_up
from .catalogue import RULES
from .considered import Considered
from .finding import FINDING_SHARE, Draft, Finding
from .neighbours import changes
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
    rate is not offered; where rounding down raises the predicted loss by more than the guard's limit, the neighbour above is
    offered instead, with another dimension smaller so that the parameters stay if there is one. A departure without a fix to
    offer is information, and says what the refused ones would cost.

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


@dataclass(frozen=True, slots=True)
class _Option:
    """A priced fix: the design it makes, tokens/s/GPU gained at each rate, predicted loss added."""

    fix: Mapping[str, Any]
    design: Architecture | None
    gains: tuple[float | None, ...]
    loss: float | None

    @classmethod
    def of(cls, fix: Mapping[str, Any], fixed: Architecture | None, gains: Sequence[float], own: Architecture) -> _Option:
        loss = None if fixed is None else float(predicted_loss(fixed)[0] - predicted_loss(own)[0])
        return cls(fix, fixed, tuple(None if math.isnan(gain) else float(gain) for gain in gains), loss)

    @property
    def slower(self) -> bool:
        """Slower at every rate that can be told."""
        told = [gain for gain in self.gains if gain is not None]
        return bool(told) and max(told) < 0

    @property
    def what(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.fix.items())

    def effect(self, own: Architecture) -> str:
        """Change of the total and of the predicted loss, in words; empty where there is none to tell."""
        if self.design is None or self.loss is None:
            return ""
        change = self.design.total_params / own.total_params - 1
        parts = [f"the total by {change:+.2%}"] if abs(change) >= 0.0005 else []
        parts += [f"the predicted loss by {self.loss:+.4f} nats/token"] if abs(self.loss) >= 0.00005 else []
        return f"the fix changes {' and '.join(parts)}" if parts else ""

    def priced(self, own: Architecture) -> str:
        """Everything it costs, in one clause."""
        gains = " / ".join("–" if gain is None else f"{gain:+.2%}" for gain in self.gains)
        total = 0.0 if self.design is None else self.design.total_params / own.total_params - 1
        return f"{self.what}: tokens/s/GPU {gains}, total {total:+.2%}, predicted loss {self.loss:+.4f} nats/token"


def _choose(draft: Draft, pricer: Pricer, gains: Sequence[float], max_loss_rise: float) -> tuple[_Option | None, str]:
    """The fix that is offered, or None, and what is said about the ones that are not."""
    own = pricer.design
    option = _Option.of(draft.fix, draft.fixed, gains, own)
    if option.slower and option.fix:
        told = " / ".join(f"{gain:+.2%}" for gain in option.gains if gain is not None)
        return None, f"no fix offered: {option.what} would be slower at every rate ({told})"
    if option.loss is None or option.loss <= max_loss_rise:
        return option, ""
    down = f"{option.what} would raise the predicted loss by more than {max_loss_rise:g} nats/token ({option.loss:+.4f})"
    others = [_Option.of(changes(own, up), up, pricer.gains(up), own) for up in rounded_up(own, draft)]
    within = [other for other in others if other.loss is not None and other.loss <= max_loss_rise]
    if (better := next((other for other in within if not other.slower), None)) is not None:
        return better, f"rounded up, because {down}{_depth(better, own)}"
    if within:
        return None, f"no fix offered: {down}; rounded up it is slower at every rate: {within[0].priced(own)}"
    return None, f"no fix offered: {down}"


def _depth(option: _Option, own: Architecture) -> str:
    """What a fix that takes layers away owes to the depth."""
    if option.design is None or option.design.num_hidden_layers == own.num_hidden_layers:
        return ""
    share = option.design.num_hidden_layers / own.num_hidden_layers
    return f"; layers x{share:.2f}, so the KV cache per token too, and the gain is that of the depth as well"


def _finding(draft: Draft, pricer: Pricer, finding_share: float, max_loss_rise: float) -> Finding:
    raw_costs, raw_gains = pricer.price(draft)
    costs = [None if math.isnan(v) else float(v) for v in raw_costs]
    prefill = pricer.prefill_cost(draft)
    rule, own = RULES[draft.id], pricer.design
    chosen, said = _choose(draft, pricer, raw_gains, max_loss_rise)
    fixed = None if chosen is None else chosen.design
    advisory = draft.advisory if isinstance(draft.advisory, bool) else draft.advisory(pricer)
    worst = max([c for c in costs if c is not None], default=0.0)
    effect = "" if chosen is None else chosen.effect(own)
    gains = (None, None) if chosen is None else chosen.gains
    return Finding(
        id=draft.id,
        guideline=rule.guideline,
        dimension=draft.dimension,
        value=float(draft.value),
        threshold=float(draft.threshold),
        message=draft.message,
        fix={} if chosen is None else dict(chosen.fix),
        source=rule.source,
        note="; ".join(filter(None, (draft.note, effect, said))),
        level="finding" if worst >= finding_share and not advisory and chosen is not None else "information",
        cost_share_throughput=costs[0],
        cost_share_latency=costs[1],
        cost_share_prefill=None if math.isnan(prefill) else prefill,
        gain_throughput=gains[0],
        gain_latency=gains[1],
        total_params_change=None if fixed is None else fixed.total_params / own.total_params - 1,
        active_params_change=None if fixed is None else fixed.active_params / own.active_params - 1,
        loss_change=None if chosen is None else chosen.loss,
    )
