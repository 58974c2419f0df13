"""Where a study is kept: a journal file beside the results, SQLite, PostgreSQL or memory; all of them Optuna's.

The search itself runs in memory and is a pure function of (spec, seed). What is stored is its record: the spec with
its hashes, every finished trial in order, and every completed call of a user function as soon as it returns. A
resumed run replays the search, takes user functions' answers from the record, checks that each stored trial is the one
it computes, and appends what is missing; so it ends with the bytes of an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .journal import LockedJournal, StorageError
from .rdb import add_trials, hide_password, one_at_a_time, with_retries
from .sqlite import check_sqlite, create_sqlite, sqlite_file

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["StorageError", "Stored", "StudyStore", "open_store", "storage_kind"]
FORMAT_VERSION = 1  # of the record below; raised when an older program could misread it
METADATA = "shapefront"  # study user attribute that holds the record's header
EVALUATIONS = ".evaluations"  # suffix of the study that keeps user functions' answers
POSTGRES_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Stored:
    """What a storage holds of a study.

    Attributes:
        metadata: spec, seed, versions and hashes as written at the start.
        trials: finished trials in order.
        evaluations: key of a user function's call → (value, error message).
        finished: the run that wrote it came to its end.
    """

    metadata: Mapping[str, Any]
    trials: Sequence[FrozenTrial]
    evaluations: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    finished: bool = False


def storage_kind(where: str) -> str:
    """``memory``, ``journal``, ``sqlite`` or ``postgresql``.

    Raises:
        StorageError: not a storage we know.
    """
    if where in ("memory", "journal", "sqlite"):
        return where
    scheme = where.split("://", 1)[0].split("+")[0].lower() if "://" in where else ""
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    if scheme == "sqlite" or (not scheme and where.endswith((".db", ".sqlite", ".sqlite3"))):
        return "sqlite"
    if not scheme and where.endswith((".journal", ".log", ".jsonl")):
        return "journal"
    raise StorageError(
        f"unknown storage '{hide_password(where)[:80]}': give 'memory', 'journal', 'sqlite', a file ending in .journal or .db, "
        "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    )


def open_store(where: str, name: str, folder: Path | None = None) -> StudyStore:
    """Open a storage for the study ``name``; a bare ``journal`` or ``sqlite`` lies in ``folder``.

    Raises:
        StorageError: it cannot be opened, is damaged, in use, or of a newer version.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kind = storage_kind(where)
    journal: LockedJournal | None = None
    with _clear_errors(where):
        if kind == "memory":
            storage: BaseStorage = optuna.storages.InMemoryStorage()
        elif kind == "journal":
            journal = LockedJournal((folder or Path()) / "study.journal" if where == "journal" else Path(where))
            try:
                storage = optuna.storages.JournalStorage(journal)
            except BaseException:
                journal.close()
                raise
        elif kind == "sqlite":
            storage = _open_sqlite(sqlite_file(where, folder))
        else:
            storage = open_postgresql(where)
    return StudyStore(name, where, kind, storage, journal)


def _open_sqlite(path: Path) -> optuna.storages.RDBStorage:
    if path.exists() or path.is_symlink():
        check_sqlite(path)
    else:

        def fill(aside: Path) -> None:
            made = _sqlite(aside)
            made.remove_session()
            made.engine.dispose()

        create_sqlite(path, fill)
    return _sqlite(path)


