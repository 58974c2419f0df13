"""Pricing over local processes: each worker builds the problem from the spec once and prices whole blocks."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..costmodel import Architecture, InvalidValueError
from ..search.evaluate import Priced, evaluate
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .evaluators import Done, LocalEngine, blocks_of, in_order, split_blocks
from .interrupts import Interrupts
from .problem import build_problem
from .spec import UserObjectiveSpec
from .spec_file import parse_spec, spec_to_dict
from .user_objective import Call
from .user_output import Output

if TYPE_CHECKING:
    from .study import Study

FEW = 2  # blocks that are priced here rather than sent
AHEAD = 1  # chunks (of many blocks) under way beside the one that is waited for
RESTARTS = 5  # times a pool whose worker died is started again


class WorkerError(InvalidValueError):
    """Workers keep dying; the message says what to try."""


@lru_cache(maxsize=8)
def problem_of(spec_json: str, folder: str) -> SearchProblem:
    """The problem of a spec, built once a process."""
    payload = json.loads(spec_json)
    spec, reference = parse_spec(payload["spec"], "study"), Architecture.from_dict(payload["reference"])
    return build_problem(spec, folder=Path(folder) if folder else None, reference=reference)


def price_block(spec_json: str, folder: str, block: Candidates) -> Priced:
    """Price one block in a worker."""
    return evaluate(problem_of(spec_json, folder), block)


def price_blocks(spec_json: str, folder: str, blocks: Sequence[Candidates]) -> list[Priced]:
    """Price several blocks in a worker, each by itself as :func:`price_block` does: cheap blocks cost less to hand over."""
    return [price_block(spec_json, folder, block) for block in blocks]


def study_payload(study: Study) -> tuple[str, str]:
    """What a worker needs to build the problem: spec and reference model as JSON, and the study's folder."""
    payload = {"spec": spec_to_dict(study.spec), "reference": study.reference.to_dict()}
    return json.dumps(payload), str(study.folder or "")


def _start() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides when to stop
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # a worker is one core
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the coordinator was killed: its pipes stay open in the other workers, so nothing else tells."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class ProcessEngine:
    """``workers`` local processes; a worker that dies is replaced and its blocks are priced again."""

    def __init__(
        self, study: Study, folders: Sequence[str], workers: int, interrupts: Interrupts, output: Output | None = None
    ) -> None:
        self._payload, self._workers, self._interrupts = study_payload(study), workers, interrupts
        self._local = LocalEngine(folders, workers=workers, interrupts=interrupts, output=output)
        self._pool: ProcessPoolExecutor | None = None

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block, in order.

        Raises:
            WorkerError: workers died again and again.
        """
        if len(blocks) < FEW:
            return self._local.price(problem, blocks)
        results: list[Priced | None] = [None] * len(blocks)
        for _ in range(RESTARTS):
            missing = [i for i, result in enumerate(results) if result is None]
            try:
                pool = self._open()
                futures: dict[int, Future[Priced]] = {i: pool.submit(price_block, *self._payload, blocks[i]) for i in missing}
                for i, future in futures.items():
                    results[i] = future.result()
                    self._interrupts.check()
                return [result for result in results if result is not None]
            except BrokenProcessPool:
                self._shut()
        raise WorkerError(
            f"worker processes died {RESTARTS} times over the same designs (out of memory?); run with fewer --workers"
        )

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks in order; the next ones are under way while one is waited for."""
        waiting: deque[tuple[Candidates, list[Future[Priced]]]] = deque()
        for chunk in chunks:
            try:
                pool = self._open()
                waiting.append((chunk, [pool.submit(price_block, *self._payload, block) for block in blocks_of(problem, chunk)]))
            except BrokenProcessPool:
                waiting.append((chunk, []))
            if len(waiting) > AHEAD:
                yield self._finish(problem, *waiting.popleft())
        while waiting:
            yield self._finish(problem, *waiting.popleft())

    def _finish(self, problem: SearchProblem, chunk: Candidates, futures: Sequence[Future[Priced]]) -> tuple[Candidates, Priced]:
        try:
            parts = [future.result() for future in futures]
        except (BrokenProcessPool, CancelledError):
            parts = []
            self._shut()
        self._interrupts.check()
        parts = parts or self.price(problem, blocks_of(problem, chunk))
        return chunk, in_order(split_blocks(problem, chunk), parts)

    def prepare(self, users: Sequence[UserObjectiveSpec]) -> None:
        """Import the user functions in a process beside this one; see :meth:`.evaluators.LocalEngine.prepare`."""
        self._local.prepare(users)

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """Run a user function, over this many processes of its own."""
        return self._local.call(user, calls, done)

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, context, initializer=_start)
        return self._pool

    def _shut(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def close(self) -> None:
        """End the workers."""
        self._local.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
