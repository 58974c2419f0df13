"""How a study prices designs: in process, over local processes, over Dask, with user functions on top.

Every evaluator prices the same fixed blocks, so that no bit of a result depends on who priced it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..search.evaluate import BLOCK, Priced, evaluate
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .failures import FirstCalls
from .interrupts import Interrupts
from .spec import StudySpec, UserObjectiveSpec
from .user_objective import Call, ExternalObjective, UserFunction, call_key
from .user_output import Output

if TYPE_CHECKING:
    from .storage import StudyStore

Done = Callable[[Call, float, str], None]


class Engine(Protocol):
    """Something that runs blocks of pricing and calls of user functions, results in the order given."""

    def prepare(self, users: Sequence[UserObjectiveSpec]) -> None:
        """Import the user functions, or say why one does not; before anything is written."""

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block."""

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks in order, with enough blocks under way to keep every worker busy."""

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """Run a user function on each call."""

    def close(self) -> None:
        """Release workers."""


class LocalEngine:
    """Everything in this process; user functions in processes beside it."""

    def __init__(
        self, folders: Sequence[str] = (), *, workers: int = 1, interrupts: Interrupts | None = None, output: Output | None = None
    ) -> None:
        self._folders, self._workers, self._interrupts = tuple(folders), workers, interrupts or Interrupts()
        self._functions: dict[str, UserFunction] = {}
        self._output = output

    def price(self, problem: SearchProblem, blocks: Sequence[Candidates]) -> list[Priced]:
        """Price each block."""
        priced = []
        for block in blocks:
            self._interrupts.check()
            priced.append(evaluate(problem, block))
        return priced

    def stream(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price chunks one after the other."""
        for chunk in chunks:
            yield chunk, in_order(split_blocks(problem, chunk), self.price(problem, blocks_of(problem, chunk)))

    def prepare(self, users: Sequence[UserObjectiveSpec]) -> None:
        """Start one process of each user function.

        Raises:
            UserCodeError: a module does not import, or lacks the function.
        """
        for user in users:
            self._function(user).prepare()

    def call(self, user: UserObjectiveSpec, calls: Sequence[Call], done: Done) -> list[tuple[float, str]]:
        """Run a user function on each call, over this many processes."""
        return self._function(user).run(calls, done, self._interrupts.check)

    def _function(self, user: UserObjectiveSpec) -> UserFunction:
        if user.name not in self._functions:
            self._functions[user.name] = UserFunction(
                user.entry,
                user.name,
                timeout_seconds=user.timeout_seconds,
                folders=self._folders,
                workers=self._workers,
                output=self._output,
            )
        return self._functions[user.name]

    def close(self) -> None:
        """End the user functions' processes."""
        for function in self._functions.values():
            function.close()
        self._functions.clear()


def split_blocks(problem: SearchProblem, candidates: Candidates) -> list[NDArray[np.int64]]:
    """Positions of each block that :func:`shapefront.search.evaluate.evaluate` prices in one array call."""
    blocks: list[NDArray[np.int64]] = []
    for space in np.unique(candidates.space).tolist():
        where = np.flatnonzero(candidates.space == space)
        blocks += [where[start : start + BLOCK] for start in range(0, len(where), BLOCK)]
    return blocks


def blocks_of(problem: SearchProblem, candidates: Candidates) -> list[Candidates]:
    """The blocks themselves."""
    return [candidates.take(where) for where in split_blocks(problem, candidates)]


def in_order(positions: Sequence[NDArray[np.int64]], parts: Sequence[Priced]) -> Priced:
    """Prices of blocks → prices in the order of the candidates."""
    return Priced.concatenate(parts).take(np.argsort(np.concatenate(positions), kind="stable"))


