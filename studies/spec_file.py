"""Reading and writing study files."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..costmodel import UnknownKeyError
from ..costmodel.errors import did_you_mean
from ..costmodel.hardware import read_toml
from .spec import FamilySpec, SpecError, StudySpec, UserObjectiveSpec
from .spec_types import short
from .toml_lines import key_lines, line_of

_SHOWN = 5  # errors listed at once
_EXPLAINED = 100  # errors put into words at most


def library_directory() -> Path:
    """Folder of the built-in studies."""
    return Path(str(resources.files(__package__))) / "library"


def study_names() -> list[str]:
    """Names of the built-in studies."""
    return sorted(path.stem for path in library_directory().glob("*.toml"))


def find_study(name: str | Path) -> Path:
    """Path of a study: a built-in name, or a file of the user's own ending in ``.toml``.

    Raises:
        UnknownKeyError: no such built-in.
    """
    text = str(name)
    if text.endswith(".toml"):
        return Path(text)
    if text not in study_names():
        raise UnknownKeyError(
            f"unknown study '{text[:80]}'{did_you_mean(text, study_names())}; a study file of your own must end in .toml"
        )
    return library_directory() / f"{text}.toml"


def load_spec(name: str | Path) -> StudySpec:
    """Read a study by built-in name or path.

    Raises:
        UnknownKeyError: no such built-in.
        SpecError: the file breaks a rule.
    """
    path = find_study(name)
    table = read_toml(path)
    return parse_spec(table, str(name), text=path.read_text("utf-8-sig"))


def parse_spec(table: Mapping[str, Any], where: str, *, text: str = "") -> StudySpec:
    """Validate a parsed study.

    Args:
        table: the parsed TOML.
        where: file name for messages.
        text: the TOML text, to name lines.

    Raises:
        SpecError: every broken rule, the first five by file, line and key.
    """
    try:
        return StudySpec.model_validate(table)
    except ValidationError as error:
        lines = key_lines(text)
        errors = error.errors(include_url=False, include_context=False)
        messages = dict.fromkeys(_explain(dict(item), where, lines) for item in errors[:_EXPLAINED])
        shown = list(messages)[:_SHOWN]
        if len(messages) > _SHOWN:
            least = "at least " if len(errors) > _EXPLAINED else ""
            shown.append(f"… and {least}{len(messages) - _SHOWN} more")
        raise SpecError("\n".join(shown)) from None
    except RecursionError:
        raise SpecError(f"{where}: is nested too deeply for a study") from None


def _explain(error: dict[str, Any], where: str, lines: dict[tuple[str | int, ...], int]) -> str:
    # pydantic adds the names of union members to the path; keep what the file can hold
    path = [part for part in error["loc"] if isinstance(part, int) or not _internal(str(part))]
    line = line_of(lines, path)
    place = f"{where}:{line}" if line else where
    key = ".".join(str(part)[:60] for part in path)
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = ".".join(str(part)[:60] for part in path[:-1])
        prefix = f"{key}: " if key else ""
        return f"{place}: {prefix}unknown key '{str(path[-1])[:60]}'{did_you_mean(str(path[-1])[:60], _known_keys(path[:-1]))}"
    if error["type"] == "missing":
        return f"{place}: key '{key}' is missing; add it"
    got = error.get("input")
    if error["type"] != "value_error" and isinstance(got, str | int | float):
        message += f", got {got[:60]!r}" if isinstance(got, str) else f", got {short(got)}"
    return f"{place}: {key}: {message}" if key else f"{place}: {message}"


def _internal(part: str) -> bool:
    return (
        "[" in part or "(" in part or part in ("constrained-int", "constrained-float", "function-before", "int", "float", "str")
    )


def _known_keys(path: list[Any]) -> list[str]:
    model: Any = StudySpec
    for part in path:
        if part == "families":
            model = FamilySpec
        elif part == "user":
            model = UserObjectiveSpec
        elif isinstance(part, str) and part in model.model_fields:
            model = model.model_fields[part].annotation
        if not hasattr(model, "model_fields"):
            return []
    return list(model.model_fields)


def spec_to_dict(spec: StudySpec) -> dict[str, Any]:
    """Plain values, every default filled in; ``parse_spec`` reads it back."""
    table: dict[str, Any] = _without_none(json.loads(spec.model_dump_json()))
    return table


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def spec_hash(spec: StudySpec) -> str:
    """SHA-256 of the canonical JSON of a spec."""
    return hashlib.sha256(json.dumps(spec_to_dict(spec), sort_keys=True).encode()).hexdigest()


def to_toml(table: Mapping[str, Any]) -> str:
    """TOML text of plain values (strings, numbers, booleans, lists, tables)."""
    lines: list[str] = []
    _write_table(table, (), lines)
    text = "\n".join(lines).strip() + "\n"
    tomllib.loads(text)  # what we write, we can read
    return text


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    later: list[tuple[str, Any]] = []
    for key, value in table.items():
        if (isinstance(value, dict) and set(value) != {"low", "high", "step"}) or (
            isinstance(value, list) and value and isinstance(value[0], dict)
        ):
            later.append((key, value))
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in later:
        name = ".".join(_key(part) for part in (*path, key))
        for item in value if isinstance(value, list) else [value]:
            lines.extend(["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"])
            _write_table(item, (*path, key), lines)


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):  # a range stays on its line: the order of dimensions is part of a study
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=True)
