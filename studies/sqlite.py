"""SQLite files of Optuna: told apart from every other file before a byte is written, and made whole or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from .files import ASIDE
from .journal import StorageError

_HEAD = b"SQLite format 3\x00"  # how every SQLite file begins
_TABLES = {"studies", "trials", "version_info"}  # of Optuna, among others


def sqlite_file(where: str, folder: Path | None) -> Path:
    """The file that ``sqlite``, a file name or a URL means.

    Raises:
        StorageError: the URL names no file.
    """
    if where == "sqlite":
        return (folder or Path()) / "study.db"
    if "://" not in where:
        return Path(where)
    _, separator, path = where.partition(":///")
    if not separator or not path or "?" in path:
        raise StorageError(f"an SQLite storage reads like sqlite:///FILE, got '{where[:80]}'")
    return Path(path)


def check_sqlite(path: Path) -> None:
    """Refuse an existing file that is no study storage; nothing is written, no lock is taken.

    Raises:
        StorageError: not a plain file, empty, not SQLite, or another program's database.
    """
    way_out = "it is left as it is; choose another --storage"
    if not path.is_file():
        raise StorageError(f"{path}: is not a plain file; choose another --storage")
    with open(path, "rb") as file:
        head = file.read(len(_HEAD))
    if head != _HEAD:
        what = "is empty" if not head else "is not an SQLite database"
        raise StorageError(f"{path}: {what}, so it cannot be read as a study storage; {way_out}")
    try:  # immutable: without locks and without looking at the journal of a transaction that was cut short
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise StorageError(f"{path}: cannot be read as a study storage ({error}); restore the file, or {way_out}") from None
    if not tables >= _TABLES:
        raise StorageError(f"{path}: is another program's database, without the tables of a study storage; {way_out}")


def create_sqlite(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a database with Optuna's tables aside and give it its name when it is whole.

    Args:
        path: the database; one that another process makes meanwhile is kept.
        fill: makes the database at the path it is given, and closes it.

    Raises:
        StorageError: the folder cannot be written.
    """
    aside = path.parent / f"{ASIDE}{os.getpid()}-{path.name}"
    try:
        aside.touch(exist_ok=False)
        fill(aside)
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: cannot be made ({error.strerror}); choose another --storage") from None
    finally:
        for file in (aside, aside.with_name(f"{aside.name}-journal")):
            file.unlink(missing_ok=True)
