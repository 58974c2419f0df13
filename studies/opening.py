"""Opening what is stored of a study: a new one, one to be resumed, one to be shown again, or none of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import NAME, Checkpoint, discard
from .rdb import hide_password
from .record import check_same
from .result_file import ResultError, read_result
from .spec import StudySpec
from .storage import EVALUATIONS, StorageError, Stored, StudyStore, difference, open_store, storage_kind

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
                with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
            except OSError:
                pass

    def note(self, text: str) -> None:
        """A line that the user is shown as well."""
        self.notes.append(text)
        self(text)


def open_study(
    spec: StudySpec, metadata: dict[str, Any], options: RunOptions, log: RunLog, stack: ExitStack, names: list[str]
) -> tuple[StudyStore, Stored | None, Checkpoint | None]:
    """Open or create the stored study, and the checkpoint of an exhaustive one.

    Raises:
        StorageError: it holds another study, or an unfinished one without ``resume``.
    """
    where = options.storage or ("journal" if options.out is not None else "memory")
    if options.overwrite:
        _discard(where, spec.name, options.out)
        if options.out is not None:
            discard(options.out)
    store = open_store(where, spec.name, options.out)
    stack.callback(store.close)
    if store.repaired_bytes:
        log(f"removed {store.repaired_bytes} bytes of a write that was cut short")
    stored = store.read()
    if stored is None:
        if not options.overwrite:
            _check_results(options.out, metadata, store)
        kept = _open_checkpoint(spec, metadata, stored, options, store, log, stack)
        store.create(metadata, names)
        return store, None, kept
    here = str(options.out or hide_password(where))
    if stored.metadata.get("mode") == "workers":
        raise StorageError(
            f"{here}: '{spec.name}' is a study of independent workers; collect it with 'shapefront worker --collect'"
        )
    if not options.resume:
        empty = not stored.trials and not stored.evaluations  # a run that ended before its first generation
        if empty or (stored.finished and not stored.evaluations and storage_kind(where) != "postgresql"):
            # A finished study of ours costs nothing to repeat; the same study is simply replayed.
            try:
                check_same(stored.metadata, metadata, here)
            except StorageError:
                pass
            else:
                return store, stored, _open_checkpoint(spec, metadata, stored, options, store, log, stack)
        state = "a finished" if stored.finished else "an unfinished"
        raise StorageError(
            f"{here}: holds {state} study '{spec.name}' with {len(stored.trials)} trials; continue with --resume, discard it "
            "with --overwrite, or choose another --out"
        )
    for text in check_same(stored.metadata, metadata, here):
        log.note(text)
    log(f"resuming after {len(stored.trials)} trials and {len(stored.evaluations)} calls of user functions")
    return store, stored, _open_checkpoint(spec, metadata, stored, options, store, log, stack)


def _open_checkpoint(
    spec: StudySpec,
    metadata: dict[str, Any],
    stored: Stored | None,
    options: RunOptions,
    store: StudyStore,
    log: RunLog,
    stack: ExitStack,
) -> Checkpoint | None:
    """What an exhaustive run of this study has priced in its folder; None where nothing is kept.

    Raises:
        StorageError: it is another study's, or an unfinished one's without ``resume``.
    """
    if options.out is None or spec.search.engine != "exhaustive" or store.kind == "memory":
        return None
    try:
        kept = Checkpoint(options.out, metadata)
        stack.callback(kept.close)
        if not options.resume and kept.done and (stored is None or not stored.finished):
            raise StorageError(
                f"{options.out}: holds {kept.done} designs that an unfinished run of this study priced; continue with --resume, "
                "discard them with --overwrite, or choose another --out"
            )
    except StorageError:
        if stored is None:
            store.forget_empty()
        raise
    if not options.resume:
        kept.forget()
    if kept.dropped_bytes:
        log.note(f"{NAME}: its last {kept.dropped_bytes} bytes are not whole; what they held is priced again")
    failed = stored is not None and any(math.isnan(value) for value, _ in stored.evaluations.values())
    if kept.done and options.retry_failed and failed:
        kept.forget()  # a large study's is what came of the answers
        log.note(f"{NAME}: priced again, since failed calls are made again")
    if kept.done:
        log(f"{kept.done} designs are in {NAME}; they are not priced again")
    return kept


def _check_results(folder: Path | None, metadata: Mapping[str, Any], store: StudyStore) -> None:
    """Refuse to replace the results of another run, which lie in the folder without what was stored of it.

    Raises:
        StorageError: what differs.
    """
    if folder is None or not (folder / "result.json").is_file():
        return
    try:
        found = read_result(folder / "result.json")["spec"]
    except ResultError:
        return  # nothing anybody can read
    changes = difference(found, metadata["spec"])
    if changes:
        store.forget_empty()
        listed = "\n  ".join(changes[:10])
        raise StorageError(
            f"{folder}: holds the results of another run, which would be replaced:\n  {listed}\n"
            "choose another --out, or discard them with --overwrite"
        )


def _discard(where: str, name: str, folder: Path | None) -> None:
    """Remove a stored study; a journal that holds nothing else (the folder's own: whatever it holds) goes with it."""
    store = open_store(where, name, folder)  # refuses a file that is in use or not a storage
    ours = {name, name + EVALUATIONS}
    try:
        found = {s.study_name for s in store.storage.get_all_studies()}
        if store.kind == "journal" and (where == "journal" or found <= ours):
            ((folder or Path()) / "study.journal" if where == "journal" else Path(where)).unlink()
            return
        for study in sorted(ours & found):
            store.storage.delete_study(store.storage.get_study_id_from_name(study))
    except Exception as error:
        raise StorageError(f"{hide_password(where)}: the stored study cannot be discarded ({type(error).__name__})") from None
    finally:
        store.close()
