"""Writing results so that they are always whole: write aside, fsync, rename."""

from __future__ import annotations

import csv
import io
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..costmodel import InvalidValueError

ASIDE = ".writing-"  # prefix of files that are not whole yet


def aside_of(path: Path) -> Path:
    """A name beside ``path`` that no other writer has, of this process or another."""
    return path.parent / f"{ASIDE}{os.getpid()}-{secrets.token_hex(4)}-{path.name}"


_FORMULA = tuple("=+-@\t\r")


class OutputError(InvalidValueError):
    """A result cannot be written; nothing stored is lost."""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace ``path`` by ``data`` in one step.

    Raises:
        OutputError: the folder cannot be written (full, read-only, gone), or ``path`` is a device, a pipe or a folder, which a
            rename would take away.
    """
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: is not a plain file, so it is not replaced; choose another --out")
    aside = aside_of(path)
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data  # lone surrogates of foreign messages
    try:
        with open(aside, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror}); free some space or choose another --out") from None


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Replace the folder ``path`` by one that ``fill`` writes.

    Raises:
        OutputError: the folder cannot be written.
    """
    aside, old = aside_of(path), aside_of(path)
    try:
        aside.mkdir()
        fill(aside)
        for folder, _, names in os.walk(aside):
            for name in names:
                with open(Path(folder) / name, "rb") as file:
                    os.fsync(file.fileno())
            _sync_folder(Path(folder))
        if path.exists():
            os.rename(path, old)
        os.rename(aside, path)
        _sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror}); free some space or choose another --out") from None


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left half-written."""
    for path in folder.glob(f"{ASIDE}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def prepare_folder(folder: Path) -> None:
    """Make ``folder`` and check that it can be written.

    Raises:
        OutputError: it cannot.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is a file, not a folder; choose another --out")
    probe = aside_of(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None


def prepare_results(folder: Path) -> None:
    """:func:`prepare_folder` for the results of a run, which must not replace what a user keeps under the same names.

    Raises:
        OutputError: the folder cannot be written, or holds a ``configs`` or ``study.toml`` that no run wrote.
    """
    configs, study = folder / "configs", folder / "study.toml"
    try:
        own = not configs.exists() or all(map(_of_a_run, configs.iterdir()))
    except OSError:  # not a folder, or not ours to read
        own = False
    if not own or configs.is_symlink():
        raise OutputError(f"{configs}: no run wrote it, and a run would replace it; choose another --out")
    if study.exists() and not any((folder / name).exists() for name in (".lock", "run.log", "pareto.csv", "result.json")):
        raise OutputError(f"{study}: no run wrote it, and a run would replace it; choose another --out")
    prepare_folder(folder)


def _of_a_run(path: Path) -> bool:
    return path.name.startswith("rank-") and path.name[5:].isdecimal() and path.is_dir() and not path.is_symlink()


def to_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV text; floats in their shortest exact form, booleans as true/false, missing values empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return buffer.getvalue()


def _cell(value: Any) -> str:
    text = _plain_cell(value)
    # A spreadsheet would run text that begins so; numbers are ours and stay.
    return f"'{text}" if isinstance(value, str) and text[:1] in _FORMULA else text


def _plain_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "; ".join(str(item) for item in value)
    return str(value)
