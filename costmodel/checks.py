"""Reading numbers that a caller hands over: an array of floats, or one clear error."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError


def as_floats(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """``value`` as a float64 array.

    Args:
        name: what the value is, for the message.
        value: numbers of any shape.

    Raises:
        InvalidValueError: text, ragged lists, complex numbers, or a whole number beyond the range of a float.
    """
    try:
        return np.asarray(value, dtype=np.float64)
    except OverflowError:
        raise InvalidValueError(f"{name} must be finite, got a whole number beyond 1e308; correct it") from None
    except (TypeError, ValueError):
        raise InvalidValueError(f"{name} must be numbers, got {value!r:.60}; give a number or an array of numbers") from None
