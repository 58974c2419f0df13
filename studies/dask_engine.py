"""Pricing on a Dask cluster: tasks are blocks of designs or calls of user functions, one coordinator writes to Optuna.

Every task is a pure function of its arguments and results are gathered in the order given, so a lost worker only costs
the time to run its tasks again.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..costmodel import InvalidValueError
from ..search.evaluate import Priced, evaluate
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .evaluators import Done, blocks_of, in_order, split_blocks
from .interrupts import Interrupts
from .spec import UserObjectiveSpec
from .user_objective import Call, UserFunction
from .workers import FEW, price_block, study_payload

if TYPE_CHECKING:
    from .study import Study

CONNECT_SECONDS = 10
RETRIES = 3  # of a task that raised; a task whose worker was lost is always run again
LOST_WORKERS = 20  # workers a task may lose before the scheduler gives it up
WAIT_SECONDS = 60  # how long a cluster may be without any worker
POLL_SECONDS = 0.5
AHEAD = 4  # blocks under way for each thread of the cluster


class DaskError(InvalidValueError):
    """The cluster cannot be used; the message says why and the way out."""


def _call(entry: str, name: str, timeout: float | None, folders: Sequence[str], call: Call) -> tuple[float, str]:
    """One call of a user function in a process of its own on the worker."""
    function = UserFunction(entry, name, timeout_seconds=timeout, folders=folders)
    try:
        return function.run([call], lambda *_: None)[0]
    finally:
        function.close()


class DaskEngine:
    """Runs blocks and calls on the workers of a Dask scheduler.

    Args:
        address: ``tcp://host:port`` of the scheduler.
        study: the study; its spec travels with every task (some kB) and each worker builds the problem once.
        folders: put first on the import path for user functions (must exist on the workers).
        interrupts: looked at while waiting.

    Raises:
        DaskError: distributed is not installed, or the scheduler does not answer.
    """

    def __init__(self, address: str, study: Study, folders: Sequence[str], interrupts: Interrupts) -> None:
        try:
            import distributed
        except ImportError:
            raise DaskError("--dask needs the 'dask' extra: pip install 'shapefront[dask]'") from None
        try:
            self._client: Any = _untyped(distributed).Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise DaskError(
                f"no Dask scheduler answers at {address[:80]} within {CONNECT_SECONDS} s ({type(error).__name__}); "
                "start one with 'dask scheduler' "
                "and workers with 'dask worker'"
            ) from None
        self._payload, self._folders, self._interrupts = study_payload(study), tuple(folders), interrupts
        self._check_versions()

    def _check_versions(self) -> None:
        from shapefront import __version__

        self._wait_for_workers()
        found = self._client.run(_version)
        other = {address: version for address, version in found.items() if version != __version__}
        if other:
            address, version = next(iter(other.items()))
            raise DaskError(
                f"worker {address} has shapefront {version}, this is {__version__}; install the same version on every worker"
            )

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=WAIT_SECONDS)
        except TimeoutError:
            raise DaskError(
                f"the Dask cluster has no worker after {WAIT_SECONDS} s; start one with 'dask worker ADDRESS'"
            ) from None

    def _gather(self, futures: Sequence[Any], done: Any = None) -> list[Any]:
        """Results in order; ``done(index, result)`` as they come."""
        ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index, future in enumerate(futures):
            future.add_done_callback(partial(_put, ready, index))
        results: list[Any] = [None] * len(futures)
        left = len(futures)
        while left:
            self._interrupts.check()
            try:
                index = ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            left -= 1
            try:
                results[index] = futures[index].result()
            except InvalidValueError:
                raise
            except Exception as error:
                raise DaskError(f"a task failed on the cluster: {type(error).__name__}: {error}"[:500]) from None
            if done is not None:
                done(index, results[index])
        return results

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block, in order."""
        if len(blocks) < FEW:
            return [evaluate(problem, block) for block in blocks]
        futures: list[Any] = [
            self._client.submit(price_block, *self._payload, block, pure=False, retries=RETRIES) for block in blocks
        ]
        try:
            return self._gather(futures)
        finally:
            for future in futures:
                future.release()

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks in order, with some blocks under way for every thread of the cluster."""
        waiting: deque[tuple[Candidates, list[Any]]] = deque()
        under_way = 0
        for chunk in chunks:
            blocks = blocks_of(problem, chunk)
            waiting.append(
                (chunk, [self._client.submit(price_block, *self._payload, b, pure=False, retries=RETRIES) for b in blocks])
            )
            under_way += len(blocks)
            while under_way > AHEAD * max(1, sum(self._client.nthreads().values())) + len(blocks):
                under_way -= len(waiting[0][1])
                yield self._finish(problem, *waiting.popleft())
        while waiting:
            yield self._finish(problem, *waiting.popleft())

    def _finish(self, problem: SearchProblem, chunk: Candidates, futures: Sequence[Any]) -> tuple[Candidates, Priced]:
        try:
            return chunk, in_order(split_blocks(problem, chunk), self._gather(futures))
        finally:
            for future in futures:
                future.release()

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """Run a user function on each call."""
        arguments = (user.entry, user.name, user.timeout_seconds, self._folders)
        futures: list[Any] = [self._client.submit(_call, *arguments, call, pure=False, retries=RETRIES) for call in calls]
        try:
            return self._gather(futures, lambda index, result: done(calls[index], *result))
        finally:
            for future in futures:
                future.release()

    def close(self) -> None:
        """Leave the cluster; its workers go on."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)


def _untyped(module: Any) -> Any:
    """A module whose functions carry no types."""
    return module


def _put(ready: queue.SimpleQueue[int], index: int, future: Any) -> None:
    ready.put(index)


def _version() -> str:
    from shapefront import __version__

    return __version__
