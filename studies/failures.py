"""Failed calls of user functions: what caused them, how often, and when a run has seen enough of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .user_objective import TIMED_OUT, UserCodeError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FIRST_CALLS = 10  # when this many calls of a function, its first, all fail, the run stops
MOST_COMMON = 3  # causes that are listed
_RAISED = re.compile(r"(user function '.*?' failed: [\w.]+): .*( \([^()]+, line \d+\))$")


def causes(errors: Iterable[str]) -> list[tuple[str, int]]:
    """Messages of failed calls by cause, the most common first, each with its count.

    One cause is one exception type raised at one line of the user's file; the text shown is the first one's.
    """
    first: dict[str, str] = {}
    found: Counter[str] = Counter()
    for error in errors:
        if error:
            text = " ".join(error.split())
            raised = _RAISED.match(text)
            key = "".join(raised.groups()) if raised else text
            first.setdefault(key, text)
            found[key] += 1
    return [(first[key], number) for key, number in found.most_common()]


def listed(errors: Iterable[str], most: int = MOST_COMMON) -> str:
    """The most common causes as text, ``12 x …; 3 x …``."""
    found = causes(errors)
    shown = [f"{number} x {text}" for text, number in found[:most]]
    rest = sum(number for _, number in found[most:])
    return "; ".join([*shown, f"{rest} x others"] if rest else shown)


def errors_of(trials: Iterable[FrozenTrial]) -> list[str]:
    """Messages of the workers' trials in which a user function failed (not of those whose worker died)."""
    return [str(t.user_attrs["error"]) for t in trials if t.state.name == "FAIL" and "error" in t.user_attrs]


class FirstCalls:
    """The first calls of each user function, in the order the search asks for them, so that timing decides nothing.

    Args:
        way_out: what the message tells the user to do.
    """

    def __init__(self, way_out: str) -> None:
        self._way_out = way_out
        self._expected: dict[str, list[str]] = {}
        self._answers: dict[tuple[str, str], tuple[float, str]] = {}

    def expect(self, name: str, keys: Sequence[str]) -> None:
        """Calls of function ``name`` in the order asked for."""
        wanted = self._expected.setdefault(name, [])
        for key in keys:
            if len(wanted) == FIRST_CALLS:
                return
            if key not in wanted:
                wanted.append(key)

    def answered(self, name: str, key: str, value: float, error: str) -> None:
        """One answer, new or from the record."""
        if key in self._expected.get(name, ()):
            self._answers[name, key] = (value, error)

    def check(self) -> None:
        """Stop the run where the first calls of a function all failed, not by time-outs alone.

        Raises:
            UserCodeError: the function and what its calls died of.
        """
        for name, keys in self._expected.items():
            answers = [self._answers[name, key] for key in keys if (name, key) in self._answers]
            if len(answers) < FIRST_CALLS or not all(math.isnan(value) for value, _ in answers):
                continue
            errors = [error for _, error in answers]
            if not all(TIMED_OUT in error for error in errors):
                lines = "\n".join(f"  {number} x {text}" for text, number in causes(errors))
                raise UserCodeError(
                    f"the first {len(errors)} calls of user function '{name}' all failed:\n{lines}\n{self._way_out}"
                )
