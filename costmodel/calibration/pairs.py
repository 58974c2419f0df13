"""Differences, not only levels: how well the ratio of two neighbouring shapes is predicted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def pair_errors(sizes: Mapping[str, FloatArray], predicted: FloatArray, measured: FloatArray) -> dict[str, float]:
    """Error of predicted ratios over pairs equal in all sizes but one and neighbours in that one.

    Args:
        sizes: name -> size of each row, e.g. ``m``, ``n``, ``k``.
        predicted: seconds.
        measured: seconds.

    Returns:
        ``rows median p90`` of abs(predicted ratio / measured ratio - 1); ``sign``: share of pairs ordered rightly where
        the measured times differ by 5 % or more, of ``sign_rows`` pairs; and ``median_<name>``, ``p90_<name>`` by the
        size that differs. Empty without pairs.
    """
    error: list[FloatArray] = []
    ratio: list[FloatArray] = []
    out: dict[str, float] = {}
    for name in sizes:
        others = [sizes[other] for other in sizes if other != name]
        order = np.lexsort((sizes[name], *others))
        same = np.all([other[order][1:] == other[order][:-1] for other in others], axis=0)
        first, second = order[:-1][same], order[1:][same]
        true = measured[second] / measured[first]
        guess = predicted[second] / predicted[first]
        wrong = np.abs(guess / true - 1.0)
        if wrong.size:
            out[f"median_{name}"] = float(np.median(wrong))
            out[f"p90_{name}"] = float(np.quantile(wrong, 0.9))
        error.append(wrong)
        # Keep guess and truth as logs with one sign convention for the sign test.
        ratio.append(np.stack([np.log(true), np.log(guess)]))
    wrong = np.concatenate(error)
    if not wrong.size:
        return {}
    true_log, guess_log = np.concatenate(ratio, axis=1)
    clear = np.abs(true_log) >= np.log(1.05)
    out["rows"] = int(wrong.size)
    out["median"] = float(np.median(wrong))
    out["p90"] = float(np.quantile(wrong, 0.9))
    out["sign_rows"] = int(clear.sum())
    out["sign"] = float(np.mean(np.sign(true_log[clear]) == np.sign(guess_log[clear]))) if clear.any() else float("nan")
    return {key: value for key, value in out.items() if np.isfinite(value)}
