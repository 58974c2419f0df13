"""What a guideline reports: a draft (structure only) and, once priced, a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...costmodel.architecture import Architecture

if TYPE_CHECKING:
    from .pricing import Pricer

FINDING_SHARE = 0.005  # a finding costs at least this share of the step time; cheaper ones are information (design choice)
BLOG = "NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026)"
Prices = tuple[tuple[float, ...], tuple[float, ...]]  # (cost share, gain), each one number per rate; NaN = cannot be told


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is checked.

    Attributes:
        id: stable id.
        guideline: number of the co-design post's guideline, 1-7; 0 = the quality guard.
        title: one line.
        help: what it means and how it is priced.
        source: where rule and threshold come from.
    """

    id: str
    guideline: int
    title: str
    help: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A departure from a guideline, before it is priced.

    Attributes:
        id: rule id.
        dimension: what departs; dimensions by their stable names, ``formats.*``, ``layout.*`` and ``workload.*`` otherwise.
        value: what was measured.
        threshold: what the guideline asks for.
        message: one sentence for people.
        fix: dimension → value that removes the departure; empty where nothing in the design can.
        fixed: the design after the fix, None where the fix is not a dimension of the design.
        low, high: two compliant neighbours that differ from the design in ``along`` only; the step time between them is taken
            as linear, which removes the mere effect of being smaller or larger.
        along: dimension that separates the neighbours.
        reoptimise: price by throughput with layouts chosen anew instead of the step time at the design's best layout.
        price: own pricing in place of the neighbours'.
        advisory: never a finding, whatever it costs (not a property of the design, or not of its best layout).
        note: what the fix gives up and no price shows.
    """

    id: str
    dimension: str
    value: float
    threshold: float
    message: str
    fix: Mapping[str, Any] = field(default_factory=dict)
    fixed: Architecture | None = None
    low: Architecture | None = None
    high: Architecture | None = None
    along: str = ""
    reoptimise: bool = False
    price: Callable[[Pricer], Prices] | None = None
    advisory: bool | Callable[[Pricer], bool] = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A priced departure from a guideline.

    Attributes:
        id: rule id, e.g. ``SF003``.
        guideline: number of the guideline.
        dimension: what departs.
        value: what was measured.
        threshold: what the guideline asks for.
        message: one sentence for people.
        fix: dimension → value that removes the departure.
        source: where rule and threshold come from.
        note: what the fix gives up and no price shows.
        level: ``finding`` (costs at least :data:`FINDING_SHARE` of the step time at a rate) or ``information`` (cheaper, or
            no property of the design, or its fix would be slower or outside the quality guard and is not offered).
        cost_share_throughput, cost_share_latency: share of the step time that the departure costs at the two user rates,
            against the compliant neighbours with everything else equal; None where it cannot be told.
        cost_share_prefill: the same share of the prefill's time on the layout of the throughput rate; shown beside the others, it
            makes no finding; None where it cannot be told.
        gain_throughput, gain_latency: change of tokens/s/GPU at the two rates when the fix is applied and layouts are chosen
            anew; None where the fix is not priced.
        total_params_change, active_params_change: relative change of the counts by the fix.
        loss_change: predicted loss after the fix minus before, nats/token; None where the fix is no change of the design.
    """

    id: str
    guideline: int
    dimension: str
    value: float
    threshold: float
    message: str
    fix: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    note: str = ""
    level: str = "information"
    cost_share_throughput: float | None = None
    cost_share_latency: float | None = None
    cost_share_prefill: float | None = None
    gain_throughput: float | None = None
    gain_latency: float | None = None
    total_params_change: float | None = None
    active_params_change: float | None = None
    loss_change: float | None = None

    @property
    def cost_share(self) -> float:
        """The larger of the two cost shares; 0 where neither can be told."""
        return max(self.cost_share_throughput or 0.0, self.cost_share_latency or 0.0)

    @property
    def fix_text(self) -> str:
        """``hidden_size=2816, …``."""
        return ", ".join(f"{name}={value}" for name, value in self.fix.items())
