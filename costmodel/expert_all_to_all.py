"""Expert all-to-all: tokens travel to the ranks of their experts (dispatch) and back (combine).

A token is sent once per *distinct* remote rank that holds one of its experts. Under uniform routing the expected
number of copies is

    (EP - 1) (1 - (1 - 1/EP)^k)                                                                        (1)

(occupancy of EP ranks by k independent choices). Tokens dealt out in turn, as benchmark tables do (load ``even``),
reach min(EP, k) ranks, (EP - 1)/EP of them remote. Kernels that send every choice by itself move k copies [1].

Beyond the scale-up domain such a kernel crosses the scale-out link once per distinct remote *domain* and forwards inside
it [2]. With q(x) = 1 - (1 - x/EP)^k, the chance that a token has work on one of x given ranks, a sender's copies are::

    scale-out  Σ q(x) over the other domains of x ranks each                                           (2)
    scale-up   q(1) · (EP - 1 - number of other domains)                                               (3)

(EP = D·S in D full domains: (D - 1)(1 - (1 - 1/D)^k); a copy that lands on its own destination needs no forwarding).
Where EP fills the last domain only in part, means over the senders are taken. Both links work at once, so the longer one
sets the time: published rates are the scale-out bytes over the whole time, 81 to 92 % of a 50 GB/s link [2].

References:
    [1] DeepEP, low-latency kernels (github.com/deepseek-ai/DeepEP, README): one message per token and expert.
    [2] the same README, performance of EP 8x2 and 8x4 (SM90, CX7): 90/81 and 61/61 GB/s dispatch/combine, "logical": the
        sender's own domain counted, as if D (1 - (1 - 1/D)^k) copies crossed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .checks import common_shape, numbers
from .errors import InvalidValueError, check_keys
from .formats import NumberFormat, get_format
from .hardware import Hardware
from .links import Array, CollectiveCost, CollectiveParameters
from .moe_load import check_load, rank_factor, read_experts
from .profile import KernelProfile, load_profile
from .seconds import seconds_of

# Kernels that prompts take where the plain entry is the low-latency one, whose buffers hold a decode batch (a few hundred
# tokens a rank); the first that the profile has. Source: SGLang's and vLLM's documentation of their DeepEP modes
# (normal/high-throughput for prefill, low-latency for decode); inferred for mixed passes, which stay on the plain entry.
PROMPT_KERNELS = {"sglang": ("deepep_normal",), "vllm": ("deepep_ht", "deepep_normal")}
_FIELDS = (
    "ranks",
    "latency_seconds",
    "efficiency",
    "expert_seconds",
    "expert_limit",
    "copy_seconds",
    "overlap",
    "every_choice",
)


@dataclass(frozen=True)
class ExchangeParameters:
    """Fitted numbers of one dispatch or combine kernel; the neutral default is the bare link.

    Attributes:
        link: latency and efficiency per group size.
        expert_seconds: latency per routed expert, s.
        expert_limit: experts beyond which latency grows no more.
        copy_seconds: time per copy of a token, s.
        overlap: share of latency hidden behind the transfer, in [0, 1].
        every_choice: 1 where the kernel sends one copy per choice of expert, 0 one per distinct remote rank.
    """

    link: CollectiveParameters = field(default_factory=CollectiveParameters)
    expert_seconds: float = 0.0
    expert_limit: float = 1e9
    copy_seconds: float = 0.0
    overlap: float = 0.0
    every_choice: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise InvalidValueError(f"all-to-all parameters: overlap must be in [0, 1], got {self.overlap}")
        if min(self.expert_seconds, self.expert_limit, self.copy_seconds) < 0:
            raise InvalidValueError("all-to-all parameters: expert_seconds, expert_limit, copy_seconds must be >= 0")


@lru_cache(maxsize=256)
def exchange_parameters(profile: KernelProfile, phase: str, kernel: str | None = None) -> ExchangeParameters:
    """Parameters of ``phase`` (``dispatch``, ``combine``) and ``kernel`` (stored as ``phase:kernel``)."""
    fits = profile.families.get("all_to_all", {})
    name = f"{phase}:{kernel}" if kernel and f"{phase}:{kernel}" in fits else phase
    return parse_exchange(profile.family("all_to_all", name).parameters, f"{profile.name}: [all_to_all.{name}]")


def prompt_kernel(profile: KernelProfile) -> str | None:
    """Exchange kernel of a stack's prefill passes: a name to pass as ``kernel``, or ``None`` (the profile's plain entry)."""
    held = profile.families.get("all_to_all", {})
    return next((name for name in PROMPT_KERNELS.get(profile.stack, ()) if f"dispatch:{name}" in held), None)


def parse_exchange(table: Any, where: str) -> ExchangeParameters:
    """Build :class:`ExchangeParameters` from a profile's table.

    Raises:
        UnknownKeyError: unknown keys.
    """
    check_keys(table, _FIELDS, where)
    lists = {
        name: tuple(float(x) for x in (table[name] if isinstance(table[name], list | tuple) else [table[name]]))
        for name in _FIELDS[:3]
        if name in table
    }
    return ExchangeParameters(
        CollectiveParameters(**lists), **{name: float(table[name]) for name in _FIELDS[3:] if name in table}
    )


def distinct_remote_ranks(ep: ArrayLike, top_k: ArrayLike) -> Array:
    """Expected distinct remote ranks per token, equation (1): EP8, k=8 4.59; EP64, k=8 7.46.

    Args:
        ep: ranks of the expert-parallel group, any shape; both broadcast.
        top_k: experts per token.

    Raises:
        InvalidValueError: ``ep`` below 1, ``top_k`` not positive, or the shapes do not broadcast.
    """
    found = {"ep": numbers("ep", ep, ">= 1 and finite", low=1.0), "top_k": numbers("top_k", top_k, "positive", above=True)}
    common_shape(found)
    return _remote_ranks(found["ep"], found["top_k"])


def _remote_ranks(ep: Array, k: Array) -> Array:
    return np.asarray((ep - 1) * (1 - (1 - 1 / ep) ** k))


def dispatch_bytes_per_token(hidden_size: ArrayLike, format: str) -> Array:
    """Bytes of one token's activations on the wire, scales included (NVFP4, H = 7168: 4032 B).

    Args:
        hidden_size: H, any shape.
        format: activation format.

    Raises:
        InvalidValueError: H is not positive and finite.
        UnknownKeyError: no such format.
    """
    return _token_bytes(hidden_size, get_format(format))


def _token_bytes(hidden_size: ArrayLike, number: NumberFormat) -> Array:
    return np.asarray(numbers("hidden_size", hidden_size, "positive and finite", above=True) * number.activation_bytes)


def exchange_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    top_k: ArrayLike,
    token_bytes: Array,
    num_experts: ArrayLike,
    load: str | float | Array,
    parameters: ExchangeParameters,
    hardware: Hardware,
) -> CollectiveCost:
    """Latency + transfer - what of the two overlaps: L + X - overlap · L X/(L + X).

    X = tokens · bytes · copies / (link · efficiency); copies by equation (1), dealt out in turn, or every choice. Beyond
    the scale-up domain X is the longer of the two links by (2) and (3); with every choice sent by itself their sum.
    """
    tokens = numbers("tokens_per_gpu", tokens_per_gpu, ">= 0 and finite")
    n, e, k = read_experts(ep=ep, num_experts=num_experts, top_k=top_k)
    common_shape({"tokens_per_gpu": tokens, "ep": n, "num_experts": e, "top_k": k, "hidden_size": token_bytes})
    even = isinstance(load, str) and load == "even"
    remote = np.minimum(n, k) * (n - 1) / n if even else _remote_ranks(n, k)
    inside = np.minimum(n, hardware.scale_up_gpus)
    copies = np.where(n > 1, k, 0.0) if parameters.every_choice else remote
    up_copies, crossing = _split_copies(copies, n, k, hardware.scale_up_gpus, even, bool(parameters.every_choice))
    size = tokens * rank_factor(check_load(load), n, e, k, tokens * n + 1)
    up = size * token_bytes * up_copies / (hardware.scale_up_bytes_per_second * parameters.link.rate(0, inside))
    out = size * token_bytes * crossing / hardware.scale_out_bytes_per_second
    experts = np.minimum(e, parameters.expert_limit)
    fixed = parameters.link.latency(0, inside) + parameters.expert_seconds * experts
    fixed = np.where(n > 1, fixed, 0.0)
    up = up + parameters.copy_seconds * (size * copies)
    moved = up + out if parameters.every_choice else np.maximum(up, out)
    if parameters.overlap > 0:
        fixed = fixed * (1 - parameters.overlap * moved / np.maximum(fixed + moved, 1e-30))
    return CollectiveCost(*np.broadcast_arrays(fixed + moved, fixed, up, out, size * token_bytes * up_copies))


def _split_copies(copies: Array, n: Array, k: Array, domain: int, even: bool, every_choice: bool) -> tuple[Array, Array]:
    """Copies over the scale-up and over the scale-out link, (2) and (3); every choice by itself: by where ranks lie."""
    if not n.size or n.max() <= domain:
        return copies, np.zeros(())
    full = np.floor(n / domain)
    rest = n - full * domain  # ranks of the last, partly filled domain
    most = full * domain / n  # share of senders in full domains
    others = most * (full - 1 + (rest > 0)) + (1 - most) * full  # other domains, mean over senders
    if every_choice:
        inside = (most * (domain - 1) + (1 - most) * np.maximum(rest - 1, 0.0)) / np.maximum(n - 1, 1.0)
        return copies * inside, copies * (1 - inside)
    if even:
        domains = full + (rest > 0)
        return copies * (n - 1 - others) / np.maximum(n - 1, 1.0), np.minimum(domains, k) * (domains - 1) / domains
    touched, partly = (1 - (1 - np.minimum(size / n, 1.0)) ** k for size in (np.minimum(domain, n), rest))
    crossing = most * ((full - 1) * touched + partly) + (1 - most) * full * touched
    return copies * (n - 1 - others) / np.maximum(n - 1, 1.0), np.where(n > domain, crossing, 0.0)


def moe_dispatch_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str,
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> CollectiveCost:
    """Cost of sending tokens to their experts' ranks.

    Args:
        tokens_per_gpu: tokens each GPU starts with, shape (...).
        ep: ranks of the expert-parallel group, shape (...); 1 costs nothing.
        hidden_size: H, shape (...).
        top_k: experts per token, shape (...).
        num_experts: routed experts, shape (...).
        format: activation format on the wire (``nvfp4``, ``fp8_block``, ``bf16``, ...).
        load: routing load, see :mod:`.moe_load`; the most loaded rank receives the most. The factor is that of rows: a
            kernel that sends one copy per distinct rank receives a little more evenly (inferred; an upper end).
        kernel: all-to-all kernel of the profile (``deepep_ll``, ...); ``None`` takes the stack's default.
        profile: kernel profile or its name.

    Returns:
        seconds and their parts, broadcast shape.

    Raises:
        InvalidValueError: a size is out of range (tokens may be 0), or the shapes do not broadcast.
        UnknownKeyError: no such format, load or profile.
    """
    return _phase_cost(
        "dispatch", tokens_per_gpu, ep, hidden_size, top_k, num_experts, format, load, kernel, load_profile(profile)
    )


def moe_combine_cost(
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    *,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str = "bf16",
    load: str | float | Array = "balanced",
    kernel: str | None = None,
    profile: str | KernelProfile,
) -> CollectiveCost:
    """Cost of returning the experts' outputs (BF16 by default); arguments as :func:`moe_dispatch_cost`."""
    return _phase_cost(
        "combine", tokens_per_gpu, ep, hidden_size, top_k, num_experts, format, load, kernel, load_profile(profile)
    )


moe_dispatch_seconds = seconds_of(moe_dispatch_cost)
"""Seconds of :func:`moe_dispatch_cost`; the same arguments."""
moe_combine_seconds = seconds_of(moe_combine_cost)
"""Seconds of :func:`moe_combine_cost`; the same arguments."""


def _phase_cost(
    phase: str,
    tokens_per_gpu: ArrayLike,
    ep: ArrayLike,
    hidden_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    format: str,
    load: str | float | Array,
    kernel: str | None,
    profile: KernelProfile,
) -> CollectiveCost:
    return exchange_cost(
        tokens_per_gpu,
        ep,
        top_k=top_k,
        token_bytes=_token_bytes(hidden_size, profile.hardware.number_format(format)),
        num_experts=num_experts,
        load=load,
        parameters=exchange_parameters(profile, phase, kernel),
        hardware=profile.hardware,
    )
