"""One process per results folder, by a lock that the kernel releases when the process dies."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from .journal import StorageError


class FolderLock:
    """One process per results folder; the kernel releases it when the process dies.

    Raises:
        StorageError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        try:
            self._file = open(self.path, "a+")
        except OSError as error:
            raise StorageError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read(20).strip()
            self._file.close()
            raise StorageError(
                f"{folder}: another run{f' (process {owner})' if owner.isdigit() else ''} is using this folder; wait "
                "for it or choose another --out"
            ) from None
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        except OSError:
            pass  # a full disk: the lock holds without the number

    def release(self) -> None:
        """Give the folder back."""
        self._file.close()

    def withdraw(self) -> None:
        """Remove the lock, and the folder where nothing else lies in it."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.parent.rmdir()
