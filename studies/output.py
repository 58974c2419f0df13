"""What commands print: JSON with the stable names, or a table for people."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_PIPE_WIDTH = 200  # characters, where no terminal says
_PROSE_WIDTH = 20  # cells above wrap at words
_LEAD_WIDTH = 36  # two leading columns up to here are repeated in every block


# for terminals and files whose encoding lacks a character
_ASCII = {
    "–": "-", "—": "-", "−": "-", "·": "*", "×": "x", "÷": "/", "→": "->", "…": "...", "≥": ">=", "≤": "<=", "±": "+-", "µ": "u",
    "′": "'", "‘": "'", "’": "'", "“": '"', "”": '"', "α": "alpha", "β": "beta", "Δ": "d", "²": "^2", "³": "^3", "√": "sqrt",
}  # fmt: skip


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """The nearest ASCII text of what an encoding cannot hold; ``?`` where there is none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def write_any_encoding() -> None:
    """Let stdout and stderr write every text, whatever the locale's encoding, also half of a surrogate pair."""
    codecs.register_error("shapefront", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if _unicode(stream) else "shapefront")


def open_closed_streams() -> None:
    """Open what the caller closed of stdin, stdout and stderr on the null device, so that no file takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _unicode(stream: Any) -> bool:
    return str(getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


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


def to_json(value: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """JSON text of :func:`plain` ``(value)``, keys in the order given; ``ascii_only`` escapes every other character."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def print_json(value: Any) -> None:
    """Write ``value`` as JSON to stdout."""
    sys.stdout.write(to_json(value, ascii_only=not _unicode(sys.stdout)) + "\n")


def line_width(stream: Any) -> int | None:
    """Characters in a line: the terminal's or ``COLUMNS``; None where the stream is a pipe or a file."""
    return shutil.get_terminal_size().columns if stream.isatty() or "COLUMNS" in os.environ else None


def say(text: str, file: Any = None) -> None:
    """Write lines to stdout (or ``file``), wrapped at words to the terminal; as they are to a pipe or a file."""
    stream = file or sys.stdout
    width = line_width(stream)
    for line in text.split("\n"):
        if width is not None and len(line) > width:
            indent = line[: len(line) - len(line.lstrip())] + "  "
            line = textwrap.fill(line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        stream.write(line + "\n")


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


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    file: Any = None,
    right: Collection[int] = (),
) -> None:
    """Write a table with rich; numbers are set right, text left.

    A table wider than the terminal (or ``COLUMNS``) is cut into blocks below each other that repeat the leading columns; numbers
    are never broken over lines.

    Args:
        columns: headings.
        rows: cells; strings are shown as they are (no markup), numbers through :func:`number`.
        title: a line above.
        file: defaults to stdout.
        right: columns of text that are set right like numbers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    numeric = [bool(body) and (i in right or all(not isinstance(row[i], str) for row in body)) for i in range(len(columns))]
    cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in body]
    stream = file or sys.stdout
    console = Console(file=stream, width=line_width(stream) or _PIPE_WIDTH, soft_wrap=False)
    if title:
        say(title, stream)
    blocks = column_blocks(columns, cells, console.width)
    if len(blocks) > 1 and len({tuple(row[i] for i in _shared(blocks)) for row in cells}) < len(cells):
        # the repeated columns do not tell the rows apart: number them
        columns, numeric = ["#", *columns], [True, *numeric]
        cells = [[str(index), *row] for index, row in enumerate(cells, 1)]
        blocks = column_blocks(columns, cells, console.width)
    for block in blocks:
        table = Table(header_style="bold")
        for i, wide in zip(block, _widths(columns, cells, block, console.width), strict=True):
            table.add_column(columns[i], justify="right" if numeric[i] else "left", overflow="fold", width=wide)
        for row in cells:
            table.add_row(*(Text(row[i]) for i in block))
        console.print(table)


def column_blocks(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns of each block of a table that is at most ``width`` characters wide; every block starts with the leading columns.

    Args:
        columns: headings.
        cells: text of each row's cells.
        width: characters in a line.
    """
    least = [_least_width(name, [row[i] for row in cells]) + 3 for i, name in enumerate(columns)]  # padding and a rule
    if sum(least) + 1 <= width or len(columns) < 3:
        return [list(range(len(columns)))]
    lead = [0, 1] if least[0] + least[1] <= min(width // 3, _LEAD_WIDTH) else [0]
    start = sum(least[i] for i in lead) + 1
    blocks, used = [list(lead)], start
    for i in range(len(lead), len(columns)):
        if used + least[i] > width and blocks[-1] != lead:
            blocks.append(list(lead))
            used = start
        blocks[-1].append(i)
        used += least[i]
    return blocks


def _shared(blocks: Sequence[Sequence[int]]) -> list[int]:
    """The leading columns that every block repeats."""
    return [i for i in blocks[0] if all(i in block for block in blocks)]


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]], block: Sequence[int], width: int) -> list[int]:
    """Characters each column of a block gets: its least, then what is left of the line to cells, then to headings."""
    bodies = [[row[i] for row in cells] for i in block]
    whole = [max(map(len, body), default=0) for body in bodies]
    found = [
        min(_least_width(columns[i], body), max(len(columns[i]), most))
        for i, body, most in zip(block, bodies, whole, strict=True)
    ]
    left = width - 1 - sum(wide + 3 for wide in found)
    for wanted in (whole, [len(columns[i]) for i in block]):
        for at in sorted(range(len(block)), key=lambda at: wanted[at] - found[at]):
            more = max(0, min(left, wanted[at] - found[at]))
            found[at] += more
            left -= more
    return found


def _least_width(name: str, cells: Sequence[str]) -> int:
    """Characters a column needs: the longest word of its heading, and its cells whole up to the width at which prose wraps."""
    longest = max((len(cell) for cell in cells), default=0)
    word = max((len(part) for cell in cells for part in cell.split()), default=0)
    return max(
        longest if longest <= _PROSE_WIDTH else max(_PROSE_WIDTH, min(word, 2 * _PROSE_WIDTH)), *map(len, name.split() or [""])
    )
