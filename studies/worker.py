"""An independent Optuna worker on a shared PostgreSQL: for user functions that take minutes or hours a trial.

Each worker asks for a trial, prices the design, runs the user functions and tells the values. A heartbeat marks its
trial as alive; a worker that finds a trial without one fails it and puts its parameters back into the queue, so that
no trial is lost with its worker. There is no common order, so the result depends on timing; what is promised is that
every trial is accounted for.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..costmodel import Architecture
from ..search.evaluate import Priced
from ..search.sampler import make_sampler
from ..search.space import Candidates, distributions, suggestions
from .code_state import CODE, changes, code_of, refuse
from .evaluators import LocalEngine, StudyEvaluator
from .failures import MOST_COMMON, FirstCalls, causes, errors_of
from .interrupts import Interrupts
from .problem import build_problem
from .rdb import with_retries
from .spec import StudySpec
from .spec_file import parse_spec
from .storage import StorageError, StudyStore
from .user_objective import UserCodeError
from .user_output import Output
from .worker_storage import CALLS, HEARTBEAT_SECONDS, IDLE_SECONDS, Heart, close_storage, join_study, open_shared

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

    from .study import Study

T = TypeVar("T")
Told = Callable[["FrozenTrial"], None] | None


@dataclass
class WorkerReport:
    """What one worker did."""

    done: int = 0
    failed: int = 0
    lost: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    causes: list[tuple[str, int]] = field(default_factory=list)


class Worker:
    """One worker on one study.

    Args:
        url: PostgreSQL URL.
        name: the study.
        study: creates the study where it does not exist yet; must be the same study where it does.
        allow_code: let the study's user functions run.
        heartbeat: seconds between heartbeats.
        interrupts: looked at between trials and while a user function runs.
        accept_changed_code: work on although the file of a user function is another than the study was begun with.
        output: takes what user functions print; None leaves it on standard error.

    Raises:
        ShapefrontError: the study cannot be joined.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        study: Study | None = None,
        allow_code: bool = False,
        heartbeat: int = HEARTBEAT_SECONDS,
        interrupts: Interrupts | None = None,
        accept_changed_code: bool = False,
        output: Output | None = None,
    ) -> None:
        self.url, self.name, self.heartbeat = url, name, heartbeat
        self.interrupts = interrupts or Interrupts()
        folders = [str(study.folder)] if study is not None and study.folder else []
        self.folders = [*folders, str(Path.cwd())]
        self.engine = LocalEngine(self.folders, interrupts=self.interrupts, output=output)
        self.storage = open_shared(url, heartbeat=heartbeat)
        try:
            if study is not None:  # before the study is made in the database
                self._prepare(study.spec, allow_code)
            self._join(study, allow_code, accept_changed_code)
        except BaseException:
            self.close()
            raise

    def _prepare(self, spec: StudySpec, allow_code: bool) -> None:
        """Import the study's functions, if they may run.

        Raises:
            UserCodeError: they may not, or one does not import.
        """
        if spec.user and not allow_code:
            entries = ", ".join(user.entry for user in spec.user)
            raise UserCodeError(f"study '{spec.name}' runs Python code of its own ({entries}); if you trust it, say --allow-code")
        self.engine.prepare(spec.user)

    def _join(self, study: Study | None, allow_code: bool, accept: bool) -> None:
        import optuna

        url, name = self.url, self.name
        header = self._retry(lambda: join_study(url, name, study, self.storage))
        self.spec = parse_spec(header["spec"], name)
        self._prepare(self.spec, allow_code)  # before a trial is asked for
        folder = study.folder if study else None
        self.problem = build_problem(self.spec, folder=folder, reference=Architecture.from_dict(header["reference"]))
        seed = int.from_bytes(os.urandom(4), "big")
        sampler = make_sampler(self.spec.search.sampler, seed=seed, population=self.spec.search.population)
        code = code_of(self.spec.user, self.folders)
        if (lines := changes(header, code)) and not accept:
            raise refuse(url, lines)
        if lines or (code and CODE not in header):  # the first worker, or one that takes other code for the study's
            store = StudyStore(name, url, "postgresql", self.storage, None)
            store.write_header(header | {CODE: code})
        self.study = self._retry(lambda: optuna.load_study(study_name=name, storage=self.storage, sampler=sampler))
        self.first = FirstCalls(f"mend it, then start again with another --study than '{name}': failed trials count")
        self.evaluator = StudyEvaluator(self.spec, self.engine, None, {}, self.first, stops=False)
        self.distributions = distributions(self.problem.table)

    def _retry(self, action: Callable[[], T]) -> T:
        """Run an action on the database, again while it is away."""
        return with_retries(action, self.url, recover=self.storage.remove_session)

    def run(self, trials: int | None = None, told: Told = None) -> WorkerReport:
        """Work until the study has its trials (or this worker did ``trials`` of them).

        A worker that finds enough trials under way waits for them, so that it can take over those of one that died.

        Raises:
            UserCodeError: the first calls of a user function all failed.
        """
        report = WorkerReport()
        try:
            while trials is None or report.done + report.failed < trials:
                self.interrupts.check()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Optuna calls heartbeats experimental and expects them in optimize only
                    trial = self._retry(self._next)
                if trial is None:
                    break
                if isinstance(trial, bool):
                    time.sleep(IDLE_SECONDS)
                    continue
                with Heart(self.storage, trial._trial_id, self.heartbeat):
                    try:
                        found = self._evaluate(trial)
                        self._tell(trial, found, report, told)
                    except (KeyboardInterrupt, UserCodeError):
                        self._hand_back(trial)
                        raise
                self.first.check()
        except KeyboardInterrupt:
            pass
        finally:
            self.engine.close()
        report.totals = self._retry(self.totals)
        report.causes = causes(errors_of(self.study.get_trials(deepcopy=False)))[:MOST_COMMON]
        return report

    def close(self) -> None:
        """Leave the database."""
        self.engine.close()
        close_storage(self.storage)

    def totals(self) -> dict[str, int]:
        """Trials of the study by state."""
        found: dict[str, int] = {}
        for trial in self.study.get_trials(deepcopy=False):
            found[trial.state.name.lower()] = found.get(trial.state.name.lower(), 0) + 1
        return found

    def _next(self) -> Trial | bool | None:
        """A trial to work on, False where others work on the last ones, None when the study has its trials."""
        self._requeue_orphans()
        totals = self.totals()
        failed = sum(1 for t in self.study.get_trials(deepcopy=False) if t.state.name == "FAIL" and "error" in t.user_attrs)
        finished = totals.get("complete", 0) + failed
        if finished >= self.spec.search.trials:
            return None
        if not totals.get("waiting") and finished + totals.get("running", 0) >= self.spec.search.trials:
            return False
        taken = self._taken()
        if not totals.get("waiting") and taken.all():
            return None
        return self.study.ask()

    def _hand_back(self, trial: Trial) -> None:
        """Fail a trial that this worker leaves, and put its parameters back into the queue."""
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = optuna.storages.RetryHeartbeatStaleTrialCallback()

        def fail() -> None:
            with suppress(optuna.exceptions.UpdateFinishedTrialError):
                if self.storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL):
                    again(self.study, copy.deepcopy(self.storage.get_trial(trial._trial_id)))

        self._retry(fail)

    def _requeue_orphans(self) -> None:
        """Put trials without a heartbeat back into the queue.

        A worker killed between asking and its first beat leaves a trial that never had one, which Optuna would
        consider running for ever: such a trial is given its first beat here and goes stale like any other.
        """
        import optuna
        import sqlalchemy as sql
        from optuna.storages._rdb import models

        trial, beat = models.TrialModel.__table__, models.TrialHeartbeatModel.__table__
        silent = sql.select(trial.c.trial_id).outerjoin(beat, beat.c.trial_id == trial.c.trial_id)
        silent = silent.where(trial.c.study_id == self.study._study_id, trial.c.state == "RUNNING", beat.c.trial_id.is_(None))
        with self.storage.engine.connect() as connection:
            found = [row[0] for row in connection.execute(silent)]
        for trial_id in found:
            self.storage.record_heartbeat(trial_id)
        optuna.storages.fail_stale_trials(self.study)

    def _taken(self, own: int = -1) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Designs that are done or under way in other trials than ``own``."""
        taken = np.zeros(len(self.problem.table), dtype=np.bool_)
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number != own and (trial.state.name in ("COMPLETE", "RUNNING") or "error" in trial.user_attrs):
                design = trial.user_attrs.get("design_id")
                if isinstance(design, int) and 0 <= design < len(taken):
                    taken[design] = True
        return taken

    def _evaluate(self, trial: Trial) -> tuple[list[float] | None, str, dict[str, Any]]:
        """Values (None where the trial failed), the failure's message, and the attributes to store with the trial."""
        candidates = self._retry(lambda: self._place(trial))
        if candidates is None:
            return None, "every legal design is done or under way", {}
        self.evaluator.known.clear()
        priced: Priced = self.evaluator(self.problem, candidates)
        attributes: dict[str, Any] = {"equal_quality": bool(priced.equal_quality[0])}
        attributes[CALLS] = {
            key: [value if value == value else None, error] for key, (value, error) in self.evaluator.known.items()
        }
        attributes["constraints"] = {name: float(column[0]) for name, column in priced.violations.items()}
        values = priced.objectives[0]
        if np.isnan(values).any():
            return None, priced.errors[0] or "a user function gave no value", attributes
        return values.tolist(), "", attributes

    def _place(self, trial: Trial) -> Candidates | None:
        """The nearest design to the trial's parameters that nobody has, written to the trial."""
        params = {name: suggest(trial, name, distribution) for name, distribution in self.distributions.items()}
        ids = self.problem.projector.nearest(*suggestions(self.problem.table, [params]), taken=self._taken(trial.number))
        if ids[0] < 0:
            return None
        candidates = self.problem.table.candidates(ids)
        trial.set_user_attr("design_id", int(ids[0]))
        for name, value in zip(candidates.names, candidates.columns[0].tolist(), strict=True):
            trial.set_user_attr(name, int(value))
        return candidates

    def _tell(
        self, trial: Trial, found: tuple[list[float] | None, str, dict[str, Any]], report: WorkerReport, told: Told
    ) -> None:
        from optuna.trial import TrialState

        values, error, attributes = found

        def tell() -> FrozenTrial:
            for name, value in attributes.items():
                if name == "constraints":
                    for constraint, violation in value.items():
                        trial.set_constraint(constraint, violation)
                else:
                    trial.set_user_attr(name, value)
            if values is None:
                trial.set_user_attr("error", error)
                return self.study.tell(trial.number, state=TrialState.FAIL)
            return self.study.tell(trial.number, values)

        try:
            frozen = self._retry(tell)
        except (RuntimeError, ValueError) as problem:
            if isinstance(problem, StorageError):
                raise
            frozen = self._retry(lambda: self.storage.get_trial(trial._trial_id))
            if frozen.values != values or not frozen.state.is_finished():
                report.lost += 1  # another worker took it for orphaned and put it back into the queue
                return
        report.done += values is not None
        report.failed += values is None
        if told is not None:
            told(frozen)


def suggest(trial: Trial, name: str, distribution: Any) -> Any:
    """Ask a trial for one named dimension."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    assert isinstance(distribution, IntDistribution)
    if distribution.log:
        return trial.suggest_int(name, distribution.low, distribution.high, log=True)
    return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step)


def summary(report: WorkerReport) -> Mapping[str, Any]:
    """Plain values for ``--json``."""
    found = {"done": report.done, "failed": report.failed, "requeued_by_others": report.lost, "study_trials": report.totals}
    return found | {"failures": [{"cause": text, "trials": number} for text, number in report.causes]}
