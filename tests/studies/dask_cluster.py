"""A real Dask cluster of the tests' own: a scheduler and workers as processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.studies.postgres import free_port
from tests.studies.small import ROOT, environment


class Cluster:
    """Scheduler and workers as processes.

    Args:
        folder: where logs and the workers' files lie.
        workers: how many are started at once.
        scheduler_file: where the scheduler writes its address, if anywhere.
    """

    def __init__(self, folder: Path, *, workers: int = 0, scheduler_file: Path | None = None) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder = folder
        self._file = scheduler_file
        self.workers: list[subprocess.Popen[bytes]] = []
        self.start_scheduler()
        for _ in range(workers):
            self.add_worker()

    def start_scheduler(self) -> None:
        """Start the scheduler, again on the same port."""
        host, port = "127.0.0.1", self.address.rsplit(":", 1)[1]
        more = ["--scheduler-file", str(self._file)] if self._file else []
        self.scheduler = self._start("scheduler", "--host", host, "--port", port, "--no-dashboard", *more)

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = open(self._folder / f"{kind}-{time.monotonic_ns()}.log", "wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", kind, *arguments], stdout=log, stderr=log, env=environment(), cwd=ROOT
            )

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker (no nanny, so that a kill is final)."""
        options = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--memory-limit", "0"]
        self.workers.append(self._start("worker", self.address, *options, "--local-directory", str(self._folder)))
        return self.workers[-1]

    def close(self) -> None:
        """End every process."""
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()
