"""Where a key stands in a TOML text, so that an error can name its line."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TABLE = re.compile(r"^\s*(\[\[|\[)\s*([^\[\]]+?)\s*(\]\]|\])\s*(#.*)?$")
_KEY = re.compile(r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def key_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Map each key path of a TOML text to its line (1 = first); array tables count from 0.

    A plain scan: keys inside multi-line values are found only when they stand at the start of a line, and a key that
    is not found is simply absent.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str, ...], int] = {}
    prefix: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        table = _TABLE.match(line)
        if table:
            names = tuple(_parts(table.group(2)))
            if table.group(1) == "[[":
                counts[names] = counts.get(names, -1) + 1
            path: list[str | int] = []
            for depth in range(1, len(names) + 1):
                path.append(names[depth - 1])
                if names[:depth] in counts:
                    path.append(counts[names[:depth]])
            prefix = tuple(path)
            lines.setdefault(prefix, number)
            continue
        key = _KEY.match(line)
        if key:
            lines.setdefault((*prefix, *_parts(key.group(1))), number)
    return lines


def line_of(lines: dict[tuple[str | int, ...], int], path: Sequence[str | int]) -> int | None:
    """Line of the longest known prefix of ``path``; None when even its first key is unknown."""
    for length in range(len(path), 0, -1):
        if tuple(path[:length]) in lines:
            return lines[tuple(path[:length])]
    return None
