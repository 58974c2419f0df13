"""Running a study: lock, storage, engine, search, ranking, whole files; the same bytes after any interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..search.evaluate import Priced
from ..search.outcome import Progress, SearchOutcome
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .checkpoint import Checkpoint, KeepingEngine
from .code_state import code_of, reconcile
from .contents import contents
from .evaluators import Engine, LocalEngine, StudyEvaluator
from .failures import FirstCalls, listed
from .files import OutputError, prepare_results, remove_leftovers
from .folder_lock import FolderLock
from .interrupts import Interrupts
from .opening import RunLog, open_study
from .output import plain
from .preflight import check_options, check_problem, export_note
from .progress import make_reporter
from .record import TrialRecorder, make_metadata
from .result import Result
from .spec import StudySpec
from .storage import StorageError, storage_kind
from .user_objective import UserCodeError
from .user_output import Output

if TYPE_CHECKING:
    from .study import RunOptions, Study

__all__ = ["OutputError", "RunLog", "run_study"]


def run_study(study: Study, options: RunOptions, stack: ExitStack) -> Result:
    """Run ``study``; see :meth:`.study.Study.run`."""
    spec = study.spec
    check_options(spec, options)
    problem = study.problem()
    from .problem import study_profile

    profile = study_profile(spec, study.folder)
    legal = len(problem.table)  # an empty study ends here, before anything is written
    check_problem(problem)
    metadata = make_metadata(spec, problem, profile)
    interrupts = Interrupts()
    output = Output()
    engine = make_engine(study, options, interrupts, output)  # a cluster that is away, too
    stack.callback(engine.close)
    engine.prepare(spec.user)  # and a function that does not import
    log = RunLog(None)
    if options.out is not None:
        new = not options.out.exists()
        prepare_results(options.out)
        lock = FolderLock(options.out)
        stack.callback(lock.release)
        remove_leftovers(options.out)
        log = RunLog(options.out / "run.log")
    names = [o.name for o in problem.objectives]
    try:
        store, stored, checkpoint = open_study(spec, metadata, options, log, stack, names)
        stored = reconcile(store, stored, metadata, code_of(spec.user, import_folders(study)), options, names, log)
    except StorageError:
        if options.out is not None and new:  # nothing was done: leave nothing behind
            lock.withdraw()
        raise
    log(
        f"study {spec.name}, seed {spec.search.seed}, {legal} legal architectures, profile {profile.name}, storage "
        f"{storage_kind(store.where)}"
    )
    reporter = make_reporter(options.progress)
    stack.callback(reporter.close)
    if options.progress == "quiet":
        output.to(lambda name, line: log(f"output of {name}: {line}"))
    else:
        output.to(lambda name, line: reporter.say("output", f"{name}: {line}"))
    if spec.user:
        text = expected_calls(spec, legal)
        log(text)
        reporter.say("plan", text)
    note = export_note(problem)
    if note:
        log(note)
        reporter.say("note", note)
    recorder = TrialRecorder(store, stored)
    keeping = KeepingEngine(engine)
    started = time.monotonic()
    with interrupts.listening():
        way_out = "mend it, then the same command" + ("" if store.kind == "memory" else " with --resume --retry-failed")
        known = dict(stored.evaluations) if stored else {}
        evaluator = StudyEvaluator(spec, keeping, store, known, FirstCalls(way_out))
        try:
            outcome = search(study, problem, evaluator, recorder, reporter, interrupts, keeping, checkpoint)
        except UserCodeError as error:
            log(f"stopped: {' '.join(str(error).split())}")
            raise
        certificate = None
        if options.certify and not outcome.interrupted:
            outcome, certificate = certify(problem, outcome, evaluator, recorder, reporter, options.certify_seconds)
        reporter.close()
        if not outcome.interrupted:
            recorder.check_rest()
    log(
        f"{outcome.trials} trials ({recorder.replayed} replayed), {outcome.legal_architectures} legal architectures priced, "
        f"{keeping.count} designs priced by this run, hypervolume {outcome.hypervolume:.6f}, {time.monotonic() - started:.2f} s"
    )
    for name in same_for_all(outcome):
        log.note(f"objective {name} is the same for every design priced: it ranks nothing")
    failed = [text for text in outcome.priced.errors if text]
    if failed:
        log.note(f"user functions failed for {len(failed)} of {len(outcome.priced)} designs: {listed(failed)}")
    result = Result(contents(spec, outcome, profile, certificate))
    if options.out is not None:
        try:
            for text in result.write(options.out, study_toml=study.to_toml()):
                log.note(text)
        except OutputError as error:
            kept = "the trials are stored: then the same command with --resume" if store.kind != "memory" else "run it again then"
            raise OutputError(f"{error}; {kept}") from None
    if not outcome.interrupted:
        store.finish(metadata)
        if checkpoint is not None:
            checkpoint.remove()
    log("interrupted; continue with --resume" if outcome.interrupted else "done")
    result.notes = log.notes
    return result


def expected_calls(spec: StudySpec, legal: int) -> str:
    """How often the user functions will be called, in words."""
    from ..search.optimize import polish_limit

    settings, names = spec.search, ", ".join(user.name for user in spec.user)
    first = min(settings.trials, legal)
    if settings.engine == "exhaustive" or first == legal:
        return f"user functions ({names}): up to {legal} calls of each, one a legal design"
    if not settings.polish:
        return f"user functions ({names}): up to {first} calls of each"
    most = min(legal, first + polish_limit(settings.trials))
    return (
        f"user functions ({names}): up to {first} calls of each in the trials, then one for every new neighbour of the front, up "
        f"to {most} together (--no-polish leaves those out)"
    )


def import_folders(study: Study) -> list[str]:
    """Where user functions are looked for first: the study's folder, then the working folder."""
    return [*([str(study.folder)] if study.folder else []), str(Path.cwd())]


