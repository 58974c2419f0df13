"""Routing load: how many tokens reach an expert, how many experts are touched, how uneven ranks are.

A new load goes here: its name into :data:`LOADS`, its factor into :func:`rank_factor`, and into :func:`rank_load` where it
touches experts in another way.

=================  =====================================================================================================
``balanced``       uniform random choice of experts, ranks equal: what a load balancer aims at (the mean rank)
``uniform_random`` uniform random choice, nothing balances: the most loaded rank of each layer (:mod:`.random_routing`);
                   vLLM's routing simulator has it by this name [4]
``even``           tokens dealt out in turn, every expert the same count: what benchmark tables call balanced
``power_law_a``    the experts' shares x drawn from the density x^-a, the most loaded rank [3]
a number           rows of the most loaded rank over the mean
=================  =====================================================================================================

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), guideline 5: GEMM-M per expert.
    [2] Occupancy of E experts by T independent tokens of k distinct choices each (inferred, uniform routing).
    [3] The sampler behind the power-law rows of aiconfigurator-core 0.12 (its collector, Apache-2.0), simulated by
        tests/costmodel/test_moe_load.py; the closed form here is fitted to that simulation.
    [4] vLLM, vllm/model_executor/layers/fused_moe/routing_simulator.py: strategy ``uniform_random``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import common_shape, numbers
from .errors import InvalidValueError, UnknownKeyError, did_you_mean
from .random_routing import most_loaded_rows

Array = NDArray[np.float64]
POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
LOADS = ("balanced", "uniform_random", "even", *POWER_LAWS)
SERVED_LOADS = tuple(name for name in LOADS if name != "even")  # no traffic deals its tokens out in turn
MAX_FACTOR = 1e6
_LEAST = {"ep": 1.0, "tp": 1.0}  # smallest value where it is not "above 0"
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


def read_experts(**sizes: ArrayLike) -> list[Array]:
    """The sizes of an expert layer as float arrays in the order given, each in its own shape.

    Args:
        **sizes: ``tokens hidden_size moe_intermediate_size num_experts top_k ep tp``, those that are needed; all broadcast.

    Raises:
        InvalidValueError: one is not positive and finite, ``ep`` or ``tp`` below 1, ``top_k`` above ``num_experts``, or the
            shapes do not broadcast.
    """
    found = {}
    for name, value in sizes.items():
        least = _LEAST.get(name, 0.0)
        rule = f">= {least:g} and finite" if least else "positive and finite"
        found[name] = numbers(name, value, rule, low=least, above=not least, way_out="correct the shape")
    common_shape(found)
    if "top_k" in found and np.any(found["top_k"] > found["num_experts"]):
        k, e = (x[found["top_k"] > found["num_experts"]][0] for x in np.broadcast_arrays(found["top_k"], found["num_experts"]))
        raise InvalidValueError(f"top_k must be at most num_experts, got top_k={k:g}, num_experts={e:g}; lower it")
    return list(found.values())


def check_load(load: str | float | Array, names: tuple[str, ...] = LOADS) -> str | float | Array:
    """``load`` as it came, if it names a routing or is a factor (or an array of them).

    Args:
        load: see the module's table.
        names: the names allowed.

    Raises:
        UnknownKeyError: no such load.
        InvalidValueError: a factor below 1 or not finite.
    """
    if isinstance(load, str):
        if load not in names:
            near = did_you_mean(load, names)
            raise UnknownKeyError(f"load must be {', '.join(names)} or a factor >= 1, got '{load[:60]}'{near}")
        return load
    numbers("a load factor", load, "at least 1 (max over mean of the ranks)", low=1.0, high=MAX_FACTOR)
    return load


def tokens_per_expert(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """GEMM-M per expert under uniform routing: tokens · k / E [1].

    Args:
        tokens: tokens of the whole group, any shape; all broadcast.
        num_experts: routed experts E.
        top_k: experts per token k.

    Raises:
        InvalidValueError: as :func:`read_experts`.
    """
    t, e, k = read_experts(tokens=tokens, num_experts=num_experts, top_k=top_k)
    return np.asarray(t * k / e)


def experts_touched(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> Array:
    """Expected distinct experts that ``tokens`` reach under uniform routing: E (1 - (1 - k/E)^T) [2].

    Args:
        tokens: tokens of the whole group, any shape; all broadcast.
        num_experts: routed experts E.
        top_k: experts per token k.

    Raises:
        InvalidValueError: as :func:`read_experts`.
    """
    return _touched(*read_experts(tokens=tokens, num_experts=num_experts, top_k=top_k))


def _touched(tokens: Array, num_experts: Array | float, top_k: Array) -> Array:
    share = np.minimum(top_k / num_experts, 1 - 1e-15)
    return np.asarray(-num_experts * np.expm1(tokens * np.log1p(-share)))


def imbalance_factor(
    load: str | float | Array, ep: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike, tokens: ArrayLike = 2048.0
) -> Array:
    """Load of the most loaded rank over the mean of the ranks.

    Args:
        load: ``balanced`` or ``even`` (1 everywhere), ``uniform_random``, ``power_law_1.01``, ``power_law_1.2``, or the
            factor (>= 1).
        ep: expert-parallel ranks, shape (...).
        num_experts: routed experts, shape (...).
        top_k: experts per token, shape (...).
        tokens: tokens of the whole group; the power laws widen slowly with it, ``uniform_random`` evens out.

    Raises:
        UnknownKeyError: no such load.
        InvalidValueError: a factor below 1, or a size as :func:`read_experts`.
    """
    n, e, k, t = read_experts(ep=ep, num_experts=num_experts, top_k=top_k, tokens=tokens)
    return rank_factor(check_load(load), n, e, k, t)


def rank_factor(load: str | float | Array, n: Array, e: Array, k: Array, t: Array) -> Array:
    """:func:`imbalance_factor` on numbers that were read."""
    if not isinstance(load, str):
        return np.where(n > 1, np.minimum(np.asarray(load, dtype=np.float64), n), 1.0)
    if load == "uniform_random":
        return most_loaded_rows(t, n, e, k) / (t * k / n)
    if load not in POWER_LAWS:
        return np.ones(())
    span, first, second = _moments(POWER_LAWS[load], t, e, k)
    spread = np.sqrt(np.maximum(second / first**2 - 1, 0.0))
    factor = 1 + _MAX_SCALE * spread * np.log(n) ** _MAX_LOG_POWER * (n / e) ** _MAX_EXPERTS_POWER
    return np.asarray(np.maximum(np.minimum(np.minimum(factor, span / first), n), 1.0))


def rank_load(load: str | float | Array, tokens: Array, ep: Array, num_experts: Array, top_k: Array) -> RankLoad:
    """Rows and touched experts of the slowest rank; arguments as :func:`imbalance_factor`."""
    local = num_experts / ep
    factor = rank_factor(check_load(load), ep, num_experts, top_k, tokens)
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
        touched = local * _touched(tokens, 1.0, np.minimum(factor * (top_k / num_experts), 1.0))
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
