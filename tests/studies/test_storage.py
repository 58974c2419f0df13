"""Storages: what is stored comes back, torn and damaged files are told apart, one writer at a time, full disks lose nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from shapefront.studies.files import OutputError, prepare_folder, remove_leftovers, to_csv, write_folder, write_whole
from shapefront.studies.folder_lock import FolderLock
from shapefront.studies.journal import LockedJournal
from shapefront.studies.storage import FORMAT_VERSION, StorageError, difference, open_store, storage_kind
from tests.studies.small import ROOT, environment

HEADER: dict[str, Any] = {"spec": {"name": "s"}, "seed": 1, "versions": {"shapefront": "0"}, "hashes": {"spec": "x"}}
KINDS = ("memory", "journal", "sqlite")


def make_trials(count: int, start: int = 0) -> list[FrozenTrial]:
    """Finished trials with parameters, constraints and attributes; one in five failed."""
    distribution = IntDistribution(1, 10_000)
    return [
        create_trial(
            state=TrialState.FAIL if i % 5 == 4 else TrialState.COMPLETE,
            values=None if i % 5 == 4 else [i / 3, 1e300 / (i + 1)],
            params={"hidden_size": i + 1},
            distributions={"hidden_size": distribution},
            user_attrs={"source": "sampler", "error": "é" if i % 5 == 4 else ""},
            constraints={"budget": -1.0, "shape": 0.1 * i},
        )
        for i in range(start, start + count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_comes_back(tmp_path: Path, kind: str) -> None:
    store = open_store(kind, "s", tmp_path)
    assert store.read() is None
    store.create(HEADER, ["a", "b"])
    trials = make_trials(12)
    store.append(trials[:7])
    store.add_evaluation("k1", 0.1, "")
    store.add_evaluation("k2", float("nan"), "boom")
    store.append(trials[7:])
    if kind != "memory":
        store.close()
        store = open_store(kind, "s", tmp_path)
    stored = store.read()
    assert stored is not None
    assert stored.metadata["spec"] == {"name": "s"} and not stored.finished
    for number, (old, new) in enumerate(zip(trials, stored.trials, strict=True)):
        assert (new.number, new.state, new.values, new.params) == (number, old.state, old.values, old.params)
        assert (new.user_attrs, new.constraints) == (old.user_attrs, old.constraints)
    assert stored.evaluations["k1"] == (0.1, "")
    assert np.isnan(stored.evaluations["k2"][0]) and stored.evaluations["k2"][1] == "boom"
    store.append(make_trials(1, 12))
    store.finish(HEADER)
    again = store.read()
    assert again is not None and again.finished and len(again.trials) == 13
    best = {t.number for t in store.study().best_trials}
    assert best <= {t.number for t in again.trials}
    store.close()


def test_a_batch_of_trials_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("journal", "s", tmp_path)
    store.create(HEADER, ["a", "b"])
    writes: list[int] = []
    real = os.write

    def counted(descriptor: int, data: memoryview) -> int:
        writes.append(len(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    store.append(make_trials(50))
    store.close()
    assert len(writes) == 1


@pytest.mark.parametrize("cut", [1, 7, 60, 200])
def test_a_write_that_was_cut_short_is_removed(tmp_path: Path, cut: int) -> None:
    """Power lost or killed in the middle of a line: the whole lines before it stay."""
    store = open_store("journal", "s", tmp_path)
    store.create(HEADER, ["a", "b"])
    store.append(make_trials(6))
    store.close()
    path = tmp_path / "study.journal"
    data = path.read_bytes()
    assert cut < len(data.splitlines()[-1])
    path.write_bytes(data[:-cut])
    store = open_store("journal", "s", tmp_path)
    stored = store.read()
    assert stored is not None and len(stored.trials) == 5
    assert store.repaired_bytes == len(data.splitlines(keepends=True)[-1]) - cut
    store.append(make_trials(1, 5))
    store.close()
    assert len(path.read_bytes().splitlines()) == len(data.splitlines())


def test_optuna_reads_the_journal(tmp_path: Path) -> None:
    store = open_store("journal", "s", tmp_path)
    store.create(HEADER, ["a", "b"])
    store.append(make_trials(6))
    store.close()
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    assert len(study.trials) == 6
    assert study.metric_names == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a journal\n", "damaged"),
        (b"not a journal", "not a shapefront journal"),
        (b"\x00\xff\n{}\n", "damaged"),
        (b'{"op_code":99,"worker_id":"x"}\n', "cannot be read"),
        (b'{"op_code":true}\n', "damaged"),
        (b"[" * 100_000 + b"\n", "damaged"),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(data)
    with pytest.raises(StorageError, match=message), closing(open_store(str(path), "s")) as store:
        store.read()
    assert path.read_bytes() == data


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4000)
    with pytest.raises(StorageError, match="cannot be read"), closing(open_store(str(path), "s")) as store:
        store.read()


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**HEADER, "format": FORMAT_VERSION + 1}, "newer shapefront"),
        ({**HEADER, "format": "1"}, "did not write"),
        ({k: v for k, v in HEADER.items() if k != "hashes"}, "lacks 'hashes'"),
    ],
)
def test_a_foreign_or_newer_header_is_refused(tmp_path: Path, kind: str, header: dict[str, Any], message: str) -> None:
    store = open_store(kind, "s", tmp_path)
    store.create(header, ["a"])
    with pytest.raises(StorageError, match=message):
        store.read()
    store.close()


def test_a_study_of_plain_optuna_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    study = optuna.create_study(storage=url, study_name="s")
    study.add_trial(create_trial(value=1.0))
    with pytest.raises(StorageError, match="did not write"), closing(open_store(url, "s")) as store:
        store.read()


def test_a_newer_schema_of_optuna_is_refused(tmp_path: Path) -> None:
    import sqlite3

    store = open_store("sqlite", "s", tmp_path)
    store.create(HEADER, ["a"])
    store.close()
    connection = sqlite3.connect(tmp_path / "study.db")
    connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    connection.execute("UPDATE version_info SET schema_version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match="newer version"):
        open_store("sqlite", "s", tmp_path)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    first = LockedJournal(tmp_path / "x.journal")
    with pytest.raises(StorageError, match="another process"):
        LockedJournal(tmp_path / "x.journal")
    first.close()
    LockedJournal(tmp_path / "x.journal").close()


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(StorageError, match=f"process {os.getpid()}"):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from shapefront.studies.folder_lock import FolderLock
from shapefront.studies.journal import LockedJournal
a, b = FolderLock(Path({str(tmp_path)!r})), LockedJournal(Path({str(tmp_path / "x.journal")!r}))
print("held", flush=True)
import time; time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment(), cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    with pytest.raises(StorageError):
        FolderLock(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    FolderLock(tmp_path).release()
    LockedJournal(tmp_path / "x.journal").close()


def test_another_writer_of_the_same_rows_is_noticed(tmp_path: Path) -> None:
    first = open_store("sqlite", "s", tmp_path)
    first.create(HEADER, ["a", "b"])
    first.append(make_trials(2))
    second = open_store("sqlite", "s", tmp_path)
    assert second.read() is not None
    second.append(make_trials(1, 2))
    with pytest.raises(StorageError, match="another process added trials"):
        first.append(make_trials(3, 2))
    first.close()
    second.close()


def test_an_answer_lost_after_the_commit_stores_nothing_twice(tmp_path: Path) -> None:
    store = open_store("sqlite", "s", tmp_path)
    store.create(HEADER, ["a", "b"])
    trials = make_trials(3)
    store.append(trials)
    store._count = 0  # as if the commit's answer never came
    store.append(trials)
    stored = store.read()
    assert stored is not None and len(stored.trials) == 3
    store.close()


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Writes beyond ``limit`` bytes of a file fail, like on a full disk (EFBIG instead of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_does_not_fit_leaves_the_journal_whole(tmp_path: Path) -> None:
    store = open_store("journal", "s", tmp_path)
    store.create(HEADER, ["a", "b"])
    store.append(make_trials(5))
    size = (tmp_path / "study.journal").stat().st_size
    with file_size_limit(size + 700), pytest.raises(StorageError, match="nothing stored so far is lost"):
        store.append(make_trials(50, 5))
    store.close()
    assert (tmp_path / "study.journal").stat().st_size == size
    with closing(open_store("journal", "s", tmp_path)) as store:
        stored = store.read()
    assert stored is not None and len(stored.trials) == 5


def test_a_result_file_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "pareto.csv"
    write_whole(path, "old\n")
    with file_size_limit(100), pytest.raises(OutputError, match=r"pareto\.csv: cannot be written"):
        write_whole(path, "x" * 1000)
    assert path.read_text() == "old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["pareto.csv"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "configs"

    def healthy(aside: Path) -> None:
        (aside / "a").write_text("1")

    write_folder(folder, healthy)

    def broken(aside: Path) -> None:
        (aside / "b").write_text("2")
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left"):
        write_folder(folder, broken)
    assert [p.name for p in folder.iterdir()] == ["a"]
    assert [p.name for p in tmp_path.iterdir()] == ["configs"]


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".writing-pareto.csv").write_text("half")
    (tmp_path / ".writing-configs").mkdir()
    (tmp_path / "keep").write_text("x")
    remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["keep"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(OutputError, match="choose another --out"):
        prepare_folder(tmp_path / "x" / "y")


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("memory", "memory"),
        ("a/b.journal", "journal"),
        ("sqlite:///x.db", "sqlite"),
        ("x.sqlite3", "sqlite"),
        ("postgresql://u:p@h/d", "postgresql"),
        ("postgresql+psycopg://u@h/d", "postgresql"),
        ("postgres://u@h/d", "postgresql"),
    ],
)
def test_storages_are_told_apart(where: str, kind: str) -> None:
    assert storage_kind(where) == kind


@pytest.mark.parametrize("where", ["mysql://u:secret@h/d", "x.txt", "", "redis://h", "ftp://u:secret@h"])
def test_an_unknown_storage_is_refused_without_its_password(where: str) -> None:
    with pytest.raises(StorageError, match="unknown storage") as error:
        storage_kind(where)
    assert "secret" not in str(error.value)


def test_differences_name_the_key() -> None:
    stored = {"a": 1, "b": {"c": [1], "d": 2}, "e": 3}
    assert difference(stored, {"a": 1, "b": {"c": [1, 2], "d": 2}}) == ["b.c: [1] → [1, 2]", "e: 3 → absent"]


def test_csv_floats_are_exact() -> None:
    text = to_csv(["x", "y", "z", "w"], [{"x": 0.1 + 0.2, "y": True, "z": None, "w": ["a", "b"]}])
    assert text == "x,y,z,w\n0.30000000000000004,true,,a; b\n"
    assert json.loads(text.split("\n")[1].split(",")[0]) == 0.1 + 0.2
