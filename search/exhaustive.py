"""Every legal design, priced: the truth that searches are measured against, and an engine of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..costmodel.checks import whole
from .evaluate import BLOCK, Evaluator, Priced, evaluate
from .outcome import Callback, Progress, Recorder, Run, SearchOutcome, front_volume
from .parallel import PIECE, PoolEvaluator
from .pareto import Front
from .problem import SearchProblem
from .space import Candidates, distributions

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
CHUNK = 8 * PIECE  # designs of one recorded chunk
RECORD_LIMIT = 20_000  # larger studies record their fronts alone: a trial takes some kB of memory
_SAMPLE = 4 * BLOCK
_ENTERED = ("design", "front", "values")  # columns of a chunk's rows: id, 1 = open + 2 = equal-quality front, K objectives


@dataclass(frozen=True, eq=False)
class Kept:
    """A chunk of designs that need not be priced again.

    Attributes:
        start: its first design.
        count: its designs.
        names: of what the columns hold.
        rows: numbers, shape ``(rows, columns)``; of a large study only the designs that entered a front.
    """

    start: int
    count: int
    names: tuple[str, ...]
    rows: FloatArray


class Keeper(Protocol):
    """Where a large study's chunks are kept as they are priced."""

    def chunks(self) -> list[Kept]:
        """What is kept, in table order from design 0 on, without a gap."""

    def keep(self, kept: Kept) -> None:
        """Keep one more chunk."""


def records_all(problem: SearchProblem) -> bool:
    """Whether a study is small enough to record every design; else its fronts alone."""
    return len(problem.table) <= RECORD_LIMIT


def estimate_seconds(problem: SearchProblem, *, workers: int = 1) -> float:
    """Expected time to price the whole study on this machine, from a timed sample spread over the table, s."""
    ids = np.unique(np.linspace(0, len(problem.table) - 1, _SAMPLE).astype(np.int64))
    evaluate(problem, problem.table.candidates(ids[:BLOCK]))  # warm the caches
    start = time.perf_counter()
    evaluate(problem, problem.table.candidates(ids))
    return (time.perf_counter() - start) / len(ids) * len(problem.table) / max(workers, 1)


def exhaust(
    problem: SearchProblem,
    *,
    workers: int = 1,
    evaluator: Evaluator | None = None,
    recorder: Recorder | None = None,
    callback: Callback | None = None,
    record: bool = True,
    keeper: Keeper | None = None,
    study_name: str = "shapefront",
) -> SearchOutcome:
    """Price every legal design in table order, in chunks of bounded size.

    Args:
        problem: must have ``layout_mode="sweep"`` (every layout and concurrency is priced anyway).
        workers: processes; the outcome does not depend on it.
        evaluator: prices a chunk; default in process, or on ``workers`` processes.
        recorder: called with each chunk's trials.
        callback: told of the progress after each chunk.
        record: put every design into the Optuna study; off (always above 20 000 designs): the fronts alone.
        keeper: where a study too large to be recorded keeps its chunks; those it holds are not priced again.
        study_name: name of the Optuna study.

    Returns:
        As :func:`.optimize.optimize`; where not every design is recorded, ``evaluated`` holds the fronts alone.

    Raises:
        NothingLegalError: the constraints leave no design.
    """
    whole("workers", workers, 1, 4096)
    table = problem.table
    everything = record and records_all(problem)
    with ExitStack() as stack:
        if evaluator is None and workers > 1:
            evaluator = stack.enter_context(PoolEvaluator(problem, workers))
        run = Run(problem, distributions(table), evaluator or evaluate, recorder, callback, name=study_name)
        try:
            if everything:
                for start in range(0, len(table), CHUNK):
                    block = table.candidates(np.arange(start, min(start + CHUNK, len(table))))
                    run.price(block, ["enumerated"] * len(block))
                    run.report("enumerate", len(table))
            else:
                ids = _stream(run, problem, workers, keeper)
                for start in range(0, len(ids), CHUNK):
                    block = table.candidates(ids[start : start + CHUNK])
                    run.price(block, ["enumerated"] * len(block))
            run.exhausted = run.polished = True
        except KeyboardInterrupt:
            run.interrupted = True
            if not run.parts:
                raise
    return run.outcome()


def _stream(run: Run, problem: SearchProblem, workers: int, keeper: Keeper | None) -> IntArray:
    """Ids of both fronts of the whole table, front kept incrementally.

    A chunk's designs that enter no front cannot change a later one, so those that enter are all that is kept of it.
    """
    table = problem.table
    fronts = Front(len(problem.objectives)), Front(len(problem.objectives))
    done = _restore(fronts, problem, keeper) if keeper is not None else 0
    for block, priced in priced_blocks(problem, np.arange(done, len(table)), run.evaluator, workers):
        merge(fronts, block, priced)
        if keeper is not None:
            keeper.keep(_entered(fronts, block, priced))
        done += len(block)
        if run.callback is not None and done % (64 * PIECE) < PIECE:
            volume = front_volume(problem, fronts[0].values)
            run.callback(Progress("enumerate", 0, done, len(table), len(fronts[0]), volume))
    return np.unique(np.concatenate([f.ids for f in fronts]))


def _entered(fronts: tuple[Front, Front], block: Candidates, priced: Priced) -> Kept:
    """The designs of a chunk, just merged, that are on a front."""
    flags = np.isin(block.ids, fronts[0].ids) + 2 * np.isin(block.ids, fronts[1].ids)
    rows = flags > 0
    columns = [block.ids[rows].astype(np.float64), flags[rows].astype(np.float64), *priced.objectives[rows].T]
    return Kept(int(block.ids[0]), len(block), _ENTERED, np.stack(columns, axis=1))


def _restore(fronts: tuple[Front, Front], problem: SearchProblem, keeper: Keeper) -> int:
    """Merge what is kept into the fronts; returns the number of designs it stands for."""
    done = 0
    for kept in keeper.chunks():
        ids, flags, values = kept.rows[:, 0].astype(np.int64), kept.rows[:, 1], kept.rows[:, 2:]
        for front, wanted in zip(fronts, ((1, 3), (2, 3)), strict=True):
            rows = np.isin(flags, wanted)
            front.add(ids[rows], values[rows])
        done = kept.start + kept.count
    return done


def merge(fronts: tuple[Front, Front], block: Candidates, priced: Priced) -> None:
    """Merge priced designs into the open and the equal-quality front, by table id."""
    legal = priced.legal
    fronts[0].add(block.ids[legal], priced.objectives[legal])
    equal = legal & priced.equal_quality
    fronts[1].add(block.ids[equal], priced.objectives[equal])


def priced_blocks(
    problem: SearchProblem, ids: IntArray, evaluator: Evaluator, workers: int = 1
) -> Iterator[tuple[Candidates, Priced]]:
    """Price ids in order; on a pool, enough blocks are under way to keep every worker busy."""
    table = problem.table
    if isinstance(evaluator, PoolEvaluator):
        blocks = (table.candidates(ids[i : i + PIECE]) for i in range(0, len(ids), PIECE))
        yield from evaluator.stream(blocks, 4 * max(workers, 1))
        return
    chunks = (table.candidates(ids[start : start + CHUNK]) for start in range(0, len(ids), CHUNK))
    stream = getattr(evaluator, "stream_chunks", None)  # of an evaluator that keeps many workers busy
    if stream is not None:
        yield from stream(problem, chunks)
        return
    for block in chunks:
        yield block, evaluator(problem, block)
