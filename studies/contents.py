"""What result.json holds: settings, fronts, ranks, the spec; plain values, no clock times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..search.outcome import SearchOutcome
from .describe import MAX_REPORTED
from .failures import MOST_COMMON, causes
from .output import plain
from .rank import rank
from .result import FORMAT_VERSION
from .spec import StudySpec
from .spec_file import spec_to_dict

if TYPE_CHECKING:
    from ..costmodel import KernelProfile


def contents(
    spec: StudySpec, outcome: SearchOutcome, profile: KernelProfile, certificate: dict[str, Any] | None
) -> dict[str, Any]:
    """Everything result.json holds, plain values, no clock times."""
    problem = outcome.problem
    workload = spec.workload
    kinds = {space.name: _kind(space.kind) for space in problem.spaces} | {"reference": _kind(problem.reference.kind)}
    moe = any(kind.moe for kind in (problem.reference.kind, *(space.kind for space in problem.spaces)))
    routing = f", {workload.load} routing" if moe else ""
    return {
        "format": FORMAT_VERSION,
        "study": spec.name,
        "title": spec.title,
        "seed": spec.search.seed,
        "engine": spec.search.engine,
        "trials": outcome.trials,
        "legal_trials": outcome.legal_trials,
        **failures(outcome.priced.errors),
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
            "workload_text": f"{workload.input_tokens} tokens in, {workload.output_tokens} out{routing}",
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


def failures(errors: Iterable[str]) -> dict[str, Any]:
    """``failed_trials`` and ``failures`` (causes with their counts) of user functions; nothing where none failed."""
    found = causes(errors)
    rows = [{"cause": text, "trials": number} for text, number in found[:MOST_COMMON]]
    return {"failed_trials": sum(number for _, number in found), "failures": rows} if found else {}


def _kind(kind: Any) -> dict[str, Any]:
    return {name: value for name, value in plain(kind).items() if name != "moe"}
