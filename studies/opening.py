"""Opening what is stored of a study: a new one, one to be resumed, one to be shown again, or none of ours."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rdb import hide_password
from .record import check_same
from .spec import StudySpec
from .storage import StorageError, Stored, StudyStore, open_store, storage_kind

if TYPE_CHECKING:
    from .study import RunOptions


class RunLog:
    """Lines with clock times, in run.log; kept out of every other file so that those stay byte-equal."""

    def __init__(self, path: Path | None) -> None:
        self._path, self.notes = path, list[str]()

    def __call__(self, text: str) -> None:
        """Append a line; a full disk does not stop a run here."""
        if self._path is not None:
            try:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
            except OSError:
                pass

    def note(self, text: str) -> None:
        """A line that the user is shown as well."""
        self.notes.append(text)
        self(text)


def open_study(
    spec: StudySpec, metadata: dict[str, Any], options: RunOptions, log: RunLog, stack: ExitStack, names: list[str]
) -> tuple[StudyStore, Stored | None]:
    """Open or create the stored study.

    Raises:
        StorageError: it holds another study, or an unfinished one without ``resume``.
    """
    where = options.storage or ("journal" if options.out is not None else "memory")
    if options.overwrite:
        _discard(where, spec.name, options.out)
    store = open_store(where, spec.name, options.out)
    stack.callback(store.close)
    if store.repaired_bytes:
        log(f"removed {store.repaired_bytes} bytes of a write that was cut short")
    stored = store.read()
    if stored is None:
        store.create(metadata, names)
        return store, None
    if stored.metadata.get("mode") == "workers":
        raise StorageError(
            f"{where}: '{spec.name}' is a study of independent workers; collect it with 'shapefront worker --collect'"
        )
    if not options.resume:
        empty = not stored.trials and not stored.evaluations  # a run that ended before its first generation
        if empty or (stored.finished and not stored.evaluations and storage_kind(where) != "postgresql"):
            # A finished study of ours costs nothing to repeat; the same study is simply replayed.
            try:
                check_same(stored.metadata, metadata, where)
            except StorageError:
                pass
            else:
                return store, stored
        state = "finished" if stored.finished else "unfinished"
        raise StorageError(
            f"{options.out or where}: holds a {state} study '{spec.name}' with {len(stored.trials)} trials; continue "
            "with --resume, "
            "discard it with --overwrite, or choose another --out"
        )
    for text in check_same(stored.metadata, metadata, where):
        log.note(text)
    log(f"resuming after {len(stored.trials)} trials and {len(stored.evaluations)} calls of user functions")
    return store, stored


def _discard(where: str, name: str, folder: Path | None) -> None:
    """Remove a stored study: the file of a journal, the study of a database."""
    if storage_kind(where) == "journal":
        path = (folder or Path()) / "study.journal" if where == "journal" else Path(where)
        store = open_store(where, name, folder)  # refuses a file that is in use or not a journal
        store.close()
        path.unlink()
        return
    store = open_store(where, name, folder)
    try:
        for study in (name, f"{name}.evaluations"):
            if study in {s.study_name for s in store.storage.get_all_studies()}:
                store.storage.delete_study(store.storage.get_study_id_from_name(study))
    except Exception as error:
        raise StorageError(f"{hide_password(where)}: the stored study cannot be discarded ({type(error).__name__})") from None
    finally:
        store.close()
