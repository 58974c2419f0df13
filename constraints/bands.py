"""Bands: the ratios that no published law judges, held to what released models do.

Percentiles are computed from the built-in models (``costmodel/data/models``), per class: dense or MoE. LongCat-Flash is left
out (two attention blocks a layer); MQA models are left out of heads/KV heads (one KV head makes the ratio the head count).
Status: inferred (statistics of released shapes, not a law of quality).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch
from ..costmodel.checks import LARGEST, numbers
from ..costmodel.errors import InvalidValueError, check_keys
from ..costmodel.models import ModelRow, model_rows

FloatArray = NDArray[np.float64]
MODES = MappingProxyType({"p10-p90": (10.0, 90.0), "min-max": (0.0, 100.0)})
LEFT_OUT = ("LongCat-Flash",)
DENSE_RATIOS = ("width_over_depth", "ffn_over_hidden", "attention_over_hidden", "heads_per_kv_head")
MOE_RATIOS = (
    "width_over_depth",
    "active_ffn_over_hidden",
    "active_ffn_with_shared_over_hidden",
    "experts_per_active_expert",
    "active_share",
    "attention_over_hidden",
    "heads_per_kv_head",
)
# what each ratio is, for messages
FORMULAS = MappingProxyType(
    {
        "width_over_depth": "H/L",
        "ffn_over_hidden": "H'/H",
        "attention_over_hidden": "heads*head_dim/H",
        "heads_per_kv_head": "heads/KV heads",
        "active_ffn_over_hidden": "k*H'e/H",
        "active_ffn_with_shared_over_hidden": "(k + shared)*H'e/H",
        "experts_per_active_expert": "E/k",
        "active_share": "active/total parameters",
    }
)


def ratios(batch: ArchitectureBatch) -> dict[str, FloatArray]:
    """The band ratios of each design, shape ``(A,)``; only those that the class and attention kind define.

    The heads' width is not compared under MLA, H′/H only for gated FFNs.
    """
    h = batch.hidden_size.astype(np.float64)
    found: dict[str, FloatArray] = {"width_over_depth": h / batch.num_hidden_layers}
    if batch.kind.moe:
        routed = batch.num_experts_per_tok * batch.moe_intermediate_size
        shared = batch.n_shared_experts * batch.shared_expert_intermediate_size
        found["active_ffn_over_hidden"] = routed / h
        found["active_ffn_with_shared_over_hidden"] = (routed + shared) / h
        found["experts_per_active_expert"] = batch.num_experts / batch.num_experts_per_tok
        found["active_share"] = batch.active_params / batch.total_params
    elif batch.kind.gated_ffn:
        found["ffn_over_hidden"] = batch.intermediate_size / h
    if batch.kind.attention == "gqa":
        found["attention_over_hidden"] = batch.num_attention_heads * batch.head_dim / h
        found["heads_per_kv_head"] = batch.num_attention_heads / batch.num_key_value_heads
    return found


def band_violations(batch: ArchitectureBatch, limits: Mapping[str, tuple[float, float]]) -> dict[str, FloatArray]:
    """How far each ratio lies outside its band, as a share of the limit it breaks; ≤ 0 inside, shape ``(A,)``.

    max(low/x − 1, x/high − 1): dimensionless, the same for a ratio and its inverse. A relative slack of 1e-9 keeps
    a design that sits on the edge (the reference model) inside.

    Args:
        batch: the designs.
        limits: ratio → (low, high); ratios that the class does not define are skipped.
    """
    for name, pair in limits.items():
        numbers(f"band {name}", pair, "above 0", above=True, high=float("inf"))
    return {
        name: np.maximum(limits[name][0] / value, value / limits[name][1]) - 1.0 - 1e-9
        for name, value in ratios(batch).items()
        if name in limits
    }


def _row_ratios(row: ModelRow) -> dict[str, float]:
    """Ratios of one model; the active share as published (conventions differ by under a point)."""
    values = {name: float(value[0]) for name, value in ratios(ArchitectureBatch.from_architectures([row.architecture])).items()}
    if "active_share" in values:
        share = row.published_active_share
        if share is None:
            del values["active_share"]
        else:
            values["active_share"] = share
    if row.architecture.num_key_value_heads == 1:
        values.pop("heads_per_kv_head", None)
    return values


@dataclass(frozen=True, slots=True)
class Band:
    """Statistics of one ratio over the models of a class."""

    name: str
    p10: float
    p50: float
    p90: float
    minimum: float
    maximum: float
    count: int


@lru_cache(maxsize=8)
def band_statistics(moe: bool) -> tuple[Band, ...]:
    """p10, p50, p90, minimum and maximum of every ratio over the built-in models of a class."""
    rows = [_row_ratios(r) for r in model_rows() if (r.architecture.num_experts > 0) == moe and r.name not in LEFT_OUT]
    found = []
    for name in MOE_RATIOS if moe else DENSE_RATIOS:
        values = np.array([row[name] for row in rows if name in row])
        low, mid, high = (float(v) for v in np.percentile(values, [10, 50, 90]))
        found.append(Band(name, low, mid, high, float(values.min()), float(values.max()), len(values)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Bands:
    """Limits of the ratios of one class.

    Attributes:
        moe: class the limits belong to.
        limits: ratio → (low, high).
        mode: where they come from: ``p10-p90``, ``min-max`` or ``own``.
    """

    moe: bool
    limits: Mapping[str, tuple[float, float]]
    mode: str = "own"
    included: str = field(default="", compare=False)

    def violations(self, batch: ArchitectureBatch) -> dict[str, FloatArray]:
        """:func:`band_violations` of these limits."""
        return band_violations(batch, self.limits)

    def without(self, *names: str) -> Bands:
        """The same bands with some ratios free."""
        return replace(self, limits=MappingProxyType({k: v for k, v in self.limits.items() if k not in names}))

    def widened(self, design: Architecture) -> Bands:
        """The bands stretched to hold ``design`` (only the ratios its kind defines)."""
        own = {k: float(v[0]) for k, v in ratios(ArchitectureBatch.from_architectures([design])).items()}
        limits = {k: (min(low, own.get(k, low)), max(high, own.get(k, high))) for k, (low, high) in self.limits.items()}
        return replace(self, limits=MappingProxyType(limits), included=design.name or "reference")

    def with_limits(self, limits: Mapping[str, Any], where: str = "bands") -> Bands:
        """The bands with a user's own limits in place of some.

        Raises:
            InvalidValueError: an unknown ratio, or not a pair 0 < low <= high.
        """
        check_keys(limits, MOE_RATIOS if self.moe else DENSE_RATIOS, where)
        own = dict(self.limits)
        for name, pair in limits.items():
            numeric = isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(v, int | float) for v in pair)
            if not numeric or not 0 < pair[0] <= pair[1] <= LARGEST:
                raise InvalidValueError(f"{where}: {name} must be [low, high] with 0 < low <= high, got {pair!r:.60}")
            own[name] = (float(pair[0]), float(pair[1]))
        return replace(self, limits=MappingProxyType(own), mode="own")


def load_bands(moe: bool, *, mode: str = "p10-p90", include: Architecture | None = None, both_budgets: bool = False) -> Bands:
    """Bands of a class, widened to hold the study's reference model.

    Args:
        moe: MoE or dense.
        mode: ``p10-p90`` or ``min-max``.
        include: the reference model; of the other class it widens the ratios both classes share.
        both_budgets: the study fixes total and active parameters, so the active share has no band.

    Raises:
        InvalidValueError: unknown mode.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidValueError(f"bands must be one of {', '.join(MODES)}, got {mode!r:.40}")
    limits = {
        b.name: (b.p10, b.p90) if mode == "p10-p90" else (b.minimum, b.maximum)
        for b in band_statistics(moe)
        if not (both_budgets and b.name == "active_share")
    }
    bands = Bands(moe, MappingProxyType(limits), mode)
    return bands if include is None else bands.widened(include)
