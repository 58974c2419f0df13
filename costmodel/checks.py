"""Reading what a caller hands over: numbers, whole numbers and shapes that fit each other, or one clear error.

Every public function of the room reads its arguments here, once, before any arithmetic: what comes out is finite, inside
its bounds and broadcasts. An error names the argument, the rule, the first value that breaks it (and its index in an
array) and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidValueError, shown

FloatArray = NDArray[np.float64]
LARGEST = 1e18  # no size, byte count or token count of a model reaches it; products of a few stay inside a float
_FLOAT = np.dtype(np.float64)


def as_floats(name: str, value: ArrayLike) -> FloatArray:
    """``value`` as a float64 array of the same shape.

    Args:
        name: what the value is, for the message.
        value: numbers of any shape.

    Raises:
        InvalidValueError: text, ragged lists, complex numbers, or a whole number beyond the range of a float.
    """
    if type(value) is np.ndarray and value.dtype is _FLOAT:
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biuf" or (array.dtype.kind == "O" and all(isinstance(x, Real) for x in array.flat)):
            return array.astype(np.float64)
    except OverflowError:
        raise InvalidValueError(f"{name} must be finite, got a whole number beyond 1e308; correct it") from None
    except (TypeError, ValueError):
        pass
    raise InvalidValueError(f"{name} must be numbers, got {shown(value)}; give a number or an array of numbers")


def numbers(
    name: str,
    value: ArrayLike,
    rule: str,
    *,
    low: float = 0.0,
    above: bool = False,
    high: float = LARGEST,
    way_out: str = "correct it",
) -> FloatArray:
    """``value`` as a float64 array whose entries lie between ``low`` and ``high``; NaN never does.

    Args:
        name: what the value is, for the message.
        value: numbers of any shape.
        rule: the rule in words, for the message: ``<name> must be <rule>``.
        low: smallest value allowed.
        above: ``low`` itself is refused.
        high: largest value allowed.
        way_out: what to do about it, for the message.

    Raises:
        InvalidValueError: an entry breaks the rule, or is no number.
    """
    array = as_floats(name, value)
    if array.size == 1:
        least = most = array.item()
    elif array.size:
        least, most = np.minimum.reduce(array, axis=None), np.maximum.reduce(array, axis=None)
    else:
        return array
    if (least > low if above else least >= low) and most <= high:
        return array
    good = ((array > low) if above else (array >= low)) & (array <= high)
    raise InvalidValueError(f"{name} must be {rule}, got {_first_bad(array, good, high)}; {way_out}")


def number(name: str, value: Any, rule: str, **bounds: Any) -> float:
    """One number inside its bounds; arguments as :func:`numbers`.

    Raises:
        InvalidValueError: it breaks the rule, or is no single number.
    """
    array = numbers(name, value, rule, **bounds)
    if array.ndim:
        raise InvalidValueError(f"{name} must be one number, got an array of shape {array.shape}; call once for each")
    return float(array)


def whole(name: str, value: Any, low: int, high: int, way_out: str = "correct it") -> int:
    """One whole number from ``low`` to ``high``.

    Raises:
        InvalidValueError: it is not, or is a bool.
    """
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise InvalidValueError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}; {way_out}")
    return int(value)


def whole_numbers(name: str, value: Any) -> NDArray[np.int64]:
    """``value`` as an int64 array of the same shape.

    Raises:
        InvalidValueError: an entry is not a whole number, or is beyond 2^63.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "iu":
        raise InvalidValueError(f"{name} must hold whole numbers below 2^63, got {shown(value)}; round them")
    return array.astype(np.int64, copy=False)


def whole_list(name: str, values: Any, low: int, high: int) -> list[int]:
    """A list of whole numbers from ``low`` to ``high``.

    Raises:
        InvalidValueError: no list, or an entry is not one.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidValueError(f"{name} must be a list of whole numbers, got {shown(values)}; put it in brackets")
    return [whole(name, value, low, high) for value in values]


def position(name: str, index: Any, count: int) -> int:
    """``index`` of one of ``count`` things, from the end when negative.

    Raises:
        InvalidValueError: there is none.
    """
    return whole(name, index, -count, count - 1, "count from 0")


def common_shape(values: Mapping[str, NDArray[Any]]) -> tuple[int, ...]:
    """Broadcast shape of named arrays; () where there is none.

    Raises:
        InvalidValueError: two shapes do not fit each other.
    """
    try:
        return np.broadcast(*values.values()).shape if values else ()
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in values.items() if array.ndim)
        raise InvalidValueError(
            f"shapes must broadcast, got {shapes}; give equal lengths, or axes of length 1 to combine each with each"
        ) from None


def _first_bad(array: FloatArray, good: NDArray[np.bool_], high: float) -> str:
    """The first entry that breaks the rule, with its index where there are several."""
    index = np.unravel_index(int(np.argmin(good)), array.shape)
    value = float(array[index])
    text = f"{value:g}" + (f", beyond {high:g}" if high < value < np.inf else "")
    return text if array.size == 1 else f"{text} at index {', '.join(str(int(i)) for i in index)}"
