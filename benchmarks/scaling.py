"""Designs a second of the exhaustive engine: one process, local processes, Dask; ``python benchmarks/scaling.py --dask``.

The time counts from the first chunk, with workers started and warm. Beside it what the coordinator spends a block
(sending, receiving, merging fronts, Python), from which follows where one coordinator saturates: the number of workers
that keep it busy all the time.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from shapefront.search.evaluate import BLOCK, evaluate  # noqa: E402
from shapefront.search.exhaustive import exhaust  # noqa: E402
from shapefront.studies import Study  # noqa: E402
from shapefront.studies.dask_engine import DaskEngine  # noqa: E402
from shapefront.studies.evaluators import Engine, LocalEngine, StudyEvaluator  # noqa: E402
from shapefront.studies.interrupts import Interrupts  # noqa: E402
from shapefront.studies.output import print_table  # noqa: E402
from shapefront.studies.workers import ProcessEngine, study_payload  # noqa: E402


def cluster(stack: ExitStack, workers: int) -> str:
    """Start a scheduler and workers on this machine; returns the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address, folder = f"tcp://127.0.0.1:{port}", stack.enter_context(tempfile.TemporaryDirectory())
    commands = [["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]]
    options = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--memory-limit", "0", "--local-directory", folder]
    commands += [["worker", address, *options]] * workers
    quiet = {**os.environ, "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}  # Dask's own profiler costs a worker time
    for command in commands:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
    return address


def measure(study: Study, engine: Engine, repeats: int) -> tuple[float, float]:
    """Best designs a second (wall), and coordinator CPU seconds a block."""
    problem = study.problem()
    evaluator = StudyEvaluator(study.spec, engine, None, {})
    exhaust(problem, evaluator=evaluator, record=False)  # start and warm the workers
    rate, spent = 0.0, 0.0
    for _ in range(repeats):
        started, cpu = time.perf_counter(), time.process_time()
        exhaust(problem, evaluator=evaluator, record=False)
        rate = max(rate, len(problem.table) / (time.perf_counter() - started))
        spent = (time.process_time() - cpu) / (len(problem.table) / BLOCK)
    return rate, spent


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="moe-120b")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dask", action="store_true", help="with a Dask cluster on this machine")
    options = parser.parse_args()
    study, interrupts = Study.load(options.study), Interrupts()
    problem = study.problem()
    block = problem.table.candidates(np.arange(min(BLOCK, len(problem.table))))
    evaluate(problem, block)
    started = time.process_time()
    priced = evaluate(problem, block)
    block_seconds = time.process_time() - started
    sent, received = len(pickle.dumps((study_payload(study), block))), len(pickle.dumps(priced))
    rows = []
    with ExitStack() as stack:
        engines: list[tuple[str, Engine]] = [("one process", LocalEngine())]
        engines.append((f"{options.workers} processes", ProcessEngine(study, (), options.workers, interrupts)))
        if options.dask:
            engines.append(
                (f"Dask, {options.workers} workers", DaskEngine(cluster(stack, options.workers), study, (), interrupts))
            )
        for name, engine in engines:
            stack.callback(engine.close)
            rate, spent = measure(study, engine, options.repeats)
            rows.append([name, rate, rate / rows[0][1] if rows else 1.0, spent * 1e3, block_seconds / spent if rows else None])
    print(f"{datetime.now(UTC).date()} {platform.machine()}, {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    print(
        f"{options.study}: {len(problem.table)} designs x {len(problem.setup.layouts)} layouts; a block of {BLOCK} designs takes "
        f"{block_seconds * 1e3:.1f} ms of CPU; {sent / 1e3:.1f} kB out, {received / 1e3:.1f} kB back"
    )
    print_table(["engine", "designs/s", "speed-up", "coordinator ms a block", "saturates at workers"], rows)


if __name__ == "__main__":
    main()
