"""Two scaling tables of the co-design post: wide expert parallelism (guideline 5) and KV parallelism (guideline 7).

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), guidelines 5 and 7.
    [2] Helix Parallelism, arXiv 2507.07120.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .checks import numbers, whole_list
from .decode import decode
from .errors import InvalidValueError, shown
from .formats import TensorFormats
from .layout import MAX_GPUS, Layout
from .moe_load import tokens_per_expert
from .profile import DEFAULT_PROFILE, KernelProfile
from .serving import ServingSetup
from .serving_frontier import Frontier, frontier

LOADS = ("balanced", "power_law_1.01", "power_law_1.2")


@dataclass(frozen=True, slots=True)
class ExpertScaling:
    """One cell of the wide-EP table: attention DP on as many GPUs as expert-parallel ranks.

    Attributes:
        ep: ranks, and GPUs.
        tokens_per_gpu: sequences in flight on each GPU.
        load: expert routing.
        gemm_m: rows of one expert's GEMM, tokens · EP · k / E.
        tokens_per_second_per_gpu: decode throughput.
        itl_seconds: step time, s.
        communication_share: all-to-all share of the step.
    """

    ep: int
    tokens_per_gpu: float
    load: str
    gemm_m: float
    tokens_per_second_per_gpu: float
    itl_seconds: float
    communication_share: float


def expert_parallel_table(
    architecture: Architecture,
    *,
    ep: tuple[int, ...] = (8, 16, 32, 64),
    tokens_per_gpu: tuple[float, ...] = (8, 16, 32, 64, 128, 256, 512),
    loads: Sequence[str] = LOADS,
    context: float = 8704,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile = DEFAULT_PROFILE,
    **options: Any,
) -> list[ExpertScaling]:
    """Decode throughput of attention DP with expert parallelism, over widths, tokens per GPU and routing [1].

    Args:
        architecture: a MoE design.
        ep: widths, each also the GPUs and the attention DP ranks.
        tokens_per_gpu: sequences in flight on each GPU.
        loads: routings (:mod:`.moe_load`).
        context: KV tokens each sequence reads.
        formats: number formats.
        profile: kernel profile or its name.
        **options: further choices of :class:`.step_options.StepOptions`.

    Returns:
        one row for each load, width and token count, in that order.

    Raises:
        InvalidValueError: a dense model, a width that does not divide the experts, or a number that is no size.
    """
    if not architecture.num_experts:
        raise InvalidValueError(f"{architecture.name or 'the model'} has no experts to spread; give a MoE model")
    ep = tuple(whole_list("ep", ep, 1, MAX_GPUS))
    each = np.atleast_1d(numbers("tokens_per_gpu", tokens_per_gpu, "positive", above=True))
    bad = [n for n in ep if architecture.num_experts % n]
    if bad:
        raise InvalidValueError(f"ep must divide num_experts={architecture.num_experts}, got ep={bad[0]}")
    if isinstance(loads, str) or not isinstance(loads, Sequence):
        raise InvalidValueError(f"loads must be a list of routings, got {shown(loads)}; put it in brackets")
    rows = []
    for load in loads:
        for n in ep:
            layout = Layout(dpa=n, ep=n)
            total = each * n
            step = decode(architecture, layout, total, context=context, formats=formats, profile=profile, load=load, **options)
            itl = step.seconds[0, 0]
            share = step.communication_seconds[0, 0] / itl
            m = tokens_per_expert(total, architecture.num_experts, architecture.num_experts_per_tok)
            rows += [
                ExpertScaling(n, float(t), load, float(m[i]), float(t / itl[i]), float(itl[i]), float(share[i]))
                for i, t in enumerate(each)
            ]
    return rows


@dataclass(frozen=True, slots=True)
class HelixGain:
    """What KV parallelism adds at one context length.

    Attributes:
        without: frontier with KVP 1.
        with_kvp: frontier with KVP allowed.
        interactivity: highest tokens/s/user with over without.
        concurrency: most sequences in flight at the best interactivity both reach, with over without.
        concurrency_rate: that interactivity, tokens/s/user.
    """

    without: Frontier
    with_kvp: Frontier
    interactivity: float
    concurrency: float
    concurrency_rate: float


def helix_gain(architecture: Architecture, setup: ServingSetup, *, allowed: NDArray[np.bool_] | None = None) -> HelixGain:
    """Frontiers with and without KVP layouts [2]; concurrency is per GPU at 90 % of the best interactivity without KVP.

    Args:
        architecture: one design.
        setup: its deployment, with layouts of KVP 1 and above.
        allowed: layouts it may use, ``(P,)`` or ``(1, P)``; ``None`` = all.

    Raises:
        InvalidValueError: the setup holds no layout with KVP > 1.
    """
    sharded = setup.layouts.kvp > 1
    if not np.any(sharded):
        raise InvalidValueError("helix_gain needs layouts with kvp > 1 beside those with kvp = 1")
    mask = np.ones((1, len(setup.layouts)), dtype=bool) if allowed is None else np.atleast_2d(allowed)
    plain = frontier(architecture, setup, allowed=mask & ~sharded[None])
    helix = frontier(architecture, setup, allowed=mask)
    best = [float(f.points.tokens_per_second_per_user.max()) for f in (plain, helix)]
    rate = 0.9 * best[0]
    users = [f.at_rate(rate) / rate for f in (plain, helix)]
    return HelixGain(plain, helix, best[1] / best[0], users[1] / users[0], rate)
