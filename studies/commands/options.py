"""Option values that several commands read the same way."""

from __future__ import annotations

from ...costmodel.errors import InvalidValueError
from ...costmodel.layout import MAX_GPUS
from ...costmodel.serving_frontier import AREA

AREA_HEADING = f"area, {AREA[0]:g}–{AREA[1]:g} tokens/s/user"  # tokens/s/GPU over ln(tokens/s/user) between these rates


def parse_gpus(text: str | None) -> tuple[int, ...] | None:
    """Read ``1,2,4,8``; None stays None.

    Raises:
        InvalidValueError: not whole numbers from 1 to the largest layout.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= 6 and 1 <= int(part) <= MAX_GPUS for part in parts):
        raise InvalidValueError(f"gpus reads like 1,2,4,8 (each 1 to {MAX_GPUS}), got {text[:60]!r}")
    return tuple(sorted({int(part) for part in parts}))


def parse_pins(texts: list[str]) -> dict[str, int]:
    """Read ``hidden_size=4096`` pins.

    Raises:
        InvalidValueError: not in that form, or one dimension pinned to two values.
    """
    pins: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        name, number = name.strip(), number.strip()
        if not name or not number.isdecimal() or len(number) > 9:
            raise InvalidValueError(f"a pin reads like hidden_size=4096, got {text[:60]!r}")
        if pins.get(name, int(number)) != int(number):
            raise InvalidValueError(f"{name} is pinned to {pins[name]} and to {number}; keep one")
        pins[name] = int(number)
    return pins
