"""SQLite storages: another program's file stays byte for byte as it is, a new one is made whole or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shapefront.studies.sqlite import create_sqlite
from shapefront.studies.storage import StorageError, open_store
from tests.studies.small import outputs, run_cli, small_study, write_study


def _browser(path: Path, *, journal_mode: str = "delete") -> None:
    """A database like a browser's history."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("CREATE TABLE urls (id INTEGER PRIMARY KEY, url TEXT)")
        connection.execute("INSERT INTO urls (url) VALUES ('https://example.org')")
        connection.commit()


def _no_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a browser's": (_browser, "is another program's database"),
    "a browser's in WAL mode": (lambda path: _browser(path, journal_mode="wal"), "is another program's database"),
    "without tables": (_no_tables, "is empty|is another program's database"),
    "empty": (lambda path: path.write_bytes(b""), "is empty, so it cannot be read as a study storage; it is left as it is"),
    "a text": (lambda path: path.write_text("my notes\n" * 50), "is not an SQLite database"),
    "short": (lambda path: path.write_bytes(b"SQLite form"), "is not an SQLite database"),
    "a head alone": (lambda path: path.write_bytes(b"SQLite format 3\x00"), "is another program's|cannot be read"),
    "noise": (lambda path: path.write_bytes(b"SQLite format 3\x00" + os.urandom(5000)), "cannot be read as a study storage"),
}


@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite"]], ids=["new", "resume", "overwrite"])
@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_another_program_stays(tmp_path: Path, what: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is asked for: one message, exit code 2, the folder holds what it held, byte for byte."""
    from shapefront.studies.cli import main

    make, message = FOREIGN[what]
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "History.db"
    make(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    arguments = ["run", write_study(tmp_path / "s.toml"), "--storage", path, "--out", tmp_path / "out", "-q", *more]
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 2
    with pytest.raises(StorageError, match=message):
        open_store(str(path), "small")
    assert str(path) in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_a_folder_a_pipe_and_a_link_to_nothing_are_no_database(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "link.db").symlink_to("nowhere.db")
    (tmp_path / "loop.db").symlink_to("loop.db")
    for name in ("folder", "pipe", "link", "loop"):
        with pytest.raises(StorageError, match="is not a plain file"):
            open_store(str(tmp_path / f"{name}.db"), "small")
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.parametrize("where", ["sqlite://", "sqlite:///", "sqlite:///x.db?mode=ro"])
def test_a_url_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match="reads like sqlite:///FILE"):
        open_store(where, "small")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s.toml")
    for name in ("x.db", "x.journal"):
        found = run_cli("run", study, "--storage", tmp_path / "none" / name, "--out", tmp_path / "out", "-q")
        assert found.returncode == 2 and "No such file or directory" in found.stderr and "Traceback" not in found.stderr
    assert not (tmp_path / "none").exists() and not (tmp_path / "out").exists()


def test_a_database_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed (here: failed) while its tables are made: no file of that name; made by another process meanwhile: kept."""
    path = tmp_path / "x.db"

    def fails(aside: Path) -> None:
        aside.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"x\.db: cannot be made \(No space left on device\)"):
        create_sqlite(path, fails)
    assert not list(tmp_path.iterdir())

    def other(aside: Path) -> None:
        path.write_bytes(b"the other's")

    create_sqlite(path, other)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.db", b"the other's")]


def test_an_own_database_is_opened_again(tmp_path: Path) -> None:
    """A name with spaces and signs, a run of another study beside it."""
    path = tmp_path / "my study #1 100%.db"
    small_study().run(storage=str(path), trials=8)
    small_study(name="other").run(storage=str(path), trials=8)
    with closing(sqlite3.connect(path)) as connection:
        names = {row[0] for row in connection.execute("SELECT study_name FROM studies")}
    assert names == {"small", "other"}
    whole = tmp_path / "whole"
    small_study().run(out=whole, trials=8)
    small_study().run(out=tmp_path / "again", storage=str(path), trials=8, resume=True)
    assert outputs(tmp_path / "again") == outputs(whole)
