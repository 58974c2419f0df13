"""Milliseconds to store a trial, against the number of trials stored: ``python benchmarks/storage.py [--postgresql URL]``.

Trials are those of a real study (its parameters, figures and constraints), stored a generation of 48 at a time. With
``--plot FILE.png`` the curves are drawn.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from optuna.trial import FrozenTrial

from shapefront.search.evaluate import evaluate
from shapefront.search.record import make_trials
from shapefront.search.space import distributions
from shapefront.studies import Study
from shapefront.studies.output import print_table
from shapefront.studies.storage import open_store

GENERATION = 48
READ_LIMIT = 21_000
MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
HEADER = {"spec": {}, "seed": 0, "versions": {}, "hashes": {}}


def real_trials() -> list[FrozenTrial]:
    """One generation of the default study."""
    problem = Study.load("moe-30b-a3b").problem()
    candidates = problem.table.candidates(np.arange(GENERATION))
    priced = evaluate(problem, candidates)
    return make_trials(problem, candidates, priced, distributions(problem.table), generation=0, sources=["sampler"] * GENERATION)


def measure(where: str, folder: Path, trials: list[FrozenTrial], count: int) -> list[float]:
    """Mean wall milliseconds a trial between the marks; mean CPU milliseconds; (up to 20,000 trials) of reading it all."""
    name = f"benchmark-{time.time_ns()}"
    store = open_store(where, name, folder)
    store.create(HEADER, ["a", "b"])
    found: list[float] = []
    stored, spent, last, cpu = 0, 0.0, 0, time.process_time()
    for mark in [m for m in MARKS if m <= count]:
        while stored < mark:
            started = time.perf_counter()
            store.append(trials)
            spent += time.perf_counter() - started
            stored += len(trials)
        found.append(spent / (stored - last) * 1e3)
        spent, last = 0.0, stored
    found.append((time.process_time() - cpu) / stored * 1e3)
    if stored > READ_LIMIT:
        store.close()
        return [*found, float("nan")]
    if where != "memory":
        store.close()
        started = time.perf_counter()
        store = open_store(where, name, folder)
    else:
        started = time.perf_counter()
    reading = store.read()
    assert reading is not None and len(reading.trials) == stored
    found.append((time.perf_counter() - started) / stored * 1e3)
    store.close()
    return found


def yardstick() -> float:
    """Processor seconds of np.exp of 10**7 doubles, best of five: the first calls wait for memory, not for the processor."""
    values, found = np.linspace(0, 1, 10**7), []
    result = np.empty_like(values)
    for _ in range(5):
        started = time.process_time()
        np.exp(values, out=result)
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--postgresql", help="URL of a database to include")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG")
    options = parser.parse_args()
    trials = real_trials()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{datetime.now(UTC).date()} {machine}; np.exp of 10^7 doubles: {yardstick():.3f} s")
    trial = trials[0]
    print(f"a trial: {len(trial.params)} parameters, {len(trial.user_attrs)} attributes, {len(trial.constraints)} constraints")
    marks = [m for m in MARKS if m <= options.trials]
    storages = ["memory", "journal", "sqlite", *([options.postgresql] if options.postgresql else [])]
    curves: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for where in storages:
            curves[where.split(":")[0]] = measure(where, Path(folder), trials, options.trials)
    rows = [[name, *values, values[-3] / values[0]] for name, values in curves.items()]
    print_table(["ms a trial up to", *(f"{m:,}" for m in marks), "CPU", "read back", "last/first"], rows)
    if options.plot:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.6, 5.4), layout="constrained")
        axis = figure.subplots()
        for name, values in curves.items():
            axis.plot(marks, values[:-2], marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="trials stored", ylabel="ms a trial", title="Cost of storing a trial")
        axis.grid(True, alpha=0.3)
        axis.legend()
        figure.savefig(options.plot, dpi=160)


if __name__ == "__main__":
    main()
