"""Running a study: lock, storage, engine, search, ranking, whole files; the same bytes after any interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..costmodel import InvalidValueError
from ..search.evaluate import Priced
from ..search.outcome import Progress, SearchOutcome
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .evaluators import Engine, LocalEngine, StudyEvaluator
from .files import OutputError, prepare_results, remove_leftovers
from .interrupts import Interrupts
from .output import plain
from .progress import make_reporter
from .rank import MAX_REPORTED, rank
from .record import TrialRecorder, check_same, make_metadata
from .result import FORMAT_VERSION, Result
from .spec import StudySpec
from .spec_file import spec_to_dict
from .storage import FolderLock, StorageError, Stored, StudyStore, open_store, storage_kind
from .user_objective import UserCodeError

if TYPE_CHECKING:
    from ..costmodel import KernelProfile
    from .study import RunOptions, Study

MAX_WORKERS = 1024
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")  # of a Dask scheduler


class RunLog:
    """Lines with clock times, in run.log; kept out of every other file so that those stay byte-equal."""

    def __init__(self, path: Path | None) -> None:
        self._path, self.notes = path, list[str]()

    def __call__(self, text: str) -> None:
        """Append a line; a full disk does not stop a run here."""
        if self._path is not None:
            try:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
            except OSError:
                pass

    def note(self, text: str) -> None:
        """A line that the user is shown as well."""
        self.notes.append(text)
        self(text)


def run_study(study: Study, options: RunOptions, stack: ExitStack) -> Result:
    """Run ``study``; see :meth:`.study.Study.run`."""
    spec = study.spec
    check_options(spec, options)
    problem = study.problem()
    from .problem import study_profile

    profile = study_profile(spec, study.folder)
    legal = len(problem.table)  # an empty study ends here, before anything is written
    check_fits(problem)
    metadata = make_metadata(spec, problem, profile)
    log = RunLog(None)
    if options.out is not None:
        new = not options.out.exists()
        prepare_results(options.out)
        lock = FolderLock(options.out)
        stack.callback(lock.release)
        remove_leftovers(options.out)
        log = RunLog(options.out / "run.log")
    try:
        store, stored = open_study(spec, metadata, options, log, stack, [o.name for o in problem.objectives])
    except StorageError:
        if options.out is not None and new:  # nothing was done: leave nothing behind
            lock.withdraw()
        raise
    log(
        f"study {spec.name}, seed {spec.search.seed}, {legal} legal architectures, profile {profile.name}, storage "
        f"{storage_kind(store.where)}"
    )
    interrupts = Interrupts()
    engine = make_engine(study, options, interrupts)
    stack.callback(engine.close)
    reporter = make_reporter(options.progress)
    stack.callback(reporter.close)
    recorder = TrialRecorder(store, stored)
    started = time.monotonic()
    with interrupts.listening():
        evaluator = StudyEvaluator(spec, engine, store, dict(stored.evaluations) if stored else {})
        outcome = search(study, problem, evaluator, recorder, reporter, interrupts)
        certificate = None
        if options.certify and not outcome.interrupted:
            outcome, certificate = certify(problem, outcome, evaluator, recorder, reporter, options.certify_seconds)
        reporter.close()
        if not outcome.interrupted:
            recorder.check_rest()
    log(
        f"{outcome.trials} trials ({recorder.replayed} replayed), {outcome.legal_architectures} legal architectures priced, "
        f"hypervolume {outcome.hypervolume:.6f}, {time.monotonic() - started:.2f} s"
    )
    failed = [text for text in outcome.priced.errors if text]
    if failed:
        first = " ".join(failed[0].split())[:300]
        log.note(f"user functions failed for {len(failed)} of {len(outcome.priced)} designs; the first: {first}")
    result = Result(contents(spec, outcome, profile, certificate))
    if options.out is not None:
        for text in result.write(options.out, study_toml=study.to_toml()):
            log.note(text)
    if not outcome.interrupted:
        store.finish(metadata)
    log("interrupted; continue with --resume" if outcome.interrupted else "done")
    result.notes = log.notes
    return result


def check_fits(problem: SearchProblem) -> None:
    """Refuse a study none of whose designs can be deployed.

    Raises:
        InvalidValueError: how many GPUs the reference model takes and how many the study allows.
    """
    from ..costmodel import load_profile
    from ..costmodel.memory import gpus_needed
    from ..search.evaluate import some_design_fits

    if some_design_fits(problem):
        return
    setup, model = problem.setup, problem.reference
    hardware, tokens = load_profile(setup.profile).hardware, setup.workload.peak_context
    need = gpus_needed(model, context=tokens, formats=setup.formats, hardware=hardware)
    raise InvalidValueError(
        f"none of the {len(problem.table)} legal designs fits an allowed layout of up to {int(setup.layouts.gpus.max())} GPUs: "
        f"{model.name or 'the reference model'} with one sequence of {tokens} tokens takes at least {need} {hardware.name}; "
        "raise layouts.gpus (or max_tpa, max_pp, max_kvp), shorten the workload, or use smaller formats"
    )


def check_options(spec: StudySpec, options: RunOptions) -> None:
    """Refuse contradictions before anything is touched.

    Raises:
        InvalidValueError: what contradicts what.
    """
    if isinstance(options.workers, bool) or not 1 <= options.workers <= MAX_WORKERS:
        raise InvalidValueError(f"workers must be between 1 and {MAX_WORKERS}, got {options.workers}")
    if options.resume and options.overwrite:
        raise InvalidValueError("--resume keeps what is stored and --overwrite discards it; give one of them")
    if options.dask and options.workers > 1:
        raise InvalidValueError("--dask brings its own workers; leave out --workers")
    if options.dask and not options.dask.startswith(SCHEMES):
        raise InvalidValueError(f"a Dask scheduler's address reads like tcp://host:8786, got '{options.dask[:80]}'")
    if options.certify and (spec.layouts.mode != "sweep" or any(user.role == "objective" for user in spec.user)):
        raise InvalidValueError("--certify proves fronts of built-in objectives with swept layouts; leave it out for this study")
    if not options.certify_seconds > 0:
        raise InvalidValueError(f"certify_seconds must be positive, got {options.certify_seconds}")
    if options.storage is not None:
        storage_kind(options.storage)
    if spec.user and not options.allow_code:
        entries = ", ".join(user.entry for user in spec.user)
        raise UserCodeError(f"study '{spec.name}' runs Python code of its own ({entries}); if you trust it, say --allow-code")
    if options.resume and (options.storage or ("journal" if options.out else "memory")) == "memory":
        raise InvalidValueError("--resume needs a storage that lasts: give --out, or --storage with a file or a database")


def open_study(
    spec: StudySpec, metadata: dict[str, Any], options: RunOptions, log: RunLog, stack: ExitStack, names: list[str]
) -> tuple[StudyStore, Stored | None]:
    """Open or create the stored study.

    Raises:
        StorageError: it holds another study, or an unfinished one without ``resume``.
    """
    where = options.storage or ("journal" if options.out is not None else "memory")
    if options.overwrite:
        _discard(where, spec.name, options.out)
    store = open_store(where, spec.name, options.out)
    stack.callback(store.close)
    if store.repaired_bytes:
        log(f"removed {store.repaired_bytes} bytes of a write that was cut short")
    stored = store.read()
    if stored is None:
        store.create(metadata, names)
        return store, None
    if stored.metadata.get("mode") == "workers":
        raise StorageError(
            f"{where}: '{spec.name}' is a study of independent workers; collect it with 'shapefront worker --collect'"
        )
    if not options.resume:
        empty = not stored.trials and not stored.evaluations  # a run that ended before its first generation
        if empty or (stored.finished and not stored.evaluations and storage_kind(where) != "postgresql"):
            # A finished study of ours costs nothing to repeat; the same study is simply replayed.
            try:
                check_same(stored.metadata, metadata, where)
            except StorageError:
                pass
            else:
                return store, stored
        state = "finished" if stored.finished else "unfinished"
        raise StorageError(
            f"{options.out or where}: holds a {state} study '{spec.name}' with {len(stored.trials)} trials; continue "
            "with --resume, "
            "discard it with --overwrite, or choose another --out"
        )
    for text in check_same(stored.metadata, metadata, where):
        log.note(text)
    log(f"resuming after {len(stored.trials)} trials and {len(stored.evaluations)} calls of user functions")
    return store, stored


def _discard(where: str, name: str, folder: Path | None) -> None:
    """Remove a stored study: the file of a journal, the study of a database."""
    from .rdb import hide_password

    if storage_kind(where) == "journal":
        path = (folder or Path()) / "study.journal" if where == "journal" else Path(where)
        store = open_store(where, name, folder)  # refuses a file that is in use or not a journal
        store.close()
        path.unlink()
        return
    store = open_store(where, name, folder)
    try:
        for study in (name, f"{name}.evaluations"):
            if study in {s.study_name for s in store.storage.get_all_studies()}:
                store.storage.delete_study(store.storage.get_study_id_from_name(study))
    except Exception as error:
        raise StorageError(f"{hide_password(where)}: the stored study cannot be discarded ({type(error).__name__})") from None
    finally:
        store.close()


def make_engine(study: Study, options: RunOptions, interrupts: Interrupts) -> Engine:
    """Who prices: this process, local processes, or a Dask cluster."""
    folders = [str(study.folder)] if study.folder else []
    folders.append(str(Path.cwd()))
    if options.dask:
        from .dask_engine import DaskEngine

        return DaskEngine(options.dask, study, folders, interrupts)
    if options.workers > 1:
        from .workers import ProcessEngine

        return ProcessEngine(study, folders, options.workers, interrupts)
    return LocalEngine(folders, interrupts=interrupts)


def search(
    study: Study,
    problem: SearchProblem,
    evaluator: StudyEvaluator,
    recorder: TrialRecorder,
    reporter: Any,
    interrupts: Interrupts,
) -> SearchOutcome:
    """Run the study's engine; Ctrl-C is looked at between generations."""
    from ..search.exhaustive import exhaust
    from ..search.optimize import SearchOptions, optimize

    evaluate = _Stoppable(evaluator, interrupts)

    def progress(state: Progress) -> None:
        reporter(state)
        interrupts.check()

    settings = study.spec.search
    try:
        if settings.engine == "exhaustive":
            return exhaust(problem, evaluator=evaluate, recorder=recorder, callback=progress, study_name=study.spec.name)
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
        raise KeyboardInterrupt("interrupted before the first generation was priced") from None


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


