"""User objectives and constraints: ``module:function`` called with a design and its operating points.

``function(architecture, point) -> float``: larger is better for an objective, at most 0 is feasible for a constraint.
``point`` holds ``total_params``, ``active_params``, ``active_params_with_embedding`` and ``operating_points``, a list of
``{tokens_per_second_per_user, tokens_per_second_per_gpu, concurrency, layout}`` at the study's rates. Each call runs in a
process of its own pool: an exception, a crash, a value that is not finite or a time-out fails that design alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costmodel import InvalidValueError
from ..search.objectives import Context, Objective
from .user_output import Lines, Output

_LOOK_SECONDS = 0.2  # how often a waiting run looks whether it should stop
START_SECONDS = 60.0  # time a function's module may take to import
TIMED_OUT = " s and was stopped"  # how the message of a time-out ends


@dataclass(frozen=True)
class ExternalObjective(Objective):
    """Place of a user objective in the search problem; its values are filled in by the study's evaluator.

    Attributes:
        at: user rates at which the function is told the operating points, tokens/s/user.
    """

    at: tuple[float, ...] = ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates the problem prices for the function."""
        return self.at

    def values(self, context: Context) -> tuple[NDArray[np.float64], list[str]]:
        """NaN for every design."""
        return np.full(len(context.batch), np.nan), []


class UserCodeError(InvalidValueError):
    """A user function cannot be used at all (its module does not import, or code was not allowed)."""


@dataclass(frozen=True)
class Call:
    """One call of a user function; ``key`` names it in the storage."""

    design: dict[str, Any]
    point: dict[str, Any]
    key: str


def call_key(name: str, entry: str, design: dict[str, Any], extra: Sequence[Any] = ()) -> str:
    """Stable name of a call: the function and every dimension of the design."""
    text = json.dumps([name, entry, {k: v for k, v in design.items() if k != "name"}, list(extra)], sort_keys=True)
    return f"{name}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@dataclass(eq=False)
class _Process:
    entry: str
    folders: Sequence[str]
    popen: subprocess.Popen[bytes] | None = None
    buffer: bytes = b""
    call: int | None = None  # index of the call it works on
    deadline: float = field(default=math.inf)
    name: str = ""
    output: Output | None = None  # takes what it prints; None leaves it on standard error
    lines: Lines | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "shapefront.studies.user_process", self.entry, *self.folders]
        aside = None if self.output is None else subprocess.PIPE
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=aside)
        if self.output is not None and self.popen.stderr is not None:
            self.lines = Lines(self.popen.stderr, self.name, self.output)
        self.buffer = b""
        answer = self.read_line(time.monotonic() + START_SECONDS)
        if answer is None or "ready" not in answer:
            reason = (
                answer.get("error", "")
                if answer
                else f"its module did not import within {START_SECONDS:g} s or ended the process"
            )
            self.kill()
            raise UserCodeError(f"user function {self.entry}: {reason}")

    def read_line(self, deadline: float) -> dict[str, Any] | None:
        """The next answer, or None when the process ended or the deadline passed."""
        assert self.popen is not None and self.popen.stdout is not None
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.popen.stdout], [], [], min(left, 3600.0))[0]:
                if left <= 0:
                    return None
                continue
            data = self.popen.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not data:
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, call: Call) -> None:
        assert self.popen is not None and self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"design": call.design, "point": call.point}).encode() + b"\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            if self.lines is not None:
                self.lines.finish()
                self.lines = None
            for stream in (self.popen.stdin, self.popen.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:
                        pass
            self.popen = None


class UserFunction:
    """A pool of processes that run one user function.

    Args:
        entry: ``module:function``.
        name: its name in messages.
        timeout_seconds: time allowed per call; None = no limit. A call that overruns is killed.
        folders: put first on the import path (the study's folder and the working folder).
        workers: processes.
        output: takes what the function prints; None leaves it on standard error.
    """

    def __init__(
        self,
        entry: str,
        name: str,
        *,
        timeout_seconds: float | None,
        folders: Sequence[str],
        workers: int = 1,
        output: Output | None = None,
    ) -> None:
        self.name, self.timeout = name, timeout_seconds
        self._pool = [_Process(entry, folders, name=name, output=output) for _ in range(workers)]

    def prepare(self) -> None:
        """Start one process, which imports the function.

        Raises:
            UserCodeError: its module does not import, or lacks the function.
        """
        if self._pool[0].popen is None:
            self._pool[0].start()

    def run(
        self, calls: Sequence[Call], done: Callable[[Call, float, str], None], check: Callable[[], None] = lambda: None
    ) -> list[tuple[float, str]]:
        """Run every call; ``done(call, value, error)`` is told of each as soon as it returns, ``check`` may raise to stop.

        Returns:
            ``(value, error)`` per call in the order given; the value is NaN where there is an error.

        Raises:
            UserCodeError: the function's module does not import.
        """
        results: list[tuple[float, str]] = [(math.nan, "")] * len(calls)
        waiting = deque(range(len(calls)))
        while waiting or any(p.call is not None for p in self._pool):
            check()
            for process in self._pool:
                if process.call is None and waiting:
                    if process.popen is None or process.popen.poll() is not None:
                        process.kill()
                        process.start()
                    process.call = waiting.popleft()
                    process.deadline = time.monotonic() + self.timeout if self.timeout else math.inf
                    try:
                        process.send(calls[process.call])
                    except OSError:
                        pass  # it died; the read below says so
            for process, result in self._collect():
                assert process.call is not None
                call = calls[process.call]
                results[process.call] = result
                process.call = None
                done(call, *result)
        return results

    def _collect(self) -> Iterable[tuple[_Process, tuple[float, str]]]:
        busy = [p for p in self._pool if p.call is not None and p.popen is not None]
        deadline = min(p.deadline for p in busy)
        wait = min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
        streams = {p.popen.stdout: p for p in busy if p.popen is not None and p.popen.stdout is not None}
        ready = select.select(list(streams), [], [], wait)[0]
        for stream in ready:
            process = streams[stream]
            answer = process.read_line(max(process.deadline, time.monotonic() + 5.0))
            if answer is None:
                code = process.popen.wait() if process.popen else None
                process.kill()
                yield process, (math.nan, f"user function '{self.name}' ended its process (exit code {code})")
            else:
                yield process, self._read(answer)
        for process in busy:
            if (
                process.call is not None
                and process.popen is not None
                and process.popen.stdout not in ready
                and time.monotonic() >= process.deadline
            ):
                process.kill()
                yield process, (math.nan, f"user function '{self.name}' took more than {self.timeout:g}{TIMED_OUT}")

    def _read(self, answer: dict[str, Any]) -> tuple[float, str]:
        if "error" in answer:
            return math.nan, f"user function '{self.name}' failed: {answer['error']}"
        value = float(answer["value"])
        if not math.isfinite(value):
            return math.nan, f"user function '{self.name}' returned {value}; it must return a finite number"
        return value, ""

    def end(self) -> None:
        """End the processes from another thread; the next call would start them again."""
        for process in self._pool:
            if (popen := process.popen) is not None:
                popen.kill()

    def close(self) -> None:
        """End the processes."""
        for process in self._pool:
            process.kill()
            process.call = None