def _sqlite(path: Path) -> optuna.storages.RDBStorage:
    """The file by its name alone: in a URL a ``?``, ``%`` or brace of a folder's name would mean something."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=POSTGRES_TIMEOUT_SECONDS, check_same_thread=False)

    return _rdb("sqlite:///study.db", creator=connect)


def open_postgresql(url: str, **options: Any) -> optuna.storages.RDBStorage:
    """An Optuna storage on PostgreSQL (psycopg 3), connections checked before use.

    Raises:
        StorageError: the driver is missing or the server cannot be reached.
    """
    address = f"postgresql+psycopg://{url.split('://', 1)[1]}"
    connect: dict[str, Any] = {"connect_timeout": POSTGRES_TIMEOUT_SECONDS}
    with _clear_errors(url), one_at_a_time(address, connect):  # many workers may find an empty database together
        return _rdb(address, **connect, **options)


def _version_in(header: Mapping[str, Any]) -> str:
    versions = header.get("versions")
    return str(versions.get("shapefront") if isinstance(versions, dict) else None)[:20]


def _rdb(
    url: str,
    *,
    heartbeat: Mapping[str, Any] | None = None,
    creator: Callable[[], Any] | None = None,
    **connect: Any,
) -> optuna.storages.RDBStorage:
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments: dict[str, Any] = {"connect_args": connect, "pool_pre_ping": True}
        if creator is not None:
            arguments["creator"] = creator
        return optuna.storages.RDBStorage(url, engine_kwargs=arguments, **(heartbeat or {}))


@contextmanager
def _clear_errors(where: str) -> Iterator[None]:
    """Turn whatever a damaged or unreachable storage raises into one clear message."""
    try:
        yield
    except StorageError:
        raise
    except ImportError:
        raise StorageError(f"{hide_password(where)}: needs the 'postgres' extra: pip install 'shapefront[postgres]'") from None
    except Exception as error:
        cause = error.__cause__ or error
        text = str(getattr(cause, "orig", None) or cause).strip()
        reason = (text.splitlines() or [""])[0][:200] or type(error).__name__
        hint = (
            "written by a newer version of Optuna? upgrade"
            if "version" in text.lower()
            else "give another --storage, or restore the file"
        )
        raise StorageError(f"{hide_password(where)}: cannot be read as a study storage ({reason}); {hint}") from None


class StudyStore:
    """The record of one study in one storage."""

    def __init__(self, name: str, where: str, kind: str, storage: BaseStorage, journal: LockedJournal | None) -> None:
        self.name, self.where, self.kind, self.storage = name, where, kind, storage
        self._journal = journal
        self._count = 0
        self.answers = 0  # of user functions, stored when the study was read
        self._ids: dict[str, int] = {}

    @property
    def repaired_bytes(self) -> int:
        """Bytes of a cut-short write that were removed when the journal was opened."""
        return self._journal.repaired_bytes if self._journal else 0

    def read(self) -> Stored | None:
        """What is stored, or None where the study is new.

        Raises:
            StorageError: the record is damaged or of a newer version.
        """
        with _clear_errors(self.where):
            if self.name not in {study.study_name for study in self.storage.get_all_studies()}:
                return None
            study_id = self._id(self.name)
            header = self.storage.get_study_user_attrs(study_id).get(METADATA)
            trials = self.storage.get_all_trials(study_id, deepcopy=False)
        if header is None and not trials:
            return None  # killed between creating the study and writing its header
        if not isinstance(header, dict) or type(header.get("format")) is not int or header["format"] < 1:
            raise StorageError(
                f"{hide_password(self.where)}: holds a study '{self.name}' that shapefront did not write; choose "
                "another name or storage"
            )
        if header["format"] > FORMAT_VERSION:
            raise StorageError(
                f"{hide_password(self.where)}: was written by a newer shapefront "
                f"({_version_in(header)}, format "
                f"{header['format']}; this one reads {FORMAT_VERSION}); upgrade shapefront"
            )
        for key, kind in (("spec", dict), ("seed", int), ("versions", dict), ("hashes", dict)):
            if not isinstance(header.get(key), kind):
                raise StorageError(
                    f"{hide_password(self.where)}: the study's header lacks '{key}'; restore the storage or start "
                    "again without --resume"
                )
        self._count = len(trials)
        return Stored(header, trials, self._evaluations(header.get("retried")), bool(header.get("finished")))

    def create(self, metadata: Mapping[str, Any], metric_names: Sequence[str]) -> None:
        """Write the header of a new study."""
        with _clear_errors(self.where), self._batch():
            self._create(metadata, metric_names)

    def restart(self, metadata: Mapping[str, Any], metric_names: Sequence[str]) -> None:
        """Forget the trials, which the search makes again from the answers of user functions; those stay."""
        with _clear_errors(self.where), self._batch():
            self.storage.delete_study(self._id(self.name))
            del self._ids[self.name]
            self._create(metadata, metric_names)

    def _create(self, metadata: Mapping[str, Any], metric_names: Sequence[str]) -> None:
        import optuna

        directions = [optuna.study.StudyDirection.MAXIMIZE] * len(metric_names)
        if self.name not in {study.study_name for study in self.storage.get_all_studies()}:
            try:
                self.storage.create_new_study(directions, self.name)
            except optuna.exceptions.DuplicatedStudyError:
                raise StorageError(
                    f"{hide_password(self.where)}: another process began the study '{self.name}' at the same moment; "
                    "wait for it, or choose another --storage"
                ) from None
        study_id = self._id(self.name)
        self.storage.set_study_system_attr(study_id, "study:metric_names", list(metric_names))
        self.storage.set_study_user_attr(study_id, METADATA, {"format": FORMAT_VERSION, **metadata})
        self._count = 0

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        self.write_header({**metadata, "finished": True})

    def write_header(self, metadata: Mapping[str, Any]) -> None:
        """Replace the header of a stored study."""
        with _clear_errors(self.where):
            header = {"format": FORMAT_VERSION, **metadata}
            with_retries(
                lambda: self.storage.set_study_user_attr(self._id(self.name), METADATA, header), self.where, recover=self._recover
            )

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Store finished trials after those stored so far; one write (one transaction) for all of them.

        Raises:
            StorageError: disk full, database away, or another writer.
        """
        if not trials:
            return
        if self.kind in ("sqlite", "postgresql"):
            with _clear_errors(self.where):
                add_trials(self.storage, self._id(self.name), trials, first_number=self._count)  # type: ignore[arg-type]
        else:
            with _clear_errors(self.where), self._batch():
                for trial in trials:
                    self.storage.create_new_trial(self._id(self.name), template_trial=trial)
        self._count += len(trials)

    def add_evaluation(self, key: str, value: float, error: str) -> None:
        """Store one answer of a user function (value NaN where it failed) before the search goes on."""
        import optuna

        name = self.name + EVALUATIONS
        with _clear_errors(self.where), self._batch():
            if name not in self._ids and name not in {study.study_name for study in self.storage.get_all_studies()}:
                self.storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], name)
            failed = not math.isfinite(value)
            trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
                value=None if failed else value,
                user_attrs={"call": key, "error": error},
            )
            with_retries(
                lambda: self.storage.create_new_trial(self._id(name), template_trial=trial), self.where, recover=self._recover
            )

    def _evaluations(self, retried: Any = None) -> dict[str, tuple[float, str]]:
        """Answers by call; failures among the first ``retried`` were put back."""
        again = retried if isinstance(retried, int) else 0
        name = self.name + EVALUATIONS
        found: dict[str, tuple[float, str]] = {}
        with _clear_errors(self.where):
            if name not in {study.study_name for study in self.storage.get_all_studies()}:
                return found
            trials = self.storage.get_all_trials(self._id(name), deepcopy=False)
            self.answers = len(trials)
            for number, trial in enumerate(trials):
                value = trial.value if trial.state.name == "COMPLETE" and trial.value is not None else math.nan
                if number < again and math.isnan(value):
                    continue
                found.setdefault(str(trial.user_attrs.get("call")), (value, str(trial.user_attrs.get("error", ""))))
        return found

    def _recover(self) -> None:
        if self.kind in ("sqlite", "postgresql"):
            self.storage.remove_session()

    def study(self) -> optuna.Study:
        """The stored study as Optuna sees it."""
        import optuna

        with _clear_errors(self.where):
            return optuna.load_study(study_name=self.name, storage=self.storage)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self.storage.get_study_id_from_name(name)
        return self._ids[name]

    @contextmanager
    def _batch(self) -> Iterator[None]:
        if self._journal is None:
            yield
        else:
            with self._journal.batch():
                yield

    def forget_empty(self) -> None:
        """Remove a journal that holds nothing (opening made it)."""
        if self._journal is not None:
            self._journal.forget_empty()

    def close(self) -> None:
        """Release files and connections."""
        if self._journal is not None:
            self._journal.close()
        engine = getattr(self.storage, "engine", None)
        if engine is not None:
            self.storage.remove_session()
            engine.dispose()


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two nested tables, one ``key: stored → wanted`` a line."""
    lines: list[str] = []
    for key in sorted({*stored, *wanted}):
        a, b = stored.get(key), wanted.get(key)
        name = f"{prefix}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            lines += difference(a, b, f"{name}.")
        elif a != b:
            show = [("absent" if v is None else json.dumps(v))[:120] for v in (a, b)]
            lines.append(f"{name}: {show[0]} → {show[1]}")
    return lines
