"""The result of a study that independent workers worked on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..costmodel import Architecture
from ..search.outcome import Run
from ..search.problem import SearchProblem
from ..search.space import Candidates, distributions
from .contents import contents, failures
from .evaluators import LocalEngine, StudyEvaluator
from .failures import errors_of, listed
from .problem import build_problem, study_profile
from .rdb import hide_password
from .result import Result
from .spec import StudySpec
from .spec_file import parse_spec
from .storage import StorageError, StudyStore
from .worker_storage import CALLS, close_storage, join_study, open_shared

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def collect(url: str, name: str, *, out: Path | None = None) -> Result:
    """The result of a workers' study so far: its completed trials, ranked.

    Raises:
        StorageError: no such study, or it has no completed trial yet.
    """
    from .files import prepare_results
    from .study import Study

    storage = open_shared(url)
    try:
        header = join_study(url, name, None, storage)
        every = StudyStore(name, url, "postgresql", storage, None).study().get_trials(deepcopy=False)
        trials, errors = [t for t in every if t.state.name == "COMPLETE"], errors_of(every)
    finally:
        close_storage(storage)
    spec: StudySpec = parse_spec(header["spec"], name)
    problem: SearchProblem = build_problem(spec, reference=Architecture.from_dict(header["reference"]))
    ids = list(dict.fromkeys(_design(trial, len(problem.table), url) for trial in trials))
    if not ids:
        failed = f", {len(errors)} failed ({listed(errors)})" if errors else ""
        raise StorageError(f"{hide_password(url)}: study '{name}' has no completed trial yet{failed}; start workers and wait")
    known: dict[str, tuple[float, str]] = {}
    for trial in trials:
        for key, (value, error) in dict(trial.user_attrs.get(CALLS, {})).items():
            known.setdefault(str(key), (float("nan") if value is None else float(value), str(error)))
    run = Run(problem, distributions(problem.table), StudyEvaluator(spec, _NoCode(), None, known), record=False)
    candidates: Candidates = problem.table.candidates(ids)
    run.price(candidates, ["worker"] * len(candidates))
    data = contents(spec, run.outcome(), study_profile(spec), None)
    result = Result(data | {"trials": data["trials"] + len(errors)} | failures(errors))
    if out is not None:
        prepare_results(out)
        result.notes = result.write(out, study_toml=Study(spec).to_toml())
    if errors:
        result.notes = [*result.notes, f"user functions failed in {len(errors)} trials: {listed(errors)}"]
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
