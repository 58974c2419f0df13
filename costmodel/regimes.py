"""What rules an operating point: shares by resource, and the four regimes of the co-design post's Fig. 2.

Shares by resource are sensitivities (Amdahl's law turned round): how much of the step time would go if a resource were
infinitely fast, to first order::

    share = (T - T at 1 % more of the resource) / (1 % of T)                                             (1)

for tensor-core rate, HBM bandwidth, exponential rate and links; ``fixed`` is T less T with every launch, latency and
host constant of the profile set to zero.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Fig. 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from .architecture import Architecture
from .checks import whole
from .decode import decode
from .formats import TensorFormats
from .layout import Layout
from .profile import DEFAULT_PROFILE, KernelProfile, load_profile
from .serving import ServingSetup
from .serving_frontier import Frontier, frontier
from .step_forward import CATEGORIES
from .workload import MAX_CONTEXT, Workload

_STEP = 0.01
_RESOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "math": ("bf16_flop_per_second", "fp8_flop_per_second", "nvfp4_flop_per_second"),
        "memory": ("memory_bytes_per_second",),
        "exponentials": ("exp2_per_second",),
        "links": ("scale_up_bytes_per_second", "scale_out_bytes_per_second"),
    }
)
# Constants of a profile that do not depend on the size of the work.
_FIXED = (
    "launch_seconds", "quantise_seconds", "latency_seconds", "large_latency_seconds", "reduce_seconds", "block_seconds",
    "expert_seconds", "step_seconds", "ramp_seconds", "wide_topk_seconds", "host_seconds", "menu_epilogue_seconds",
)  # fmt: skip
LATENCY_SHARE = 0.80  # Fig. 2's latency column: the point at this share of the highest tokens/s/user (project's choice)


@lru_cache(maxsize=64)
def without_fixed_times(profile: KernelProfile) -> KernelProfile:
    """The profile with every fixed time at zero."""

    def zero(value: Any) -> Any:
        return [0.0] * len(value) if isinstance(value, list | tuple) else 0.0

    families = {
        family: {
            name: replace(fit, parameters={k: zero(v) if k in _FIXED else v for k, v in fit.parameters.items()})
            for name, fit in fits.items()
        }
        for family, fits in profile.families.items()
    }
    return replace(profile, families=families)


@lru_cache(maxsize=256)
def _faster(profile: KernelProfile, resource: str) -> KernelProfile:
    numbers = {name: getattr(profile.hardware, name) * (1.0 + _STEP) for name in _RESOURCES[resource]}
    return replace(profile, hardware=replace(profile.hardware, **numbers))


def resource_shares(
    architecture: Architecture,
    layout: Layout,
    concurrency: float,
    *,
    context: float,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile = DEFAULT_PROFILE,
    **options: Any,
) -> dict[str, float]:
    """Shares of one decode step by resource, equation (1): ``math memory exponentials links fixed``.

    Args:
        architecture: one design.
        layout: one layout.
        concurrency: sequences in flight on one replica.
        context: KV tokens each sequence reads.
        formats: number formats.
        profile: kernel profile or its name.
        **options: further choices of :class:`.step_options.StepOptions`.

    Raises:
        InvalidValueError, UnknownKeyError: as :func:`.decode.decode`.
    """
    loaded = load_profile(profile)

    def seconds(p: KernelProfile) -> float:
        return float(
            decode(architecture, layout, concurrency, context=context, formats=formats, profile=p, **options).seconds[0, 0, 0]
        )

    base = seconds(loaded)
    shares = {name: (base / seconds(_faster(loaded, name)) - 1.0) / _STEP for name in _RESOURCES}
    free = dict(options) | ({"host_seconds": 0.0} if "host_seconds" in options else {})
    bare = decode(
        architecture, layout, concurrency, context=context, formats=formats, profile=without_fixed_times(loaded), **free
    )
    shares["fixed"] = 1.0 - float(bare.seconds[0, 0, 0]) / base
    return shares


def ruling_bound(shares: Mapping[str, float]) -> str:
    """The resource with the largest share."""
    return max(shares, key=lambda name: shares[name])


@dataclass(frozen=True, slots=True)
class Regime:
    """One quadrant of Fig. 2.

    Attributes:
        context: KV tokens a sequence reads.
        goal: ``throughput`` (most tokens/s/GPU) or ``latency`` (80 % of the highest tokens/s/user).
        point: the frontier row that serves it.
        shares: share of the step by category: ``gemm attention communication other``.
        resources: share by resource (:func:`resource_shares`).
    """

    context: int
    goal: str
    point: Mapping[str, Any]
    shares: Mapping[str, float]
    resources: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values by stable names."""
        return {
            "context": self.context,
            "goal": self.goal,
            "shares": dict(self.shares),
            "resources": dict(self.resources),
            "point": dict(self.point),
        }


def regime_setup(setup: ServingSetup, context: int) -> ServingSetup:
    """``setup`` at a decode context of exactly ``context`` tokens: prompts of three quarters, answers of half of it."""
    context = whole("context", context, 4, MAX_CONTEXT)
    work = Workload(input_tokens=context - context // 4, output_tokens=2 * (context // 4), load=setup.workload.load)
    return setup.with_(workload=work, mode="decode")


def four_regimes(
    architecture: Architecture, setup: ServingSetup, *, contexts: tuple[int, int] = (2048, 131072), allowed: Any = None
) -> list[Regime]:
    """Short and long context x throughput and latency, each at its point of the frontier (Fig. 2 of [1]).

    Args:
        architecture: one design.
        setup: its deployment; workload lengths and mode are replaced.
        contexts: decode contexts, tokens, at least 4.
        allowed: layouts it may use, ``(P,)`` or ``(1, P)``; ``None`` = all.

    Returns:
        four regimes: by context, throughput before latency.

    Raises:
        InvalidValueError: a context below 4 tokens, or no layout fits (:func:`.serving_frontier.frontier`).
    """
    found = []
    for context in contexts:
        curve = frontier(architecture, regime_setup(setup, context), allowed=allowed)
        user = curve.points.tokens_per_second_per_user
        for goal, index in (("throughput", 0), ("latency", int(np.argmax(user >= LATENCY_SHARE * user.max())))):
            found.append(_regime(curve, index, context, goal))
    return found


def _regime(curve: Frontier, index: int, context: int, goal: str) -> Regime:
    row, setup = curve.rows()[index], curve.setup
    total = row["itl_seconds"]
    choices = {**setup.options, "load": setup.workload.load, "overlap": setup.overlap}
    resources = resource_shares(
        curve.architecture,
        curve.layout(index),
        row["concurrency"],
        context=setup.workload.decode_context,
        formats=setup.formats,
        profile=setup.profile,
        **choices,
    )
    return Regime(context, goal, row, {name: row["breakdown"][name] / total for name in CATEGORIES}, resources)
