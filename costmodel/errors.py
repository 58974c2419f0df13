"""Errors a user can act on: each states the rule, the value and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ShapefrontError(Exception):
    """Base of every error the package raises on purpose."""


class InvalidValueError(ShapefrontError, ValueError):
    """A value breaks a rule; the message names the rule, the value and the way out."""


class UnknownKeyError(InvalidValueError):
    """A key or name is not known; the message lists the nearest known ones."""


def shown(value: Any, width: int = 60) -> str:
    """``value`` as an error message shows it: at most ``width`` characters, whatever it is.

    Args:
        value: anything, also whole numbers too long for Python to print.
        width: characters shown.
    """
    try:
        text = repr(value)
    except Exception:  # a whole number beyond Python's digit limit, or a broken __repr__
        return f"a {type(value).__name__} that cannot be printed"
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the nearest known name, else the list of known names.

    Args:
        name: what the user wrote (shown by callers, not here).
        known: the names that exist.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name)[:100], names, n=1, cutoff=0.6)
    if near:
        return f" (did you mean '{near[0]}'?)"
    return f" (known: {', '.join(names[:20])})"


def check_keys(found: Iterable[str], known: Iterable[str], where: str, *, required: Iterable[str] = ()) -> None:
    """Refuse unknown and missing keys by name.

    Raises:
        UnknownKeyError: a key is unknown or a required key is missing.
    """
    found, known = list(found), list(known)
    for key in found:
        if key not in known:
            raise UnknownKeyError(f"{where}: unknown key '{key}'{did_you_mean(key, known)}")
    for key in required:
        if key not in found:
            raise UnknownKeyError(f"{where}: key '{key}' is missing; add it")