def make_engine(study: Study, options: RunOptions, interrupts: Interrupts, output: Output | None = None) -> Engine:
    """Who prices: this process, local processes, or a Dask cluster."""
    folders = import_folders(study)
    if options.dask:
        from .dask_engine import DaskEngine

        return DaskEngine(options.dask, study, folders, interrupts)
    if options.workers > 1:
        from .workers import ProcessEngine

        return ProcessEngine(study, folders, options.workers, interrupts, output)
    return LocalEngine(folders, interrupts=interrupts, output=output)


def search(
    study: Study,
    problem: SearchProblem,
    evaluator: StudyEvaluator,
    recorder: TrialRecorder,
    reporter: Any,
    interrupts: Interrupts,
    keeping: KeepingEngine,
    kept: Checkpoint | None,
) -> SearchOutcome:
    """Run the study's engine; Ctrl-C is looked at between generations."""
    from ..search.exhaustive import exhaust, records_all
    from ..search.optimize import SearchOptions, optimize

    evaluate = _Stoppable(evaluator, interrupts)

    def progress(state: Progress) -> None:
        reporter(state)
        interrupts.check()

    settings = study.spec.search
    try:
        if settings.engine == "exhaustive":
            whole = records_all(problem)
            with keeping.into(kept if whole else None):
                return exhaust(
                    problem,
                    evaluator=evaluate,
                    recorder=recorder,
                    callback=progress,
                    keeper=None if whole else kept,
                    study_name=study.spec.name,
                )
        chosen = SearchOptions(sampler=settings.sampler, population=settings.population, polish=settings.polish)
        return optimize(
            problem,
            trials=settings.trials,
            seed=settings.seed,
            options=chosen,
            evaluator=evaluate,
            recorder=recorder,
            callback=progress,
            study_name=study.spec.name,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(len(problem.table), settings.engine, kept)) from None


def _interrupted(designs: int, engine: str, kept: Checkpoint | None) -> str:
    """What is said of a run that was interrupted before there was a result."""
    if engine != "exhaustive":
        return "interrupted before the first generation was priced; --resume continues the run"
    if kept is None:
        return "interrupted before there was a result; what is priced is kept with --out and a storage other than memory"
    return f"interrupted: {kept.done} of {designs} designs are priced and kept; --resume continues after them"


class _Stoppable:
    """The study's evaluator, looking at interrupts before each call."""

    def __init__(self, evaluator: StudyEvaluator, interrupts: Interrupts) -> None:
        self._evaluator, self._interrupts = evaluator, interrupts

    def __call__(self, problem: SearchProblem, candidates: Candidates) -> Priced:
        """Price one generation or chunk."""
        self._interrupts.check()
        return self._evaluator(problem, candidates)

    def stream_chunks(self, problem: SearchProblem, chunks: Iterable[Candidates]) -> Iterator[tuple[Candidates, Priced]]:
        """Price many chunks in order."""
        for found in self._evaluator.stream_chunks(problem, chunks):
            yield found
            self._interrupts.check()


def same_for_all(outcome: SearchOutcome) -> list[str]:
    """Objectives with one value for all legal designs (a user's constant; where it is the only one, all lie on the front)."""
    values = outcome.priced.objectives[outcome.priced.legal]
    same = np.all(values == values[:1], axis=0) if len(values) > 1 else np.zeros(values.shape[1], dtype=np.bool_)
    return [o.name for o, flag in zip(outcome.problem.objectives, same.tolist(), strict=True) if flag]


def certify(
    problem: SearchProblem, outcome: SearchOutcome, evaluator: Any, recorder: TrialRecorder, reporter: Any, seconds: float
) -> tuple[SearchOutcome, dict[str, Any]]:
    """Prove the front: the outcome with any missed member added, and the ``certificate`` of result.json."""
    from ..search.certify import certify as prove

    found = prove(problem, outcome, evaluator=evaluator, recorder=recorder, callback=reporter, max_seconds=seconds)
    keys = ("status", "legal", "priced", "pruned", "open", "gap_hypervolume", "found")
    return found.outcome or outcome, {key: plain(getattr(found, key)) for key in keys}
