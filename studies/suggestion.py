"""What ``suggest`` returns: typed results with plain values by the stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..constraints.guidelines import Review
from ..constraints.quality import LawComparison
from ..costmodel.architecture import INTEGER_FIELDS, Architecture
from ..costmodel.profile import load_profile
from ..search.problem import SearchProblem
from .check import finding_dict
from .suggest_explain import LatticeStep
from .waterfall import Waterfall


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One suggested design.

    Attributes:
        design: its dimensions.
        reason: why it is among the few.
        throughput: rate → tokens/s/GPU.
        frontier_area: area under its frontier over ln(rate).
        delta_loss_shape: shape penalty, nats/token.
        laws: predicted loss minus the nearest real model's by every law that covers both, with the range of its fit.
        kv_bytes_per_token: over all layers, B.
        nearest: the nearest real model, for orientation.
        nearest_throughput: its tokens/s/GPU at the same rates in the same deployment with its own best layouts.
        equal_quality: at equal quality with it.
        gives_up: what it gives up against it, in words.
        waterfall: where its gain in frontier area over it comes from.
        explanation: each dimension's next lattice steps.
        review: its departures from the guidelines.
    """

    design: Architecture
    reason: str
    throughput: Mapping[float, float]
    frontier_area: float
    delta_loss_shape: float
    laws: tuple[LawComparison, ...]
    kv_bytes_per_token: float
    nearest: Architecture
    nearest_throughput: Mapping[float, float]
    equal_quality: bool
    gives_up: tuple[str, ...]
    waterfall: Waterfall
    explanation: tuple[LatticeStep, ...]
    review: Review | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by the stable names."""
        d = self.design
        return {
            "name": d.name,
            "reason": self.reason,
            **{name: getattr(d, name) for name in (*INTEGER_FIELDS, "tie_word_embeddings", "attention")},
            "total_params": d.total_params,
            "active_params": d.active_params,
            "active_params_with_embedding": d.active_params_with_embedding,
            "tokens_per_second_per_gpu": {f"{rate:g}": value for rate, value in self.throughput.items()},
            "frontier_area": self.frontier_area,
            "delta_loss_shape": self.delta_loss_shape,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "nearest_model": self.nearest.name,
            "nearest_model_tokens_per_second_per_gpu": {f"{r:g}": v for r, v in self.nearest_throughput.items()},
            "laws": [asdict(law) for law in self.laws],
            "equal_quality": self.equal_quality,
            "gives_up": list(self.gives_up),
            "waterfall": self.waterfall.to_dict(),
            "explanation": [step.to_dict() for step in self.explanation],
            "findings": [] if self.review is None else [finding_dict(f) for f in self.review.findings],
        }


@dataclass(frozen=True, slots=True)
class SuggestResult:
    """The answer of ``suggest``.

    Attributes:
        designs: the suggestions, throughput end first.
        problem: what they were chosen from: space, budget, rules, deployment.
        template: the model whose kind, tokenizer and head size were kept.
        legal: legal designs priced.
        rates: user rates, tokens/s/user: throughput end, the user's, latency end.
        notes: what a reader must know beside the numbers.
    """

    designs: tuple[Suggestion, ...]
    problem: SearchProblem
    template: Architecture
    legal: int
    rates: tuple[float, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values by the stable names."""
        return {
            "designs": [s.to_dict() for s in self.designs],
            "template": self.template.name,
            "legal_architectures": self.legal,
            "rates": list(self.rates),
            "profile": load_profile(self.problem.setup.profile).name,
            "budget": {
                "total_params": self.problem.budget.total_params,
                "active_params": self.problem.budget.active_params,
                "tolerance": self.problem.budget.tolerance,
            },
            "notes": list(self.notes),
        }
