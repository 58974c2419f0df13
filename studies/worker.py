"""An independent Optuna worker on a shared PostgreSQL: for user functions that take minutes or hours a trial.

Each worker asks for a trial, prices the design, runs the user functions and tells the values. A heartbeat marks its
trial as alive; a worker that finds a trial without one fails it and puts its parameters back into the queue, so that
no trial is lost with its worker. There is no common order, so the result depends on timing; what is promised is that
every trial is accounted for.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..costmodel import Architecture, InvalidValueError
from ..search.evaluate import Priced
from ..search.outcome import Run
from ..search.problem import SearchProblem
from ..search.record import create_study
from ..search.sampler import make_sampler
from ..search.space import Candidates, distributions, suggestions
from .evaluators import LocalEngine, StudyEvaluator
from .interrupts import Interrupts
from .problem import build_problem, study_profile
from .rdb import hide_password, with_retries
from .record import check_same, make_metadata
from .result import Result
from .spec import StudySpec
from .spec_file import parse_spec
from .storage import FORMAT_VERSION, METADATA, StorageError, StudyStore, open_postgresql, storage_kind
from .user_objective import UserCodeError

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

    from .study import Study

Told = Callable[["FrozenTrial"], None] | None
HEARTBEAT_SECONDS = 15
GRACE_FACTOR = 3  # heartbeats that may be missed before a trial counts as orphaned
MAX_RETRY = 5  # times one trial is put back into the queue
IDLE_SECONDS = 0.5
CALLS = "calls"  # trial attribute with the answers of user functions


@dataclass
class WorkerReport:
    """What one worker did."""

    done: int = 0
    failed: int = 0
    lost: int = 0
    totals: dict[str, int] = field(default_factory=dict)


def open_shared(url: str, *, heartbeat: int = HEARTBEAT_SECONDS) -> optuna.storages.RDBStorage:
    """A PostgreSQL storage with heartbeats on and orphaned trials put back into the queue.

    Raises:
        StorageError: not PostgreSQL, or it cannot be reached.
    """
    if storage_kind(url) != "postgresql":
        raise StorageError(f"{hide_password(url)}: independent workers share a PostgreSQL database; give postgresql://USER@HOST/DATABASE")
    if not 1 <= heartbeat <= 3600:
        raise InvalidValueError(f"heartbeat must be between 1 and 3600 s, got {heartbeat}")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRY)
    options = {"heartbeat_interval": heartbeat, "grace_period": GRACE_FACTOR * heartbeat, "heartbeat_stale_trial_callback": retry}
    return open_postgresql(url, heartbeat=options)


def close_storage(storage: optuna.storages.RDBStorage) -> None:
    """Give a storage's connections back."""
    storage.remove_session()
    storage.engine.dispose()


def join_study(url: str, name: str, study: Study | None, storage: optuna.storages.RDBStorage) -> dict[str, Any]:
    """Header of the stored study; created from ``study`` where there is none.

    Raises:
        StorageError: no such study and none given, another kind of study, or another spec.
    """
    for _ in range(2):
        stored = StudyStore(name, url, "postgresql", storage, None).read()
        if stored is not None:
            header = dict(stored.metadata)
            if header.get("mode") != "workers":
                raise StorageError(f"{hide_password(url)}: '{name}' belongs to a coordinator; continue it with 'shapefront run --resume --storage …'")
            if study is not None:
                check_same(header, make_metadata(study.spec, study.problem(), study_profile(study.spec, study.folder)), hide_password(url))
            return header
        if study is None:
            names = sorted(s.study_name for s in storage.get_all_studies() if not s.study_name.endswith(".evaluations"))
            known = ", ".join(names[:10]) or "none"
            raise StorageError(f"{hide_password(url)}: no study '{name[:60]}' (studies there: {known}); create it with --spec STUDY.toml")
        _create(name, study, storage)
    raise StorageError(f"{hide_password(url)}: the study '{name}' was created and removed at the same time; try again")


def _create(name: str, study: Study, storage: optuna.storages.RDBStorage) -> None:
    import optuna

    problem = study.problem()
    header = make_metadata(study.spec, problem, study_profile(study.spec, study.folder))
    header |= {"format": FORMAT_VERSION, "mode": "workers"}
    try:
        created = create_study(problem, name, storage)
    except optuna.exceptions.DuplicatedStudyError:
        # another worker was first; give it the moment it needs to write the header
        for _ in range(20):
            if METADATA in storage.get_study_user_attrs(storage.get_study_id_from_name(name)):
                return
            time.sleep(IDLE_SECONDS)
        created = optuna.load_study(study_name=name, storage=storage)
    created.set_user_attr(METADATA, header)


