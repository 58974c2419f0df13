"""Reading result.json: everything is checked before anything else reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..costmodel import ArchitectureKind, InvalidValueError
from ..costmodel.architecture import INTEGER_FIELDS
from .result_shape import shape_error

FORMAT_VERSION = 1
_MAX_BYTES = 500_000_000
_MOST_DIGITS = 25


class ResultError(InvalidValueError):
    """A result cannot be read; the message says where and why."""


def read_result(path: Path) -> dict[str, Any]:
    """The checked contents of a result folder's result.json, or of the file itself.

    Raises:
        ResultError: missing, damaged, of a newer version, or not a result.
    """
    file = path / "result.json" if path.is_dir() else path
    if file.suffix.lower() == ".toml":
        raise ResultError(f"{file}: is a study, not a result; give the folder of its run ('shapefront run {file}' makes one)")
    try:
        if file.exists() and not file.is_file():  # a pipe would block, a device never end
            raise ResultError(f"{file}: is not a plain file; give a folder written by 'shapefront run'")
        if file.stat().st_size > _MAX_BYTES:
            raise ResultError(f"{file}: {file.stat().st_size} bytes is more than a result may have ({_MAX_BYTES})")
        data = json.loads(file.read_bytes().decode("utf-8"), parse_constant=_refuse, parse_int=_whole)
    except FileNotFoundError:
        what = "holds no result.json" if path.is_dir() else "does not exist"
        more = ", or finish its run with --resume" if (path / "study.journal").is_file() else ""
        raise ResultError(f"{str(path)[:300]}: {what}; give the folder of a run ('shapefront run' makes one){more}") from None
    except OSError as error:
        raise ResultError(
            f"{str(file)[:300]}: cannot be read ({error.strerror}); give a folder written by 'shapefront run'"
        ) from None
    except ResultError:
        raise
    except (ValueError, RecursionError):
        raise ResultError(
            f"{str(file)[:300]}: is not a whole result.json; give the folder of a run, or run its study again with --resume"
        ) from None
    _check(data, file)
    found: dict[str, Any] = data
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:  # no count of ours is longer, and arithmetic on floats could not hold it
        raise ValueError(text[:_MOST_DIGITS])
    return int(text)


def _check(data: Any, file: Path) -> None:
    """Refuse what is not a result, before anything else reads it."""
    if not isinstance(data, dict) or not isinstance(data.get("format"), int) or isinstance(data.get("format"), bool):
        raise ResultError(f"{file}: is not a shapefront result")
    if data["format"] > FORMAT_VERSION:
        raise ResultError(
            f"{file}: was written by a newer shapefront (format {data['format']}, this one reads {FORMAT_VERSION}); upgrade"
        )
    lists: dict[str, Any] = {"architectures": dict, "pareto": dict, "objectives": str, "rates": (int, float)}
    for key, kind in lists.items():
        if not isinstance(data.get(key), list) or not all(isinstance(item, kind) for item in data[key]):
            raise ResultError(f"{file}: '{key}' must be a list; the file is damaged, run the study again with --resume")
    for key in ("reference", "spec", "kinds"):
        if not isinstance(data.get(key), dict):
            raise ResultError(f"{file}: '{key}' must be a table; the file is damaged, run the study again with --resume")
    for name, kind in data["kinds"].items():
        _check_kind(kind, f"{file}: kind of '{name[:40]}'")
    if not isinstance(data.get("study"), str):
        raise ResultError(f"{file}: 'study' must be a name; the file is damaged, run the study again with --resume")
    if not isinstance(data.get("runners_up", []), list) or not all(isinstance(row, dict) for row in data.get("runners_up", [])):
        raise ResultError(f"{file}: 'runners_up' must be a list; the file is damaged, run the study again with --resume")
    for index, row in enumerate([*data["architectures"], *data.get("runners_up", []), data["reference"]]):
        _check_row(row, f"{file}: architecture {index}")
    wrong = shape_error(data)
    if wrong:
        raise ResultError(f"{file}: {wrong}; the file is damaged, run the study again with --resume")


def _check_kind(kind: Any, where: str) -> None:
    known = {f.name: type(f.default) for f in fields(ArchitectureKind) if f.name != "moe"}
    if not isinstance(kind, dict) or set(kind) != set(known):
        raise ResultError(f"{where}: must have {', '.join(known)}; the file is damaged, run the study again with --resume")
    for key, value in kind.items():
        if type(value) is not known[key]:
            raise ResultError(
                f"{where}: '{key}' must be a {known[key].__name__}; the file is damaged, run the study again with --resume"
            )


def _check_row(row: Mapping[str, Any], where: str) -> None:
    numbers = ("frontier_area", "total_params", "active_params", "delta_loss_shape")
    for key in ("architecture_id", *INTEGER_FIELDS, *numbers, "at_rates", "frontier", "objectives"):
        if key not in row:
            raise ResultError(f"{where}: '{key}' is missing; the file is damaged, run the study again with --resume")
    for key in (*INTEGER_FIELDS, *numbers):
        value = row[key]
        ok = isinstance(value, int) if key in INTEGER_FIELDS else isinstance(value, int | float)
        if not ok or isinstance(value, bool) or not math.isfinite(value):
            raise ResultError(f"{where}: '{key}' must be a number; the file is damaged, run the study again with --resume")
    for key in ("at_rates", "frontier"):
        if not isinstance(row[key], list) or not all(isinstance(item, dict) for item in row[key]):
            raise ResultError(
                f"{where}: '{key}' must be a list of points; the file is damaged, run the study again with --resume"
            )
        for point in row[key]:
            for name in ("tokens_per_second_per_user", "tokens_per_second_per_gpu", *(("rate",) if key == "at_rates" else ())):
                if isinstance(point.get(name), bool) or not isinstance(point.get(name), int | float):
                    raise ResultError(
                        f"{where}: a point of '{key}' lacks '{name}'; the file is damaged, run the study again with --resume"
                    )
    if not isinstance(row.get("family", ""), str):
        raise ResultError(f"{where}: 'family' must be a name; the file is damaged, run the study again with --resume")
    if not isinstance(row["objectives"], dict) or not isinstance(row["architecture_id"], str):
        raise ResultError(f"{where}: 'objectives' must be a table and 'architecture_id' a name; the file is damaged")
