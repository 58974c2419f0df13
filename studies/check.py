"""Check one model against the seven guidelines: what each departure costs, and the nearest better dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..constraints.equal_quality import LOSS_SLACK
from ..constraints.guidelines import FINDING_SHARE, RULES, Finding, OperatingPoint, Review, review
from ..constraints.guidelines.review import DEFAULT_RATES
from ..constraints.laws import CAVEATS, fit_warnings
from ..constraints.quality import SOFT_SHAPE_LIMIT, delta_loss_shape
from ..costmodel.architecture import INTEGER_FIELDS, Architecture
from ..costmodel.errors import InvalidValueError, did_you_mean
from ..costmodel.models import model_rows
from ..costmodel.profile import load_profile
from ..costmodel.serving import ServingSetup
from .deployment import setup_for
from .hf_config import read_config

FAIL_ON = ("finding", "information", "never")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A checked model.

    Attributes:
        source: what was given: a path or a name.
        review: findings and information, worst first.
        setup: the deployment they are priced in.
        warnings: where the figures do not hold: shapes the engine only approximates, laws beyond their fit.
    """

    source: str
    review: Review
    setup: ServingSetup
    warnings: tuple[str, ...]

    @property
    def design(self) -> Architecture:
        """The checked design."""
        return self.review.design

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Departures that cost at least half a percent of the step time, worst first."""
        return self.review.findings

    def fails(self, on: str = "finding") -> bool:
        """Whether a run with ``--fail-on`` this value fails.

        Args:
            on: ``finding``, ``information`` (any departure), ``never``, or rule ids separated by commas (any departure from those
                rules, whatever it costs).

        Raises:
            InvalidValueError: none of these.
        """
        if on not in FAIL_ON:
            wanted = [part.strip().upper() for part in on.split(",")]
            for rule in wanted:
                if rule not in RULES:
                    raise InvalidValueError(
                        f"fail-on must be finding, information, never or rule ids like SF003,SF009, got '{rule[:40]}'"
                        f"{did_you_mean(rule, RULES)}"
                    )
            return any(f.id in wanted for f in self.review.all)
        return bool(self.findings if on == "finding" else self.review.all if on == "information" else ())

    def to_dict(self) -> dict[str, Any]:
        """Plain values by the stable names; findings first, information after them, each worst first."""
        design, points = self.design, self.review.points
        return {
            "name": design.name,
            **{name: getattr(design, name) for name in (*INTEGER_FIELDS, "tie_word_embeddings", "attention")},
            "total_params": design.total_params,
            "active_params": design.active_params,
            "active_params_with_embedding": design.active_params_with_embedding,
            "delta_loss_shape": float(delta_loss_shape(design.hidden_size, design.num_hidden_layers)),
            "profile": load_profile(self.setup.profile).name,
            "points": {
                role: None if point is None else point_dict(point)
                for role, point in zip(("throughput", "latency"), points, strict=True)
            },
            "findings": [finding_dict(f) for f in self.review.all],
            "warnings": list(self.warnings),
        }


def point_dict(point: OperatingPoint) -> dict[str, Any]:
    """An operating point by the stable names."""
    return {
        **point.layout.to_dict(),
        "concurrency": point.concurrency,
        "tokens_per_second_per_gpu": point.tokens_per_second_per_gpu,
        "tokens_per_second_per_user": 1.0 / point.seconds,
        "itl_seconds": point.seconds,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding by the stable names."""
    names = (
        "id level guideline dimension value threshold cost_share_throughput cost_share_latency cost_share_prefill fix "
        "gain_throughput gain_latency total_params_change active_params_change loss_change message note source"
    ).split()
    return {name: getattr(finding, name) for name in names} | {"fix_equal_quality": fix_equal_quality(finding)}


def limits_text(limit: float = SOFT_SHAPE_LIMIT) -> str:
    """Why a fix may cost more predicted loss than equal quality allows.

    Args:
        limit: predicted loss a fix may add in this check, nats/token.
    """
    return (
        f"a fix is offered up to {limit:g} nats/token of predicted loss, because a check looks for speed within a guard; "
        f"equal quality allows {LOSS_SLACK:g} a loss term, because there a gain must not be paid for in loss"
    )


def fix_equal_quality(finding: Finding) -> bool | None:
    """Whether a fix stays within equal quality's limit on the predicted loss; None where it does not change the design."""
    return None if finding.loss_change is None else finding.loss_change <= LOSS_SLACK


def fix_loss_text(loss: float | None) -> str:
    """Predicted loss that a fix adds, nats/token, marked beyond equal quality's limit; ``–`` where the design stays."""
    if loss is None:
        return "–"
    return f"{loss:+.4f}{', not equal quality' if loss > LOSS_SLACK else ''}"


def check(
    source: str | Path | Architecture,
    *,
    setup: ServingSetup | None = None,
    rates: Sequence[float] = DEFAULT_RATES,
    finding_share: float = FINDING_SHARE,
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT,
    **options: Any,
) -> CheckResult:
    """Hold a model to the guidelines.

    Args:
        source: a design, a config.json, a file of ours, or a built-in model's name.
        setup: deployment; None takes the study defaults for the model's size, changed by ``options``
            (:func:`shapefront.studies.deployment.default_setup`).
        rates: user rates, tokens/s/user: throughput and latency.
        finding_share: least share of the step time that makes a finding.
        max_delta_loss_shape: limit of the shape penalty, nats/token.
        **options: ``input_tokens``, ``output_tokens``, ``profile``, ``hardware``, ``gpus``, ``formats``, ``load``.

    Raises:
        ShapefrontError: the model cannot be read, an option is out of range, or no layout serves it.
    """
    if not 0 < finding_share < 1:
        raise InvalidValueError(f"the least share of a finding must be above 0 and below 1, got {finding_share}")
    design = source if isinstance(source, Architecture) else read_config(source)
    setup = setup_for(design, **options) if setup is None else setup
    found = review(design, setup, rates=rates, finding_share=finding_share, max_delta_loss_shape=max_delta_loss_shape)
    return CheckResult(str(design.name if isinstance(source, Architecture) else source), found, setup, _warnings(design))


def _warnings(design: Architecture) -> tuple[str, ...]:
    found = [f"{row.name}: {row.reason}" for row in model_rows() if "shape" in row.not_covered and row.architecture == design]
    beyond = fit_warnings(design)
    if beyond:
        found += [*beyond, CAVEATS[0]]
    return tuple(found)
