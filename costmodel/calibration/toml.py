"""Write a profile's nested tables as TOML (the standard library only reads it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_HEADER = "# Written by `shapefront calibrate`: fitted numbers, SI units; errors are fractions; held-out rows are whole shapes.\n"


def profile_toml(table: Mapping[str, Any]) -> str:
    """TOML text of a profile: scalars, ``[provenance]``, then one ``[family.format]`` table each."""
    lines = [_HEADER]
    lines += [f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if not isinstance(value, Mapping):
            continue
        if key == "provenance":
            lines += ["", "[provenance]", *(f"{_key(k)} = {_value(v)}" for k, v in value.items())]
            continue
        for name, entry in value.items():
            lines += ["", f"[{key}.{_key(name)}]"]
            scalars = {k: v for k, v in entry.items() if not isinstance(v, Mapping)}
            lines += [f"{k} = {_value(v)}" for k, v in scalars.items()]
            for part, numbers in entry.items():
                if isinstance(numbers, Mapping):
                    lines += ["", f"[{key}.{_key(name)}.{part}]", *(f"{_key(k)} = {_value(v)}" for k, v in numbers.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    number = float(f"{float(value):.5g}")
    text = repr(number)
    return text if "e" in text or "." in text or "n" in text else f"{text}.0"
