"""Polish on the lattice: near neighbours of the front beside the sampler, and every neighbour of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .modes import Mode
from .outcome import Run
from .space import Candidates

CHUNK = 256  # designs a polish round prices at a time
MEMBERS = 4  # front members whose neighbours are looked up at a time
LEAST, MOST = 0.1, 0.8  # share of a generation that neighbours get at least and at most, of what the options allow
MEMORY = 0.8  # weight of what was known before, when a generation's success is added


@dataclass(eq=False)
class Neighbours:
    """Near neighbours of the current fronts' members, and how large a share of a generation they deserve.

    Newest members first; members that were beaten before their turn are never asked. The share follows success: the
    part of each source's designs that entered the open front, averaged with fading memory.

    Attributes:
        run: the search.
        mode: gives the neighbours.
        limit: largest share, [0, 1); 0 switches neighbours off.
    """

    run: Run
    mode: Mode
    limit: float
    _asked: set[int] = field(default_factory=set)
    sources: tuple[str, ...] = ("polish", "sampler")
    _success: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._success = dict.fromkeys(self.sources, 0.0)

    def share(self, source: str) -> float:
        """Part of the next generation that a source beside the sampler gets, [0, limit]."""
        total = sum(self._success.values())
        wanted = self._success[source] / total if total > 0 else 1 / len(self.sources)
        return self.limit * min(max(wanted, LEAST), MOST)

    def learn(self, sources: list[str], first: int) -> None:
        """Note which of a generation's designs, at positions from ``first`` on, stand on the open front."""
        on_front = set(self.run.open_front.ids.tolist())
        for source in self._success:
            mine = [first + i for i, s in enumerate(sources) if s == source]
            if mine:
                rate = sum(i in on_front for i in mine) / len(mine)
                self._success[source] = MEMORY * self._success[source] + (1 - MEMORY) * rate

    def take(self, count: int) -> Candidates | None:
        """Up to ``count`` candidates; ``None`` when no member has an unpriced neighbour left."""
        out: list[Candidates] = []
        left = count
        while left > 0:
            waiting = np.setdiff1d(np.concatenate((self.run.open_front.ids, self.run.equal_front.ids)), list(self._asked))
            if not len(waiting):
                break
            members = waiting[::-1][:MEMBERS]
            found = self.mode.neighbours(self.run.at(members), wide=False, count=left)
            if len(found) < left:
                self._asked.update(members.tolist())  # nothing near is left unpriced
            if len(found):
                out.append(found)
                left -= len(found)
        return Candidates.concatenate(out) if out else None


def polish(run: Run, mode: Mode, *, limit: int) -> bool:
    """Price every unpriced neighbour of every member of both fronts, again for the new members, until none is new.

    Args:
        run: the search so far.
        mode: gives the neighbours.
        limit: designs to price at most.

    Returns:
        Whether it ended because no member has an unpriced neighbour (a local optimum of the whole front).
    """
    done: set[int] = set()
    spent = 0
    while (members := run.members(done)) is not None:
        found = mode.neighbours(members, wide=True)
        for start in range(0, len(found), CHUNK):
            if spent >= limit:
                return False
            block = found.take(np.arange(start, min(start + CHUNK, len(found), start + limit - spent)))
            run.price(block, ["polish"] * len(block))
            spent += len(block)
            run.report("polish")
    return True
