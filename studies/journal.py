"""A journal file that survives kill -9: kernel-released lock, torn tail cut off, one write and one fsync a batch.

The file has the format of Optuna's ``JournalFileBackend`` (one JSON object a line), so Optuna and optuna-dashboard
read it. What differs is how it is written: Optuna's lock is a link in the folder that stays behind when its owner is
killed, and a half-written last line makes the whole file unreadable as soon as something is appended to it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from ..costmodel import InvalidValueError

_BLOCK = 1 << 20


class StorageError(InvalidValueError):
    """A storage cannot be used; the message says which, why and the way out."""


class LockedJournal(BaseJournalBackend):
    """Append-only journal under an ``flock``; see the module's text.

    Args:
        path: the file; created when missing.

    Raises:
        StorageError: the file cannot be opened, is in use, or is not a journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: list[dict[str, Any]] | None = None
        self._logs: list[dict[str, Any]] = []
        try:
            self._file = open(path, "a+b", buffering=0)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be opened for writing ({error.strerror}); choose another --storage or --out"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StorageError(f"{path}: another process is writing this study; wait for it, or choose another --out") from None
        try:
            self.repaired_bytes = self._cut_torn_tail()
            self._load()
        except BaseException:
            self._file.close()
            raise

    def _cut_torn_tail(self) -> int:
        """Remove what follows the last complete line (a write that was cut short); return its size in bytes."""
        size = os.fstat(self._file.fileno()).st_size
        end = size
        while end > 0:
            start = max(0, end - _BLOCK)
            block = os.pread(self._file.fileno(), end - start, start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end == 0 and size > 0 and os.pread(self._file.fileno(), 1, 0) != b"{":
            raise StorageError(f"{self.path}: is not a shapefront journal; give a file of this program, or a new name")
        if end < size:
            os.ftruncate(self._file.fileno(), end)
            os.fsync(self._file.fileno())
        return size - end

    def _load(self) -> None:
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    log = json.loads(line)
                    if not isinstance(log, dict) or not isinstance(log.get("op_code"), int) or isinstance(log["op_code"], bool):
                        raise ValueError
                except (ValueError, RecursionError):
                    raise StorageError(
                        f"{self.path}: line {number} is damaged; restore the file, or delete it and start again without --resume"
                    ) from None
                self._logs.append(log)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yield the logs from ``log_number_from`` on, those held by :meth:`batch` included."""
        yield from self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append; inside :meth:`batch` the write waits for its end."""
        if self._held is not None:
            self._held.extend(logs)
        else:
            self._write(logs)
        self._logs.extend(logs)

    def _write(self, logs: list[dict[str, Any]]) -> None:
        data = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        start = os.fstat(self._file.fileno()).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file.fileno(), view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # A full disk must not leave half a line for the next writer.
            os.ftruncate(self._file.fileno(), start)
            raise StorageError(
                f"{self.path}: cannot be written ({error.strerror}); nothing stored so far is lost: free some space "
                "and use --resume"
            ) from None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold back writes and make them one write and one fsync at the end."""
        self._held = []
        try:
            yield
            held, self._held = self._held, None
            if held:
                self._write(held)
        finally:
            self._held = None

    def close(self) -> None:
        """Release the lock and the file."""
        self._file.close()
