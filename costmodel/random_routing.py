"""The most loaded rank when every token draws its experts uniformly at random: routing that no load balancer corrects.

T tokens choose k distinct of E experts each; EP ranks hold E/EP experts each. A rank receives mu = T k / EP rows on
average, with variance s^2 (1 - 1/EP), s^2 = mu (E - k)/(E - 1) (hypergeometric: experts of one token are distinct).
All ranks together receive exactly T k, so they are equally and negatively correlated, and the largest of EP such
normals lies s e above the mean, e being the expected largest of EP independent standard normals (the 1 - 1/EP cancels).
Counts are skewed, which adds the second term of a Cornish-Fisher expansion [1]::

    many  mu > 3:  E max = mu + s e + g (q - 1)/6,   g = (1 - 2/EP)(E - 2k)/(E - 2)                          (1)
    few   mu < 1:  E max = sum over j >= 0 of 1 - F(j)^EP                                                  (2)

q is the expected square of that largest normal, g the skewness times s, F the distribution of a binomial count of mean
mu and variance s^2. Between the two they are mixed linearly in mu; never below ceil(mu) or 1, nor above what tokens and
experts allow. e and q by quadrature of the order-statistic integrals [2]; both, and (1), (2), are inferred and held against
simulation in tests/costmodel/test_random_routing.py.

References:
    [1] E. A. Cornish, R. A. Fisher, "Moments and cumulants in the specification of distributions", Revue de l'Institut
        International de Statistique 5 (1938), p. 307: x = z + skewness (z^2 - 1)/6.
    [2] H. A. David, H. N. Nagaraja, "Order Statistics", 3rd ed. (2003), section 3.1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FEW_ROWS, MANY_ROWS = 1.0, 3.0  # mean rows of a rank below which (2), above which (1) rules; mixed between (design choice)
_TERMS = 24  # of equation (2): a count of mean 3 exceeds 23 with probability 1e-13
_GRID = np.linspace(0.0, 9.0, 1201)  # standard deviations; trapezoids, error below 1e-6
_NORMAL = np.array([0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) for x in _GRID])


@lru_cache(maxsize=4096)
def largest_normal(count: float) -> tuple[float, float]:
    """Expected largest of ``count`` independent standard normals, and the expected square of it [2].

    ``count`` 1: (0, 1); 2: (1/sqrt(pi), 1).
    """
    upper, lower = 1.0 - _NORMAL**count, (1.0 - _NORMAL) ** count
    mean = np.trapezoid(upper - lower, _GRID)
    return float(mean), float(np.trapezoid(2.0 * _GRID * (upper + lower), _GRID))


def most_loaded_rows(tokens: Array, ep: Array, num_experts: Array, top_k: Array) -> Array:
    """Expected rows (token-expert pairs) of the most loaded rank, equations (1) and (2).

    Args:
        tokens: tokens of the whole group, any shape; all broadcast.
        ep: expert-parallel ranks.
        num_experts: routed experts E.
        top_k: experts per token k, at most E.

    Returns:
        rows, broadcast shape; the mean where there is one rank.
    """
    mean = tokens * top_k / ep
    if not mean.size:
        return np.asarray(mean)
    ranks, inverse = np.unique(ep, return_inverse=True)
    e, q = (x[inverse].reshape(ep.shape) for x in np.array([largest_normal(float(n)) for n in ranks]).T)
    spread = np.maximum(num_experts - top_k, 0.0) / np.maximum(num_experts - 1.0, 1.0)
    skew = np.maximum(1.0 - 2.0 / ep, 0.0) * (num_experts - 2.0 * top_k) / np.maximum(num_experts - 2.0, 1.0)
    many = mean + np.sqrt(mean * spread) * e + skew * ((q - 1.0) / 6.0)
    weight = np.clip((mean - FEW_ROWS) / (MANY_ROWS - FEW_ROWS), 0.0, 1.0)
    rows = many if np.all(weight >= 1.0) else weight * many + (1.0 - weight) * _few_rows(np.minimum(mean, MANY_ROWS), spread, ep)
    most = tokens * np.minimum(top_k, np.maximum(num_experts / ep, 1.0))
    least = np.minimum(np.maximum(np.ceil(mean * (1.0 - 1e-12)), 1.0), most)
    return np.asarray(np.where(ep > 1, np.clip(rows, least, most), mean))


def _few_rows(mean: Array, spread: Array, ep: Array) -> Array:
    """Equation (2): binomial counts of ``mean`` and variance ``mean * spread``; Poisson where ``spread`` is 1."""
    share = np.clip(1.0 - spread, 1e-12, 1.0 - 1e-12)  # success probability; its number of trials is mean / share
    term = np.exp(mean * np.log1p(-share) / share)
    below = term.copy()
    total = np.zeros(np.broadcast_shapes(mean.shape, share.shape, ep.shape))
    for j in range(_TERMS):
        total += 1.0 - np.minimum(below, 1.0) ** ep
        term = np.maximum(term * ((mean - j * share) / ((j + 1.0) * (1.0 - share))), 0.0)
        below = below + term
    return total
