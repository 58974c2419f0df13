"""From a kernel's cost with its parts to its seconds alone: one function, so that the two never disagree."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol

import numpy as np
from numpy.typing import NDArray

Call = ParamSpec("Call")


class Cost(Protocol):
    """What every ``*_cost`` function returns: its parts, and their total."""

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Total, s, in the broadcast shape of the call."""


def seconds_of(cost: Callable[Call, Cost]) -> Callable[Call, NDArray[np.float64]]:
    """The function ``<kernel>_seconds`` of ``<kernel>_cost``: same arguments, same errors, the total alone.

    Args:
        cost: a public function whose name ends in ``_cost``.
    """

    @wraps(cost)
    def seconds(*args: Call.args, **kwargs: Call.kwargs) -> NDArray[np.float64]:
        return cost(*args, **kwargs).seconds

    name = cost.__name__.removesuffix("_cost") + "_seconds"
    seconds.__name__ = seconds.__qualname__ = name
    seconds.__doc__ = f"Seconds of :func:`{cost.__name__}`, broadcast shape; the same arguments and errors.\n\n{cost.__doc__}"
    return seconds
