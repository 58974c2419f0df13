"""Routing load: how many tokens reach an expert, how many experts are touched, how uneven ranks are.

``balanced`` is uniform random routing with equal ranks (what a load balancer aims at); ``even`` deals tokens out
in turn, so that every expert gets the same count (what benchmark tables call balanced); ``power_law_a`` draws the
experts' shares x from the density x^-a and prices the most loaded rank [3].

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), guideline 5: GEMM-M per expert.
    [2] Occupancy of E experts by T independent tokens of k distinct choices each (inferred, uniform routing).
    [3] The sampler behind the power-law rows of aiconfigurator-core 0.12 (its collector, Apache-2.0), simulated by
        tests/costmodel/test_moe_load.py; the closed form here is fitted to that simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError, UnknownKeyError, did_you_mean

Array = NDArray[np.float64]
POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
LOADS = ("balanced", "even", *POWER_LAWS)
# Most loaded of EP ranks of n experts: 1 + a CV ln(EP)^b / n^c, CV the spread of one expert's load (fitted to the
# simulated sampler, E = 8..896, k = 1..22, EP = 2..256: 3.4 % median, 12 % at the 90th percentile).
_MAX_SCALE, _MAX_LOG_POWER, _MAX_EXPERTS_POWER = 0.911, 0.965, 0.574
# Share of the experts rounded to no token that stay untouched after the sampler hands out the rest (fitted).
_UNTOUCHED = 0.87
# Upper end of an expert's share relative to the token count, and the range used for few tokens [3] (datasheet).
_SHARE_OF_TOKENS, _FEW_TOKENS_RANGE = 0.8, (0.01, 2.0)


@dataclass(frozen=True)
class RankLoad:
    """What the slowest rank gets.

    Attributes:
        rows: token-expert pairs on the rank.
        touched: its experts that get at least one token.
        mean_rows: token-expert pairs per expert over all ranks (what kernels choose their tile by).
        even: every touched expert gets the same count.
    """

    rows: Array
    touched: Array
    mean_rows: Array
    even: bool


def tokens_per_expert(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """GEMM-M per expert under uniform routing: tokens · k / E [1]."""
    t, e, k = (np.asarray(x, dtype=np.float64) for x in (tokens, num_experts, top_k))
    return np.asarray(t * k / e)


def experts_touched(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """Expected distinct experts that ``tokens`` reach under uniform routing: E (1 - (1 - k/E)^T) [2]."""
    experts = np.asarray(num_experts, dtype=np.float64)
    share = np.minimum(np.asarray(top_k, dtype=np.float64) / experts, 1 - 1e-15)
    return np.asarray(-experts * np.expm1(np.asarray(tokens, dtype=np.float64) * np.log1p(-share)))


def imbalance_factor(
    load: str | float | Array, ep: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike, tokens: ArrayLike = 2048.0
) -> Array:
    """Load of the most loaded rank over the mean of the ranks.

    Args:
        load: ``balanced`` or ``even`` (1 everywhere), ``power_law_1.01``, ``power_law_1.2``, or the factor (>= 1).
        ep: expert-parallel ranks, shape (...).
        num_experts: routed experts, shape (...).
        top_k: experts per token, shape (...).
        tokens: tokens of the whole group; the power laws widen slowly with it.

    Raises:
        UnknownKeyError: no such load.
        InvalidValueError: a factor below 1.
    """
    n, e, k, t = (np.asarray(x, dtype=np.float64) for x in (ep, num_experts, top_k, tokens))
    if not isinstance(load, str):
        factor = np.asarray(load, dtype=np.float64)
        if not np.all(factor >= 1):
            raise InvalidValueError(f"a load factor is max over mean and must be >= 1, got {np.min(factor)}")
        return np.where(n > 1, np.minimum(factor, n), 1.0)
    if load in ("balanced", "even"):
        return np.ones(())
    if load not in POWER_LAWS:
        raise UnknownKeyError(f"unknown load '{load[:60]}'{did_you_mean(load, LOADS)}; or give a factor >= 1")
    span, first, second = _moments(POWER_LAWS[load], t, e, k)
    spread = np.sqrt(np.maximum(second / first**2 - 1, 0.0))
    factor = 1 + _MAX_SCALE * spread * np.log(n) ** _MAX_LOG_POWER * (n / e) ** _MAX_EXPERTS_POWER
    return np.asarray(np.maximum(np.minimum(np.minimum(factor, span / first), n), 1.0))


def rank_load(load: str | float | Array, tokens: Array, ep: Array, num_experts: Array, top_k: Array) -> RankLoad:
    """Rows and touched experts of the slowest rank; arguments as :func:`imbalance_factor`."""
    local = num_experts / ep
    factor = imbalance_factor(load, ep, num_experts, top_k, tokens)
    choices = tokens * top_k
    rows = np.maximum(np.minimum(factor * (choices / ep), tokens * np.minimum(top_k, local)), 1.0)
    if isinstance(load, str) and load == "even":
        touched = local
    elif isinstance(load, str) and load in POWER_LAWS:
        exponent = POWER_LAWS[load]
        span, first, _ = _moments(exponent, tokens, num_experts, top_k)
        # an expert whose share rounds to no token: x < E mean / (2 T k), less on the most loaded rank
        least = np.clip(0.5 * num_experts * first / (choices * factor), 1.0, span)
        rare = np.expm1((1 - exponent) * np.log(least)) / np.expm1((1 - exponent) * np.log(span))
        touched = local * (1 - _UNTOUCHED * rare)
    else:
        touched = local * experts_touched(tokens, 1.0, np.minimum(factor * (top_k / num_experts), 1.0))
    touched = np.maximum(np.minimum(touched, rows), 1.0)
    return RankLoad(rows, touched, choices / num_experts, isinstance(load, str) and load == "even")


def _moments(exponent: float, tokens: Array, num_experts: Array, top_k: Array) -> tuple[Array, Array, Array]:
    """Range and first two moments of x >= 1 with density x^-exponent up to the sampler's span [3]."""
    few = tokens * top_k <= num_experts
    low, high = _FEW_TOKENS_RANGE
    span = np.where(few, high / low, np.maximum(_SHARE_OF_TOKENS * tokens, 1.0001))
    log, a = np.log(span), 1 - exponent
    norm = np.expm1(a * log) / a
    first, second = (np.expm1((q + a) * log) / (q + a) / norm for q in (1, 2))
    return span, np.asarray(first), np.asarray(second)
