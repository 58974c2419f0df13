"""Polish on the lattice: price the neighbours of every front member until none improves."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from .modes import Mode
from .outcome import Run
from .space import Candidates

CHUNK = 256  # designs a polish round prices at a time


@dataclass(eq=False)
class NeighbourQueue:
    """Unpriced near neighbours of front members, first come first served; fed when it runs dry."""

    run: Run
    mode: Mode
    _done: set[int] = field(default_factory=set)
    _waiting: deque[Candidates] = field(default_factory=deque)

    def take(self, count: int) -> Candidates | None:
        """Up to ``count`` candidates; ``None`` when no member has an unpriced neighbour."""
        out: list[Candidates] = []
        left = count
        while left > 0:
            if not self._waiting:
                members = self.run.members(self._done)
                found = self.mode.neighbours(members, wide=False) if members is not None else None
                if found is None:
                    break
                if len(found):
                    self._waiting.append(found)
                continue
            block = self._waiting.popleft()
            out.append(block.take(np.arange(min(left, len(block)))))
            if len(block) > left:
                self._waiting.appendleft(block.take(np.arange(left, len(block))))
            left -= len(out[-1])
        return Candidates.concatenate(out) if out else None

    def rest(self) -> Candidates | None:
        """What still waits; the queue is empty afterwards."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return Candidates.concatenate(waiting) if waiting else None


def polish(run: Run, mode: Mode, queue: NeighbourQueue, *, limit: int) -> bool:
    """Price every unpriced neighbour of every member of both fronts, again for the new members, until none is new.

    Args:
        run: the search so far.
        mode: gives the neighbours.
        queue: neighbours that were found but not yet priced; they come first.
        limit: designs to price at most.

    Returns:
        Whether it ended because no member has an unpriced neighbour (a local optimum of the whole front).
    """
    done: set[int] = set()
    spent = 0
    found = queue.rest()
    while True:
        if found is None:
            members = run.members(done)
            if members is None:
                return True
            found = mode.neighbours(members, wide=True)
        for start in range(0, len(found), CHUNK):
            if spent >= limit:
                return False
            block = found.take(np.arange(start, min(start + CHUNK, len(found), start + limit - spent)))
            run.price(block, ["polish"] * len(block))
            spent += len(block)
            run.report("polish")
        found = None
