"""Everything a design must satisfy besides the budget, as dimensionless violations (<= 0 is feasible)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError, LayoutBatch
from ..costmodel.architecture import MAX_DIMENSION
from ..costmodel.checks import LARGEST, number, numbers, whole
from ..costmodel.errors import shown
from . import divisibility
from .alignment import FLOOR, alignment_violations, shard_allowed
from .bands import band_violations
from .quality import DEFAULT_TRAIN_TOKENS, SOFT_SHAPE_LIMIT, Law, delta_loss_shape, loss_above_reference

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class LossGuard:
    """Q − Q_reference ≤ τ.

    Attributes:
        reference: the study's reference model.
        max_above_reference: τ, nats/token; negative asks for a better predicted loss.
        train_tokens: D of the size law.
        law: a published size law's name, a user's coefficients or a function (see ``quality.size_loss``).
    """

    reference: Architecture
    max_above_reference: float
    train_tokens: float = DEFAULT_TRAIN_TOKENS
    law: Law = "default"

    def __post_init__(self) -> None:
        number("max_above_reference", self.max_above_reference, "finite", low=-LARGEST)
        number("train_tokens", self.train_tokens, "above 0", above=True)

    def violation(self, batch: ArchitectureBatch) -> FloatArray:
        """(Q − Q_reference − τ) / max(0.010, |τ|), ``(A,)``; <= 0 is feasible."""
        above = loss_above_reference(batch, self.reference, self.train_tokens, self.law)
        return np.asarray((above - self.max_above_reference) / max(SOFT_SHAPE_LIMIT, abs(self.max_above_reference)))


@dataclass(frozen=True)
class Rules:
    """The hard rules of a study.

    Attributes:
        alignment: multiple per hard dimension (or one for all); 128 is the floor the hardware asks for.
        min_shard: FFN and expert shards must be multiples of it.
        max_delta_loss_shape: quality guard on depth against width, nats/token; inf turns it off.
        bands: ratio name → (low, high), from real models; an absent ratio is free.
        balanced_pipeline: PP must divide the layers.
        loss: limit on the predicted loss above the reference model's; None leaves it free.
    """

    alignment: Mapping[str, int] | int = FLOOR
    min_shard: int = FLOOR
    max_delta_loss_shape: float = 0.010
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    balanced_pipeline: bool = True
    loss: LossGuard | None = None

    def __post_init__(self) -> None:
        number(
            "max_delta_loss_shape", self.max_delta_loss_shape, "above 0", above=True, high=math.inf, way_out="inf turns it off"
        )
        whole("min_shard", self.min_shard, 1, MAX_DIMENSION)
        floors = self.alignment.items() if isinstance(self.alignment, Mapping) else (("", self.alignment),)
        for name, floor in floors:
            whole(f"alignment of {name}" if name else "alignment", floor, 1, MAX_DIMENSION)
        if not isinstance(self.bands, Mapping):
            raise InvalidValueError(f"bands must map ratio names to (low, high), got {shown(self.bands)}")
        for name, pair in self.bands.items():
            limits = numbers(f"band {name}", pair, "at least 0", high=math.inf)
            if limits.shape != (2,) or not limits[0] <= limits[1]:
                raise InvalidValueError(f"band {name} must be a pair low <= high, got {shown(pair)}")

    def violations(self, batch: ArchitectureBatch) -> dict[str, FloatArray]:
        """Every rule as a dimensionless number, ``(A,)`` each; <= 0 is feasible.

        ``delta_loss_shape``: value/limit − 1. ``band.*``: relative distance outside the band. ``alignment.*``: missing
        share of a step.
        """
        result = alignment_violations(batch, self.alignment)
        if np.isfinite(self.max_delta_loss_shape):
            shape = delta_loss_shape(batch.hidden_size, batch.num_hidden_layers)
            result["delta_loss_shape"] = np.asarray(shape / self.max_delta_loss_shape - 1.0)
        for name, value in band_violations(batch, self.bands).items():
            result[f"band.{name}"] = value
        if self.loss is not None:
            result["loss_above_reference"] = self.loss.violation(batch)
        return result

    def feasible(self, batch: ArchitectureBatch) -> NDArray[np.bool_]:
        """Designs that break no rule, ``(A,)``."""
        ok = np.ones(len(batch), dtype=bool)
        for value in self.violations(batch).values():
            ok &= value <= 0
        return ok

    def layouts_allowed(self, batch: ArchitectureBatch, layouts: LayoutBatch) -> NDArray[np.bool_]:
        """Layouts that divide each design with aligned shards, ``(A, P)``."""
        divides = divisibility.layout_allowed(batch, layouts, balanced_pipeline=self.balanced_pipeline)
        return np.asarray(divides & shard_allowed(batch, layouts, self.min_shard))
