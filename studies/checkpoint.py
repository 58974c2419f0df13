"""What an exhaustive run has priced so far: an append-only file of raw numbers beside the journal.

First line ``shapefront checkpoint 1 IDENTITY``, where the identity is a hash of the stored study's header. Then records, one a
block of designs in table order: a fixed little-endian head, the names of the columns, the numbers (float64), a CRC-32 of all of
it. What follows the last whole record is cut off. Nothing in the file is code: a reader makes arrays of it and checks sizes.

A study that records all its trials keeps every design's prices (:class:`KeepingEngine`), a larger one the designs that entered
a front (:class:`..search.exhaustive.Keeper`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..search.evaluate import Priced
from ..search.exhaustive import FloatArray, Kept
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .evaluators import Done, Engine
from .journal import StorageError
from .output import to_json
from .spec import UserObjectiveSpec
from .user_objective import Call

NAME = "exhaustive.checkpoint"
SYNC_SECONDS = 1.0  # at most this much is lost in a power cut (a killed process loses nothing written)
_MAGIC = b"shapefront checkpoint 1 "
_HEAD = struct.Struct("<4sQIIII")  # mark, first design, designs, rows, columns, bytes of names
_CRC = struct.Struct("<I")
_MARK = b"rec1"
_WHOLE = "every design"  # first of the names of a chunk whose rows are all its designs
_SOFT = ("numpy", "python")  # versions that a resumed run may change, with a note


def identity(metadata: Mapping[str, Any]) -> str:
    """Hash of all that a resumed run must share with the stored one; see :func:`.record.check_same`."""
    hard = {name: version for name, version in metadata["versions"].items() if name not in _SOFT}
    return hashlib.sha256(to_json({**metadata, "versions": hard}, indent=None).encode()).hexdigest()


class Checkpoint:
    """The blocks priced so far, in table order without a gap; the folder's lock keeps other processes away.

    Attributes:
        done: designs priced and kept: the first ``done`` of the table.
        dropped_bytes: of a damaged or cut-short end, removed when the file was opened.

    Raises:
        StorageError: the file is not one of ours, belongs to another study, or cannot be written.
    """

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        self.done = self.dropped_bytes = 0
        self._chunks: dict[int, Kept] = {}
        self._head = _MAGIC + identity(metadata).encode() + b"\n"
        self._file: IO[bytes] | None = None
        self._synced = -SYNC_SECONDS
        if self.path.exists() or self.path.is_symlink():
            self._read()

    def _read(self) -> None:
        check_ours(self.path)
        data = self.path.read_bytes()
        if not data.startswith(self._head):
            if len(data) < len(self._head) and self._head.startswith(data):
                self.dropped_bytes = len(data)  # cut short as it was begun
                self._end = 0
                return
            raise StorageError(
                f"{self.path}: was priced for another study, seed or version of the program; undo the change, choose another "
                "--out, or discard it with --overwrite"
            )
        end = len(self._head)
        while (found := _record(data, end, self.done)) is not None:
            kept, end = found
            self._chunks[kept.start] = kept
            self.done = kept.start + kept.count
        self.dropped_bytes, self._end = len(data) - end, end

    _end = 0  # bytes of the file that are whole

    def forget(self) -> None:
        """Start again: nothing is kept."""
        self.done = self._end = self.dropped_bytes = 0
        self._chunks.clear()

    def chunks(self) -> list[Kept]:
        """What is kept, in table order."""
        return list(self._chunks.values())

    def keep(self, kept: Kept) -> None:
        """Append one block, which begins where the last one ended.

        Raises:
            StorageError: the disk is full or gone; what was kept before is whole.
        """
        if kept.start != self.done:
            return
        names = json.dumps(list(kept.names)).encode()
        rows, columns = kept.rows.shape
        body = _HEAD.pack(_MARK, kept.start, kept.count, rows, columns, len(names)) + names
        body += np.ascontiguousarray(kept.rows, dtype="<f8").tobytes()
        data = body + _CRC.pack(zlib.crc32(body))
        try:
            if self._file is None:
                self._file = open(self.path, "r+b" if self._end else "wb", buffering=0)
                self._file.truncate(self._end)
                self._file.seek(self._end)
            if not self._end:
                data = self._head + data
            self._write(data)
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be written ({error.strerror}); the {self.done} designs priced before are kept: free some "
                "space, then the same command with --resume"
            ) from None
        self.done += kept.count

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
            now = time.monotonic()
            if now - self._synced >= SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = now
        except OSError:
            self._file.truncate(self._end)
            self._file.seek(self._end)
            raise
        self._end += len(data)

    def find(self, candidates: Candidates) -> Priced | None:
        """Prices of a block that is kept whole, else None."""
        kept = self._chunks.get(int(candidates.ids[0])) if len(candidates) else None
        if kept is None or kept.count != len(candidates) or not _whole_run(candidates):
            return None
        return _priced(kept) if kept.names[:1] == (_WHOLE,) else None

    def keep_priced(self, candidates: Candidates, priced: Priced) -> None:
        """Keep a block's prices as the engine gave them (no user function's, whose answers are stored elsewhere)."""
        if len(candidates) and _whole_run(candidates) and not any(priced.errors):
            self.keep(_kept(int(candidates.ids[0]), priced))

    def close(self) -> None:
        """Sync and release the file."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError:
                pass  # a full disk: what was synced before is whole
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The study is finished and its record says so: nothing to resume."""
        self.close()
        self.path.unlink(missing_ok=True)


class KeepingEngine:
    """An engine that keeps the blocks it prices, and prices none that is kept.

    Attributes:
        count: designs priced so far.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: Checkpoint | None = None
        self.count = 0

    @contextmanager
    def into(self, kept: Checkpoint | None) -> Iterator[None]:
        """Keep in ``kept`` meanwhile (an exhaustive search prices the table's blocks in order; nothing else does)."""
        self._kept = kept
        try:
            yield
        finally:
            self._kept = None

    def prepare(self, users: Sequence[UserObjectiveSpec]) -> None:
        """See :meth:`.evaluators.Engine.prepare`."""
        self._engine.prepare(users)

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block that is not kept."""
        results = [self._kept.find(block) if self._kept else None for block in blocks]
        missing = [i for i, found in enumerate(results) if found is None]
        if missing:
            priced = self._engine.price(problem, [blocks[i] for i in missing])
            for i, found in zip(missing, priced, strict=True):
                results[i] = found
                self.count += len(found)
                if self._kept:
                    self._kept.keep_priced(blocks[i], found)
        return [found for found in results if found is not None]

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks in order; the search keeps them."""
        for chunk, priced in self._engine.stream(problem, chunks):
            self.count += len(chunk)
            yield chunk, priced

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """See :meth:`.evaluators.Engine.call`."""
        return self._engine.call(user, calls, done)

    def close(self) -> None:
        """See :meth:`.evaluators.Engine.close`."""
        self._engine.close()


