"""What is refused before a run writes anything: contradictions, studies that fit nowhere, objectives that nothing reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..costmodel import ArchitectureBatch, InvalidValueError, load_profile
from ..costmodel.memory import gpus_needed
from ..costmodel.serving import ServingSetup, price_points
from ..search.evaluate import BLOCK, evaluate, some_design_fits
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .spec import StudySpec
from .storage import storage_kind
from .user_objective import UserCodeError

if TYPE_CHECKING:
    from .study import RunOptions

MAX_WORKERS = 1024
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")  # of a Dask scheduler's address
LOOK = 4096  # designs looked at, evenly over the space, for one that reaches an objective


EXPORTS_LOOKED_AT = 50  # designs spread over the study whose Hugging Face family is looked up at the start


def check_options(spec: StudySpec, options: RunOptions) -> None:
    """Refuse contradictions before anything is touched.

    Raises:
        InvalidValueError: what contradicts what.
    """
    if isinstance(options.workers, bool) or not 1 <= options.workers <= MAX_WORKERS:
        raise InvalidValueError(f"workers must be between 1 and {MAX_WORKERS}, got {options.workers}")
    if options.resume and options.overwrite:
        raise InvalidValueError("--resume keeps what is stored and --overwrite discards it; give one of them")
    for name in ("accept_changed_code", "retry_failed"):
        if getattr(options, name) and not options.resume:
            raise InvalidValueError(f"--{name.replace('_', '-')} says how to continue a study; give --resume as well")
    if options.dask and options.workers > 1:
        raise InvalidValueError("--dask brings its own workers; leave out --workers")
    if options.dask and not options.dask.startswith(SCHEMES) and not options.dask.endswith(".json"):
        raise InvalidValueError(
            f"a Dask scheduler's address reads like tcp://host:8786, its --scheduler-file ends in .json; "
            f"got '{options.dask[:80]}'"
        )
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


def check_problem(problem: SearchProblem) -> None:
    """Refuse a study that nobody can deploy, and one with an objective that no design reaches.

    Raises:
        InvalidValueError: how many GPUs the reference model takes and how many are allowed; or the objective, the best
            value reached and the way out.
    """
    check_fits(problem)
    check_reached(problem)


def export_note(problem: SearchProblem) -> str:
    """Whether some of the study's designs cannot be written as a Hugging Face config, said before the search; else empty."""
    from .exporters.huggingface import without_family

    total = len(problem.table)
    ids = np.unique(np.linspace(0, total - 1, min(total, EXPORTS_LOOKED_AT)).astype(np.int64))
    batches = [batch for _, _, batch in problem.table.candidates(ids).batches(problem.spaces)]
    return without_family(batch.architecture(i) for batch in batches for i in range(len(batch)))


def check_fits(problem: SearchProblem) -> None:
    """Refuse a study none of whose designs can be deployed.

    Raises:
        InvalidValueError: how many GPUs the reference model takes and how many the study allows.
    """
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


def check_reached(problem: SearchProblem) -> None:
    """Refuse a throughput objective whose user rate no design reaches: all designs would tie at 0, and all lie on the front.

    Designs are priced, evenly over the space, until each objective is reached by one: the first one nearly always, at
    most :data:`LOOK`.

    Raises:
        InvalidValueError: the objective, the fastest design's rate and the way out.
    """
    missing = {i for i, objective in enumerate(problem.objectives) if objective.bounded == "throughput"}
    if not missing:
        return
    fastest, looked = 0.0, min(LOOK, len(problem.table))
    for block in _spread(problem):
        missing -= set(np.flatnonzero((evaluate(problem, block).objectives > 0).any(axis=0)).tolist())
        if not missing:
            return
        fastest = max(fastest, _fastest(problem, block))
    objective = problem.objectives[min(missing)]
    needed = max(min(objective.rates), 1.0 / problem.setup.workload.max_itl_seconds)
    whom = "none of the" if looked == len(problem.table) else f"none of {looked} designs, looked at evenly over the"
    reason = f"the fastest gives {fastest:.4g}" if fastest < needed else "no point that is fast enough meets the workload's goals"
    raise InvalidValueError(
        f"objective {objective.name} needs {needed:g} tokens/s/user, which {whom} {len(problem.table)} legal designs reaches "
        f"({reason}): every design would tie at 0; ask for a lower rate (objectives, workload.max_itl_seconds), or allow faster "
        "layouts (layouts.gpus, max_tpa, a smaller concurrency.low)"
    )


def _spread(problem: SearchProblem) -> Iterator[Candidates]:
    """One design, then blocks of designs whose union lies evenly over the space; each block does, too."""
    total = len(problem.table)
    ids = np.linspace(0, total - 1, min(total, LOOK)).astype(np.int64)
    yield problem.table.candidates(ids[len(ids) // 2 :][:1])
    count = -(-len(ids) // BLOCK)
    for start in range(count):
        yield problem.table.candidates(ids[start::count])


def _fastest(problem: SearchProblem, block: Candidates) -> float:
    """Largest tokens/s/user of a block's designs over their allowed layouts and concurrencies."""
    found = 0.0
    for _, space, batch in block.batches(problem.spaces):
        setup = problem.setup.with_(formats=problem.spaces[space].formats)
        found = max(found, _rate(batch, setup, setup.limits(batch, problem.rules.layouts_allowed(batch, setup.layouts))))
    return found


def _rate(batch: ArchitectureBatch, setup: ServingSetup, limits: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    itl, _ = price_points(batch, setup)
    held = np.asarray(setup.concurrency) <= limits[:, :, None]
    return float(np.max(np.where(held, 1.0 / itl, 0.0)))
