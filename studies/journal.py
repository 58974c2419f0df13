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
_MAX_LINE_BYTES = 1 << 26  # a line holds one trial, some kB
_FIRST = b'{"op_code":'  # how every line begins


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
            if path.exists() and not path.is_file():
                raise StorageError(f"{path}: is not a plain file; choose another --storage or --out")
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
            end = self._whole_lines_end()
            self._load(end)
            self.repaired_bytes = self._cut(end)  # last: a file that is not ours stays as it is
        except BaseException:
            self._file.close()
            raise

    def _whole_lines_end(self) -> int:
        """Where the last complete line ends; what follows is a write that was cut short.

        Raises:
            StorageError: no line is complete and the file does not begin like ours, or a line is longer than any of ours.
        """
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
            if size - end > _MAX_LINE_BYTES:
                break
        head = os.pread(self._file.fileno(), len(_FIRST), 0) if end == 0 else _FIRST
        if size - end > _MAX_LINE_BYTES or not _FIRST.startswith(head):
            raise StorageError(f"{self.path}: is not a shapefront journal; give a file of this program, or a new name")
        return end

    def _cut(self, end: int) -> int:
        """Remove what follows ``end``; return its size in bytes."""
        size = os.fstat(self._file.fileno()).st_size
        if end < size:
            os.ftruncate(self._file.fileno(), end)
            os.fsync(self._file.fileno())
        return size - end

    def _load(self, end: int) -> None:
        self._file.seek(0)
        number = 0
        with open(self._file.fileno(), "rb", closefd=False) as stream:
            while stream.tell() < end:
                line, number = stream.readline(_MAX_LINE_BYTES), number + 1
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

    def forget_empty(self) -> None:
        """Remove the file if nothing is in it."""
        if os.fstat(self._file.fileno()).st_size == 0:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock and the file."""
        self._file.close()
