"""A JSON object from a file nobody vouches for: bounded size, no surprises, one clear message."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from ..costmodel.errors import InvalidValueError

MAX_CONFIG_BYTES = 10_000_000  # a real config.json is 1-100 kB
_MAX_DIGITS = 18  # no dimension, token id or length of a real config needs more


class _Refused(ValueError):
    """Raised by the parser's hooks; turned into an InvalidValueError with the file's name."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(f"key '{key[:60]}' stands twice; keep one")
        found[key] = value
    return found


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _Refused(f"whole number {text[:20]}... has {len(text)} digits; at most {_MAX_DIGITS} are read")
    return int(text)


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Parse a JSON file that must hold one object.

    Args:
        path: the file; its size is checked before a byte is read.

    Raises:
        InvalidValueError: missing, not a plain file, larger than 10 MB, not UTF-8, cut off, not an object, a repeated key,
            an overlong number or nested too deeply; the message says where and what to do. NaN and Infinity are let through
            (released configs hold them in fields nobody needs here) and refused where a field is used.
    """
    path, where = Path(path), str(path)[:300]
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InvalidValueError(f"{where}: is a folder; name the config.json in it")
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValueError(f"{where}: is not a plain file; name a config.json")
        if status.st_size > MAX_CONFIG_BYTES:
            size = f"{status.st_size} bytes is more than the {MAX_CONFIG_BYTES} a config.json may have"
            raise InvalidValueError(f"{where}: {size}; was a weight file named?")
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)  # a file that grows while it is read stays bounded
    except FileNotFoundError:
        raise InvalidValueError(
            f"{where}: no such file; name a config.json, a .toml or .json of ours, or a built-in model"
        ) from None
    except OSError as error:
        raise InvalidValueError(f"{where}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(f"{where!r}: is not a path") from None
    try:
        found = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique, parse_int=_integer)
    except UnicodeDecodeError:
        raise InvalidValueError(f"{where}: is not UTF-8 text; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(raw.rstrip()) - 1
        hint = "the file seems cut off; fetch it again" if cut else "correct it there"
        raise InvalidValueError(
            f"{where}: is not valid JSON, line {error.lineno} column {error.colno}: {error.msg}; {hint}"
        ) from None
    except _Refused as error:
        raise InvalidValueError(f"{where}: {error}") from None
    except RecursionError:
        raise InvalidValueError(f"{where}: is nested too deeply for a config; flatten it") from None
    if not isinstance(found, dict):
        kind = "an array" if isinstance(found, list) else type(found).__name__
        raise InvalidValueError(f"{where}: must hold one JSON object with the model's fields, got {kind}")
    return found