class _Heart:
    """Beats for one trial until it is told; a database that is away for a while does not stop it."""

    def __init__(self, storage: optuna.storages.RDBStorage, trial_id: int, seconds: float) -> None:
        self._storage, self._trial_id, self._seconds = storage, trial_id, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            try:
                self._storage.record_heartbeat(self._trial_id)
            except Exception:
                pass  # the next beat tries again
            if self._stop.wait(self._seconds):
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Worker:
    """One worker on one study.

    Args:
        url: PostgreSQL URL.
        name: the study.
        study: creates the study where it does not exist yet; must be the same study where it does.
        allow_code: let the study's user functions run.
        heartbeat: seconds between heartbeats.
        interrupts: looked at between trials and while a user function runs.

    Raises:
        ShapefrontError: the study cannot be joined.
    """

    def __init__(
        self, url: str, name: str, *, study: Study | None = None, allow_code: bool = False, heartbeat: int = HEARTBEAT_SECONDS, interrupts: Interrupts | None = None
    ) -> None:
        self.url, self.name, self.heartbeat = url, name, heartbeat
        self.interrupts = interrupts or Interrupts()
        self.storage = open_shared(url, heartbeat=heartbeat)
        try:
            self._join(study, allow_code)
        except BaseException:
            close_storage(self.storage)
            raise

    def _join(self, study: Study | None, allow_code: bool) -> None:
        import optuna

        url, name = self.url, self.name
        header = with_retries(lambda: join_study(url, name, study, self.storage), url)
        self.spec = parse_spec(header["spec"], name)
        if self.spec.user and not allow_code:
            entries = ", ".join(user.entry for user in self.spec.user)
            raise UserCodeError(f"study '{name}' runs Python code of its own ({entries}); if you trust it, say --allow-code")
        folder = study.folder if study else None
        self.problem = build_problem(self.spec, folder=folder, reference=Architecture.from_dict(header["reference"]))
        seed = int.from_bytes(os.urandom(4), "big")
        sampler = make_sampler(self.spec.search.sampler, seed=seed, population=self.spec.search.population)
        self.study = with_retries(lambda: optuna.load_study(study_name=name, storage=self.storage, sampler=sampler), url)
        self.engine = LocalEngine([*([str(folder)] if folder else []), str(Path.cwd())], interrupts=self.interrupts)
        self.evaluator = StudyEvaluator(self.spec, self.engine, None, {})
        self.distributions = distributions(self.problem.table)

    def run(self, trials: int | None = None, told: Told = None) -> WorkerReport:
        """Work until the study has its trials (or this worker did ``trials`` of them).

        A worker that finds enough trials under way waits for them, so that it can take over those of one that died.
        """
        report = WorkerReport()
        try:
            while trials is None or report.done + report.failed < trials:
                self.interrupts.check()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Optuna calls heartbeats experimental and expects them in optimize only
                    trial = with_retries(self._next, self.url)
                if trial is None:
                    break
                if isinstance(trial, bool):
                    time.sleep(IDLE_SECONDS)
                    continue
                with _Heart(self.storage, trial._trial_id, self.heartbeat):
                    found = self._evaluate(trial)
                    self._tell(trial, found, report, told)
        except KeyboardInterrupt:
            pass
        finally:
            self.engine.close()
        report.totals = with_retries(self.totals, self.url)
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
        candidates = with_retries(lambda: self._place(trial), self.url)
        if candidates is None:
            return None, "every legal design is done or under way", {}
        self.evaluator.known.clear()
        priced: Priced = self.evaluator(self.problem, candidates)
        attributes: dict[str, Any] = {"equal_quality": bool(priced.equal_quality[0])}
        attributes[CALLS] = {key: [value if value == value else None, error] for key, (value, error) in self.evaluator.known.items()}
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

    def _tell(self, trial: Trial, found: tuple[list[float] | None, str, dict[str, Any]], report: WorkerReport, told: Told) -> None:
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
            frozen = with_retries(tell, self.url)
        except (RuntimeError, ValueError) as problem:
            if isinstance(problem, StorageError):
                raise
            frozen = with_retries(lambda: self.storage.get_trial(trial._trial_id), self.url)
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


def collect(url: str, name: str, *, out: Path | None = None) -> Result:
    """The result of a workers' study so far: its completed trials, ranked.

    Raises:
        StorageError: no such study, or it has no completed trial yet.
    """
    from .files import prepare_folder
    from .run import contents
    from .study import Study

    storage = open_shared(url)
    try:
        header = join_study(url, name, None, storage)
        trials = [t for t in StudyStore(name, url, "postgresql", storage, None).study().get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    finally:
        close_storage(storage)
    spec: StudySpec = parse_spec(header["spec"], name)
    problem: SearchProblem = build_problem(spec, reference=Architecture.from_dict(header["reference"]))
    ids = list(dict.fromkeys(_design(trial, len(problem.table), url) for trial in trials))
    if not ids:
        raise StorageError(f"{hide_password(url)}: study '{name}' has no completed trial yet; start workers and wait")
    known: dict[str, tuple[float, str]] = {}
    for trial in trials:
        for key, (value, error) in dict(trial.user_attrs.get(CALLS, {})).items():
            known.setdefault(str(key), (float("nan") if value is None else float(value), str(error)))
    run = Run(problem, distributions(problem.table), StudyEvaluator(spec, _NoCode(), None, known), record=False)
    candidates: Candidates = problem.table.candidates(ids)
    run.price(candidates, ["worker"] * len(candidates))
    result = Result(contents(spec, run.outcome(), study_profile(spec), None))
    if out is not None:
        prepare_folder(out)
        result.notes = result.write(out, study_toml=Study(spec).to_toml())
    return result


class _NoCode(LocalEngine):
    """Prices, but runs no user function: every answer is in the storage."""

    def call(self, user: Any, calls: Any, done: Any) -> list[tuple[float, str]]:
        """Answer nothing; fail where an answer is missing."""
        if calls:
            raise StorageError(f"the stored study lacks an answer of user function '{user.name}'; let the workers finish")
        return []


def _design(trial: FrozenTrial, size: int, url: str) -> int:
    design = trial.user_attrs.get("design_id")
    if isinstance(design, bool) or not isinstance(design, int) or not 0 <= design < size:
        raise StorageError(f"{hide_password(url)}: trial {trial.number} names no design of this study; the storage was changed")
    return design


def summary(report: WorkerReport) -> Mapping[str, Any]:
    """Plain values for ``--json``."""
    return {"done": report.done, "failed": report.failed, "requeued_by_others": report.lost, "study_trials": report.totals}
