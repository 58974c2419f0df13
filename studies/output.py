"""What commands print: JSON with the stable names, or a table for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Turn arrays, numpy scalars, paths and dataclasses into plain JSON values; NaN and infinities become null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "tolist"):  # numpy array or scalar
        return plain(value.tolist())
    return str(value)


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """JSON text of :func:`plain` ``(value)``, keys in the order given."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def print_json(value: Any) -> None:
    """Write ``value`` as JSON to stdout."""
    sys.stdout.write(to_json(value) + "\n")


def number(value: Any, digits: int = 4) -> str:
    """A number for people: ``digits`` significant digits, thousands grouped, ``–`` for a missing one."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) or hasattr(value, "__float__"):
        value = float(value)
        if value == int(value) and abs(value) < 1e6:
            return f"{int(value):,}"
        if value != 0 and not 1e-3 <= abs(value) < 10**7:
            return f"{value:.{digits}g}"
        decimals = max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))
        return f"{value:,.{decimals}f}"
    return str(value)


def count(value: float) -> str:
    """A parameter count for people: ``30.53B``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, file: Any = None) -> None:
    """Write a table with rich; numbers are set right, text left.

    Args:
        columns: headings.
        rows: cells; strings are shown as they are (no markup), numbers through :func:`number`.
        title: a line above.
        file: defaults to stdout.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table = Table(header_style="bold")
    for i, name in enumerate(columns):
        numeric = bool(body) and all(not isinstance(row[i], str) for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(cell if isinstance(cell, str) else number(cell)) for cell in row))
    stream = file or sys.stdout
    width = None if stream.isatty() else 200
    if title:
        stream.write(title + "\n")
    Console(file=stream, width=width, soft_wrap=False).print(table)