def certify(
    problem: SearchProblem, outcome: SearchOutcome, evaluator: Any, recorder: TrialRecorder, reporter: Any, seconds: float
) -> tuple[SearchOutcome, dict[str, Any]]:
    """Prove the front: the outcome with any missed member added, and the ``certificate`` of result.json."""
    from ..search.certify import certify as prove

    found = prove(problem, outcome, evaluator=evaluator, recorder=recorder, callback=reporter, max_seconds=seconds)
    keys = ("status", "legal", "priced", "pruned", "open", "gap_hypervolume", "found")
    return found.outcome or outcome, {key: plain(getattr(found, key)) for key in keys}


def contents(
    spec: StudySpec, outcome: SearchOutcome, profile: KernelProfile, certificate: dict[str, Any] | None
) -> dict[str, Any]:
    """Everything result.json holds, plain values, no clock times."""
    problem = outcome.problem
    workload = spec.workload
    kinds = {space.name: _kind(space.kind) for space in problem.spaces} | {"reference": _kind(problem.reference.kind)}
    return {
        "format": FORMAT_VERSION,
        "study": spec.name,
        "title": spec.title,
        "seed": spec.search.seed,
        "engine": spec.search.engine,
        "trials": outcome.trials,
        "legal_trials": outcome.legal_trials,
        "legal_architectures": outcome.legal_architectures,
        "legal_in_study": outcome.legal_in_study,
        "exhausted": outcome.exhausted,
        "interrupted": outcome.interrupted,
        "polished": outcome.polished,
        "hypervolume": outcome.hypervolume,
        "hypervolume_reference_point": plain(outcome.reference_point),
        "hypervolume_scales": plain(problem.scales),
        "objectives": [o.name for o in problem.objectives],
        "rates": sorted({*spec.rates, *(problem.rates if len(problem.rates) <= MAX_REPORTED else ())}),
        "area": spec.area.model_dump(),
        "settings": {
            "profile": profile.name,
            "hardware": profile.hardware.name,
            "serving": spec.serving.mode,
            "workload_text": f"input {workload.input_tokens}, output {workload.output_tokens} tokens, {workload.load} routing",
            "layouts": len(problem.setup.layouts),
            "concurrencies": len(problem.setup.concurrency),
            "formats": spec.formats.model_dump(),
            "total_params": problem.budget.total_params,
            "active_params": problem.budget.active_params,
            "tolerance": problem.budget.tolerance,
            "train_tokens": spec.train_tokens,
        },
        **rank(spec, outcome),
        "certificate": certificate,
        "kinds": kinds,
        "spec": spec_to_dict(spec),
    }


def _kind(kind: Any) -> dict[str, Any]:
    return {name: value for name, value in plain(kind).items() if name != "moe"}


__all__ = ["OutputError", "RunLog", "run_study"]
