"""YAML of plain values (mappings, lists, strings, numbers, booleans, null): a writer of the small files we export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def to_yaml(value: Mapping[str, Any], *, comments: Sequence[str] = ()) -> str:
    """Block-style YAML text of ``value``, keys in the order given.

    Args:
        value: nested mappings, lists and scalars; strings are quoted as JSON, which YAML reads.
        comments: lines at the head.
    """
    return "\n".join([*(f"# {' '.join(line.split())}" for line in comments), *_mapping(value, 0)]) + "\n"


def _mapping(value: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, item in value.items():
        head = f"{'  ' * depth}{key}:"
        if isinstance(item, Mapping) and item:
            lines += [head, *_mapping(item, depth + 1)]
        elif isinstance(item, list | tuple) and item:
            lines += [head, *_list(item, depth + 1)]
        else:
            lines.append(f"{head} {_scalar(item)}")
    return lines


def _list(value: Sequence[Any], depth: int) -> list[str]:
    lines = []
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _mapping(item, depth + 1)
            lines += [f"{'  ' * depth}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{'  ' * depth}- {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
