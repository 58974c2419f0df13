"""Choose a few clearly different designs that cover the frontier."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..search.pareto import non_dominated
from .suggest_price import Pool, choice_values

APART = 1.10  # two designs differ clearly where H, L or KV bytes differ by a tenth (contract of the command)


def clearly_different(pool: Pool, first: int, second: int) -> bool:
    """Whether two designs differ by at least 10 % in hidden size, layers or KV bytes per token."""
    for name in ("hidden_size", "num_hidden_layers", "kv_bytes"):
        values = getattr(pool, name)
        high, low = max(values[first], values[second]), min(values[first], values[second])
        if high >= APART * low - 1e-9:
            return True
    return False


def pick(pool: Pool, columns: list[int], count: int) -> list[tuple[int, str]]:
    """Positions of the chosen designs with the reason each was chosen.

    Both ends of the rates come first, then the largest frontier area, then the lowest predicted loss, then whatever lies
    farthest from what is chosen. All stand on the front of (throughput at each rate, predicted loss); where the front holds too
    few different designs, the next fronts fill up.

    Args:
        pool: priced designs.
        columns: rates that the choice is made by, ascending.
        count: designs wanted.
    """
    values = choice_values(pool, columns)
    reached = np.flatnonzero((values[:, :-1] > 0).all(axis=1))
    if not reached.size:
        reached = np.flatnonzero((values[:, :-1] > 0).any(axis=1))
    chosen: list[tuple[int, str]] = []
    left = reached
    while left.size and len(chosen) < count:
        front = left[non_dominated(values[left])]
        _fill(pool, values, front, chosen, count, first_front=left is reached)
        left = np.setdiff1d(left, front)
    return chosen


def _fill(
    pool: Pool,
    values: NDArray[np.float64],
    front: NDArray[np.int64],
    chosen: list[tuple[int, str]],
    count: int,
    *,
    first_front: bool,
) -> None:
    def free(position: int) -> bool:
        return all(clearly_different(pool, position, other) for other, _ in chosen)

    def take_best(key: NDArray[np.float64], reason: str) -> None:
        best = int(front[np.argmax(key[front])])
        for i, (position, known) in enumerate(chosen):
            if position == best:
                chosen[i] = position, f"{known}; {reason}"
                return
        for position in front[np.argsort(-key[front], kind="stable")]:
            if len(chosen) < count and free(int(position)):
                near = "" if int(position) == best else "near the "
                chosen.append((int(position), near + reason))
                return

    if first_front:
        take_best(values[:, 0], "best at the throughput end")
        take_best(values[:, -2], "best at the latency end")
        take_best(pool.area, "largest frontier area")
        take_best(values[:, -1], "lowest predicted loss")
    span = np.ptp(values[front], axis=0)
    scaled = values / np.where(span > 0, span, 1.0)
    reason = "between the others" if first_front else "behind the frontier"
    while len(chosen) < count:
        open_ = [int(p) for p in front if free(int(p))]
        if not open_:
            return
        if not chosen:
            take_best(pool.area, reason)
            continue
        distance = [min(float(np.linalg.norm(scaled[p] - scaled[c])) for c, _ in chosen) for p in open_]
        chosen.append((open_[int(np.argmax(distance))], reason))
