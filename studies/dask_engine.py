"""Pricing on a Dask cluster: tasks are blocks of designs or calls of user functions, one coordinator writes to Optuna.

Every task is a pure function of its arguments and results are gathered in the order given, so a lost worker only costs
the time to run its tasks again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..costmodel import InvalidValueError
from ..search.evaluate import Priced, evaluate
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .evaluators import Done, blocks_of, in_order, split_blocks
from .interrupts import Interrupts
from .spec import UserObjectiveSpec
from .user_objective import Call, UserFunction
from .workers import FEW, price_block, price_blocks, study_payload

if TYPE_CHECKING:
    from .study import Study

CONNECT_SECONDS = 10
RETRIES = 3  # of a task that raised; a task whose worker was lost is always run again
WAIT_SECONDS = 60  # how long a cluster may be without any worker
POLL_SECONDS = 0.5
ASK_SECONDS = 5.0  # how often a cluster that gives no result is asked whether it has a worker
LOGGERS = ("distributed", "distributed.client", "distributed.core", "distributed.utils", "distributed.batched")
_LOOK_SECONDS = 0.2  # how often a scheduler file is looked for
_MAX_FILE_BYTES = 1 << 24
_open: dict[str, list[UserFunction]] = {}  # on a worker: functions by run
_open_lock = threading.Lock()
AHEAD = 2  # tasks under way for each thread of the cluster, beside those of the chunk that is waited for
BUNDLE = 16  # blocks of one task of a large study: sending a task costs the coordinator as much as 5 ms


class DaskError(InvalidValueError):
    """The cluster cannot be used; the message says why and the way out."""


_functions = threading.local()  # of each thread of a worker: the run it works for, and that run's functions


def _call(run: str, entry: str, name: str, timeout: float | None, folders: Sequence[str], call: Call) -> tuple[float, str]:
    """One call of a user function, in a process beside the worker's thread that serves all its calls of this run."""
    if getattr(_functions, "run", None) != run:  # another run may have other code
        for function in getattr(_functions, "of", {}).values():
            function.close()
        _functions.run, _functions.of = run, {}
    if name not in _functions.of:
        _functions.of[name] = UserFunction(entry, name, timeout_seconds=timeout, folders=folders)
        with _open_lock:
            _open.setdefault(run, []).append(_functions.of[name])
    found: tuple[float, str] = _functions.of[name].run([call], lambda *_: None)[0]
    return found


def _finish(run: str) -> None:
    """End the processes of a run's user functions on this worker."""
    with _open_lock:
        functions = _open.pop(run, [])
    for function in functions:
        function.end()


def _import(entry: str, name: str, folders: Sequence[str]) -> None:
    """Import a user function on a worker."""
    function = UserFunction(entry, name, timeout_seconds=None, folders=folders)
    try:
        function.prepare()
    finally:
        function.close()


def scheduler_address(where: str, interrupts: Interrupts, *, seconds: float = WAIT_SECONDS) -> str:
    """``tcp://host:port`` as it is; of a scheduler file (``….json``) the address in it, waited for until it is there.

    Raises:
        DaskError: no scheduler wrote the file in time.
    """
    if "://" in where:
        return where
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            path = Path(where)
            if path.is_file() and path.stat().st_size < _MAX_FILE_BYTES:  # a pipe would block
                return str(json.loads(path.read_bytes())["address"])
        if time.monotonic() > deadline:
            raise DaskError(
                f"{where[:200]}: no Dask scheduler wrote its address into this file within {seconds:g} s; start one with "
                f"'dask scheduler --scheduler-file {where[:200]}'"
            )
        interrupts.check()
        time.sleep(_LOOK_SECONDS)


