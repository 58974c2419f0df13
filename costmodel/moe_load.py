"""Routing load: how many tokens reach an expert, how many experts are touched, how uneven ranks are.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), guideline 5: GEMM-M per expert.
    [2] Occupancy of E experts by T independent tokens of k distinct choices each (inferred, uniform routing).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError, UnknownKeyError, did_you_mean

Array = NDArray[np.float64]
# Most loaded rank over the mean, E = 256 (simulated sampler of the measured tables; status: fitted).
_EP_LOG2 = np.log2([1, 2, 8, 32, 64, 256])
_POWER_LAW = {
    "power_law_1.01": np.log([1.0, 1.07, 1.44, 2.57, 3.2, 7.1]),
    "power_law_1.2": np.log([1.0, 1.10, 1.62, 3.17, 4.5, 12.9]),
}
LOADS = ("balanced", *_POWER_LAW)


def tokens_per_expert(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """GEMM-M per expert under uniform routing: tokens · k / E [1]."""
    t, e, k = (np.asarray(x, dtype=np.float64) for x in (tokens, num_experts, top_k))
    return np.asarray(t * k / e)


def experts_touched(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """Expected distinct experts that ``tokens`` reach under uniform routing: E (1 - (1 - k/E)^T) [2]."""
    experts = np.asarray(num_experts, dtype=np.float64)
    share = np.minimum(np.asarray(top_k, dtype=np.float64) / experts, 1.0)
    with np.errstate(divide="ignore"):
        untouched = np.log1p(-share)
    tokens = np.asarray(tokens, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # 0 tokens · log 0
        return np.asarray(-experts * np.expm1(np.where(tokens > 0, tokens * untouched, 0.0)))


def imbalance_factor(load: str | float | Array, ep: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """Load of the most loaded rank over the mean of the ranks.

    Args:
        load: ``balanced`` (1 everywhere), ``power_law_1.01``, ``power_law_1.2``, or the factor itself (>= 1).
        ep: expert-parallel ranks, shape (...).
        num_experts: routed experts, shape (...).
        top_k: experts per token, shape (...).

    Raises:
        UnknownKeyError: no such load.
        InvalidValueError: a factor below 1.
    """
    ep = np.asarray(ep, dtype=np.float64)
    if not isinstance(load, str):
        factor = np.asarray(load, dtype=np.float64)
        if not np.all(factor >= 1):
            raise InvalidValueError(f"a load factor is max over mean and must be >= 1, got {np.min(factor)}")
        return np.where(ep > 1, factor, 1.0)
    if load == "balanced":
        return np.ones(())
    if load not in _POWER_LAW:
        raise UnknownKeyError(f"unknown load '{load[:60]}'{did_you_mean(load, LOADS)}; or give a factor >= 1")
    factor = np.exp(np.interp(np.log2(ep), _EP_LOG2, _POWER_LAW[load]))
    return np.asarray(np.minimum(factor, ep))