@dataclass(eq=False)
class StudyEvaluator:
    """The search's evaluator: prices blocks on an engine, then asks the user functions.

    Attributes:
        spec: the study.
        engine: who does the work.
        store: where answers of user functions are kept as they come; None keeps none.
        known: answers taken from the storage.
        first: watches the first calls of each function; None watches none.
        stops: raise as soon as ``first`` has seen enough; otherwise whoever made it asks.
    """

    spec: StudySpec
    engine: Engine
    store: StudyStore | None
    known: dict[str, tuple[float, str]]
    first: FirstCalls | None = None
    stops: bool = True

    def __call__(self, problem: SearchProblem, candidates: Candidates) -> Priced:
        """Price candidates, in order."""
        positions = split_blocks(problem, candidates)
        if not positions:
            return evaluate(problem, candidates)
        priced = in_order(positions, self.engine.price(problem, [candidates.take(where) for where in positions]))
        return self._with_user(problem, candidates, priced) if self.spec.user else priced

    def stream_chunks(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price many chunks in order; see :meth:`Engine.stream`."""
        if not self.spec.user:
            yield from self.engine.stream(problem, chunks)
            return
        for chunk in chunks:
            yield chunk, self(problem, chunk)

    def _with_user(self, problem: SearchProblem, candidates: Candidates, priced: Priced) -> Priced:
        feasible = np.ones(len(priced), dtype=bool)
        for value in priced.violations.values():
            feasible &= value <= 0
        objectives = priced.objectives.copy()
        violations, errors = dict(priced.violations), list(priced.errors)
        designs = {}
        for where, _, batch in candidates.batches(problem.spaces):
            designs.update({int(at): batch.architecture(i) for i, at in enumerate(where)})
        external = [i for i, objective in enumerate(problem.objectives) if isinstance(objective, ExternalObjective)]
        for user in self.spec.user:
            rows = np.flatnonzero(feasible).tolist()
            calls = []
            for row in rows:
                design = designs[row].to_dict()
                calls.append(
                    Call(design, operating_points(problem, priced, row, designs[row]), call_key(user.name, user.entry, design))
                )
            answers = self._answers(user, calls)
            column = np.full(len(priced), math.nan)
            column[rows] = [value for value, _ in answers]
            for row, (_, error) in zip(rows, answers, strict=True):
                errors[row] = errors[row] or error
            if user.role == "constraint":
                violations[f"user.{user.name}"] = np.where(feasible, np.nan_to_num(column, nan=1.0), 1.0)
            else:
                index = next(i for i in external if problem.objectives[i].name == user.name)
                objectives[:, index] = column
        return replace(priced, objectives=objectives, violations=violations, errors=tuple(errors))

    def _answers(self, user: UserObjectiveSpec, calls: Sequence[Call]) -> list[tuple[float, str]]:
        new = list({call.key: call for call in calls if call.key not in self.known}.values())
        if self.first is not None:
            self.first.expect(user.name, [call.key for call in calls])
            for call in calls:
                if call.key in self.known:
                    self.first.answered(user.name, call.key, *self.known[call.key])
            if self.stops:
                self.first.check()
        self.engine.call(user, new, partial(self._keep, user.name))
        return [self.known[call.key] for call in calls]

    def _keep(self, name: str, call: Call, value: float, error: str) -> None:
        self.known[call.key] = (value, error)
        if self.store is not None:
            self.store.add_evaluation(call.key, value, error)
        if self.first is not None:
            self.first.answered(name, call.key, value, error)
            if self.stops:
                self.first.check()


def operating_points(problem: SearchProblem, priced: Priced, row: int, design: Any) -> dict[str, Any]:
    """What a user function is told besides the design: plain JSON values."""
    points = []
    for at, rate in enumerate(problem.rates):
        layout = int(priced.layout_index[row, at])
        points.append(
            {
                "tokens_per_second_per_user": float(rate),
                "tokens_per_second_per_gpu": float(priced.throughput[row, at]),
                "concurrency": float(priced.concurrency[row, at]),
                "layout": problem.setup.layouts.layout(layout).to_dict() if layout >= 0 else None,
            }
        )
    point = {
        "total_params": design.total_params,
        "active_params": design.active_params,
        "active_params_with_embedding": design.active_params_with_embedding,
        "operating_points": points,
    }
    return point
