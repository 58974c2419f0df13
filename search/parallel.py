"""Pricing over processes: the same figures as in one process, whoever prices what."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

import numpy as np

from ..costmodel import InvalidValueError
from .evaluate import BLOCK, Priced, evaluate
from .problem import SearchProblem
from .space import Candidates

PIECE = 2 * BLOCK  # designs a worker takes at a time
MAX_WORKERS = 1024
_problem: dict[bytes, SearchProblem] = {}  # of a worker process: the one problem it prices


def pieces(candidates: Candidates, size: int = PIECE) -> Iterator[Candidates]:
    """Cut candidates into blocks of at most ``size``, in order."""
    for start in range(0, len(candidates), size):
        yield candidates.take(np.arange(start, min(start + size, len(candidates))))


def _start(data: bytes) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # a worker is one core
    _problem[b""] = pickle.loads(data)


def _work(block: Candidates) -> Priced:
    return evaluate(_problem[b""], block)


class PoolEvaluator:
    """An evaluator that prices on ``workers`` processes; use as a context manager.

    Args:
        problem: the problem to price; it travels to each worker once.
        workers: processes.

    Raises:
        InvalidValueError: fewer than 1 worker or more than 1024.
    """

    def __init__(self, problem: SearchProblem, workers: int) -> None:
        if isinstance(workers, bool) or not 1 <= workers <= MAX_WORKERS:
            raise InvalidValueError(f"workers must be between 1 and {MAX_WORKERS}, got {workers}")
        self.problem = problem
        self.pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(pickle.dumps(problem),)
        )

    def __call__(self, problem: SearchProblem, candidates: Candidates) -> Priced:
        """Price candidates; see :func:`.evaluate.evaluate`.

        Raises:
            InvalidValueError: another problem than the one the workers hold.
        """
        if problem is not self.problem:
            raise InvalidValueError("these workers hold another problem; make a PoolEvaluator for this one")
        if len(candidates) <= BLOCK // 4:
            return evaluate(problem, candidates)
        return Priced.concatenate(list(self.pool.map(_work, pieces(candidates))))

    def stream(self, blocks: Iterator[Candidates], ahead: int) -> Iterator[tuple[Candidates, Priced]]:
        """Price blocks in order, with at most ``ahead`` blocks under way."""
        waiting = []
        for block in blocks:
            waiting.append((block, self.pool.submit(_work, block)))
            if len(waiting) >= ahead:
                first, future = waiting.pop(0)
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

    def __enter__(self) -> PoolEvaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