class DaskEngine:
    """Runs blocks and calls on the workers of a Dask scheduler.

    Args:
        address: ``tcp://host:port`` of the scheduler, or its scheduler file (``….json``).
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
        self._address = address = scheduler_address(address, interrupts)
        self._levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict if name in LOGGERS}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said once, by us
        try:
            self._client: Any = _untyped(distributed).Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise DaskError(
                f"no Dask scheduler answers at {address[:80]} within {CONNECT_SECONDS} s ({type(error).__name__}); "
                "start one with 'dask scheduler' "
                "and workers with 'dask worker'"
            ) from None
        self._run = uuid.uuid4().hex
        self._called = False
        self._payload, self._folders, self._interrupts = study_payload(study), tuple(folders), interrupts
        try:
            self._check_versions()
        except BaseException:
            self.close()
            raise

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
            raise self._no_worker("") from None

    def _no_worker(self, more: str) -> DaskError:
        return DaskError(
            f"the Dask cluster at {self._address[:80]} has no worker after {WAIT_SECONDS} s{more}; start one with "
            "'dask worker ADDRESS'"
        )

    def _submit(self, function: Any, *arguments: Any) -> Any:
        """A task's future."""
        try:
            return self._client.submit(function, *arguments, pure=False, retries=RETRIES)
        except Exception as error:
            raise self._lost(error) from None

    def _lost(self, error: BaseException) -> DaskError:
        self._levels.clear()  # its threads go on complaining until the program ends
        return DaskError(
            f"the Dask scheduler at {self._address[:80]} went away ({type(error).__name__}); what is stored so far is kept: "
            "start the scheduler and its workers, then the same command with --resume"
        )

    def _gather(self, futures: Sequence[Any], done: Any = None) -> list[Any]:
        """Results in order; ``done(index, result)`` as they come."""
        ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index, future in enumerate(futures):
            future.add_done_callback(partial(_put, ready, index))
        results: list[Any] = [None] * len(futures)
        left = len(futures)
        seen = looked = time.monotonic()  # when the cluster last had a worker, when that was last asked
        try:
            while left:
                self._interrupts.check()
                try:
                    index = ready.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    now = time.monotonic()
                    if now - looked >= ASK_SECONDS:
                        looked = now
                        seen = now if self._threads() else seen
                        if now - seen > WAIT_SECONDS:
                            raise self._no_worker(" any more; what is stored so far is kept: continue with --resume") from None
                    continue
                left -= 1
                results[index] = self._result(futures[index])
                seen = time.monotonic()
                if done is not None:
                    done(index, results[index])
        finally:
            for future in futures:
                future.release()
        return results

    def _result(self, future: Any) -> Any:
        from concurrent.futures import CancelledError

        try:
            return future.result()
        except InvalidValueError:
            raise
        except CancelledError as error:
            raise self._lost(error) from None
        except Exception as error:
            raise DaskError(f"a task failed on the cluster: {type(error).__name__}: {error}"[:500]) from None

    def _threads(self) -> int:
        """Threads of the cluster's workers now."""
        try:
            return sum(self._client.nthreads().values())
        except Exception as error:
            raise self._lost(error) from None

    def prepare(self, users: Sequence[UserObjectiveSpec]) -> None:
        """Import each user function on a worker.

        Raises:
            UserCodeError: a module does not import there, or lacks the function.
        """
        self._gather([self._submit(_import, user.entry, user.name, self._folders) for user in users])

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block, in order."""
        if len(blocks) < FEW:
            return [evaluate(problem, block) for block in blocks]
        return self._gather([self._submit(price_block, *self._payload, block) for block in blocks])

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks in order, with some bundles of blocks under way for every thread of the cluster."""
        waiting: deque[tuple[Candidates, list[Any]]] = deque()
        under_way = 0
        for chunk in chunks:
            blocks = blocks_of(problem, chunk)
            bundles = [blocks[start : start + BUNDLE] for start in range(0, len(blocks), BUNDLE)]
            waiting.append((chunk, [self._submit(price_blocks, *self._payload, bundle) for bundle in bundles]))
            under_way += len(bundles)
            while under_way > AHEAD * max(1, self._threads()) + len(bundles):
                under_way -= len(waiting[0][1])
                yield self._finish(problem, *waiting.popleft())
        while waiting:
            yield self._finish(problem, *waiting.popleft())

    def _finish(self, problem: SearchProblem, chunk: Candidates, futures: Sequence[Any]) -> tuple[Candidates, Priced]:
        parts = [priced for bundle in self._gather(futures) for priced in bundle]
        return chunk, in_order(split_blocks(problem, chunk), parts)

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """Run a user function on each call."""
        self._called = True
        arguments = (self._run, user.entry, user.name, user.timeout_seconds, self._folders)
        futures = [self._submit(_call, *arguments, call) for call in calls]
        return self._gather(futures, lambda index, result: done(calls[index], *result))

    def close(self) -> None:
        """Leave the cluster; its workers go on."""
        with contextlib.suppress(Exception):
            if self._called:
                self._client.run(_finish, self._run, on_error="ignore")
        with contextlib.suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


def _untyped(module: Any) -> Any:
    """A module whose functions carry no types."""
    return module


def _put(ready: queue.SimpleQueue[int], index: int, future: Any) -> None:
    ready.put(index)


def _version() -> str:
    from shapefront import __version__

    return __version__