def check_ours(path: Path) -> None:
    """Refuse a file that this program did not write.

    Raises:
        StorageError: it is not a checkpoint, or cannot be read.
    """
    try:
        if path.is_symlink() or not path.is_file():
            raise StorageError(f"{path}: is not a plain file; move it away, or choose another --out")
        with open(path, "rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}); choose another --out") from None
    if not _MAGIC.startswith(begin):
        raise StorageError(f"{path}: is not a checkpoint of this program; move it away, or choose another --out")


def discard(folder: Path) -> None:
    """Remove a folder's checkpoint.

    Raises:
        StorageError: the file of that name is not one.
    """
    path = folder / NAME
    if path.exists() or path.is_symlink():
        check_ours(path)
        path.unlink()


def _record(data: bytes, at: int, start: int) -> tuple[Kept, int] | None:
    """The record at a byte, which begins with design ``start``, and where it ends; None where it is not whole."""
    if at + _HEAD.size > len(data):
        return None
    mark, first, count, rows, columns, length = _HEAD.unpack_from(data, at)
    body = _HEAD.size + length + 8 * rows * columns
    if mark != _MARK or first != start or not count or at + body + _CRC.size > len(data):
        return None
    if _CRC.unpack_from(data, at + body)[0] != zlib.crc32(data[at : at + body]):
        return None
    try:
        names = json.loads(data[at + _HEAD.size : at + _HEAD.size + length])
    except (ValueError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    numbers = np.frombuffer(data, dtype="<f8", count=rows * columns, offset=at + _HEAD.size + length)
    kept = Kept(first, count, tuple(names), numbers.astype(np.float64).reshape(rows, columns))
    return kept, at + body + _CRC.size


def _whole_run(candidates: Candidates) -> bool:
    ids = candidates.ids
    return candidates.layout is None and bool(np.all(np.diff(ids) == 1))


def _kept(start: int, priced: Priced) -> Kept:
    """Columns K objectives, then of R rates throughput, layout and concurrency, then equal quality, then the constraints."""
    count = len(priced)
    columns: list[FloatArray] = [priced.objectives, priced.throughput, priced.layout_index.astype(np.float64), priced.concurrency]
    columns += [priced.equal_quality.astype(np.float64)[:, None]]
    columns += [np.asarray(value, dtype=np.float64)[:, None] for value in priced.violations.values()]
    shape = (str(priced.objectives.shape[1]), str(priced.throughput.shape[1]))
    return Kept(start, count, (_WHOLE, *shape, *priced.violations), np.concatenate(columns, axis=1))


def _priced(kept: Kept) -> Priced:
    k, r = int(kept.names[1]), int(kept.names[2])
    at = np.cumsum([0, k, r, r, r, 1])
    objectives, throughput, layout, concurrency, equal = (kept.rows[:, a:b] for a, b in pairwise(at.tolist()))
    violations = {name: kept.rows[:, int(at[-1]) + i].copy() for i, name in enumerate(kept.names[3:])}
    return Priced(
        objectives.copy(),
        throughput.copy(),
        layout.astype(np.int64),
        concurrency.copy(),
        violations,
        equal[:, 0] == 1.0,
        ("",) * kept.count,
    )
