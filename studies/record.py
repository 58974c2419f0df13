"""What is stored with a study so that a resumed run is the same run: spec, seed, versions, hashes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..search.problem import SearchProblem
from .output import plain, to_json
from .spec import StudySpec
from .spec_file import spec_hash, spec_to_dict
from .storage import StorageError, Stored, StudyStore, difference

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from ..costmodel import KernelProfile


def _hash(value: Any) -> str:
    return hashlib.sha256(to_json(value, indent=None).encode()).hexdigest()[:32]


def versions() -> dict[str, str]:
    """Versions that decide a run's numbers."""
    import optuna

    from shapefront import __version__

    return {"shapefront": __version__, "optuna": optuna.__version__, "numpy": np.__version__, "python": platform.python_version()}


def make_metadata(spec: StudySpec, problem: SearchProblem, profile: KernelProfile) -> dict[str, Any]:
    """The header of a stored study."""
    fits = {family: dict(fits) for family, fits in profile.families.items()}
    hardware = {name: quantity.value for name, quantity in profile.hardware.quantities.items()}
    return {
        "spec": spec_to_dict(spec),
        "seed": spec.search.seed,
        "versions": versions(),
        "reference": problem.reference.to_dict(),
        "hashes": {
            "spec": spec_hash(spec),
            "profile": _hash({"name": profile.name, "families": plain(fits)}),
            "hardware": _hash({"name": profile.hardware.name, **hardware}),
            "reference": _hash(problem.reference.to_dict()),
            "bands": _hash(dict(problem.rules.bands)),
        },
    }


def check_same(stored: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> list[str]:
    """Refuse to resume another study than the stored one; return notes on what may differ in the last digit.

    Raises:
        StorageError: spec, seed, version, cost-model numbers or reference changed; the message lists the differences.
    """
    changes = difference({k: stored[k] for k in ("spec", "seed")}, {k: wanted[k] for k in ("spec", "seed")})
    hashes = [c for c in difference(stored["hashes"], wanted["hashes"], "hash of ") if not c.startswith("hash of spec")]
    program = difference(
        {k: stored["versions"].get(k) for k in ("shapefront", "optuna")},
        {k: wanted["versions"][k] for k in ("shapefront", "optuna")},
        "version of ",
    )
    if changes or hashes or program:
        listed = "\n  ".join([*changes, *hashes, *program])
        raise StorageError(
            f"{where}: the stored study differs from this one, so it cannot be resumed:\n  {listed}\n"
            "undo the change, or start a new study with another --out (or --storage)"
        )
    soft = difference(
        {k: stored["versions"].get(k) for k in ("numpy", "python")},
        {k: wanted["versions"][k] for k in ("numpy", "python")},
        "version of ",
    )
    return [f"{line}: the last digits of results may differ from the interrupted run's" for line in soft]


class TrialRecorder:
    """The search's recorder: trials already stored are compared, new ones appended."""

    def __init__(self, store: StudyStore, stored: Stored | None) -> None:
        self._store = store
        self._known: Sequence[FrozenTrial] = stored.trials if stored else ()
        self.seen = 0

    @property
    def replayed(self) -> int:
        """Stored trials the run went over so far."""
        return min(self.seen, len(self._known))

    def __call__(self, trials: list[FrozenTrial]) -> None:
        """Take one generation.

        Raises:
            StorageError: a stored trial is not the one this run computes, or the storage cannot be written.
        """
        known = self._known[self.seen : self.seen + len(trials)]
        for number, (old, new) in enumerate(zip(known, trials, strict=False), start=self.seen):
            if old.params != new.params or old.state != new.state or list(old.values or []) != list(new.values or []):
                raise StorageError(
                    f"{self._store.where}: stored trial {number} is not the one this run computes (stored "
                    f"{_short(old)}, computed {_short(new)}); "
                    "the storage was changed or the numbers come from another machine or version: start a new study "
                    "with another --out"
                )
        self._store.append(trials[len(known) :])
        self.seen += len(trials)

    def check_rest(self) -> None:
        """After a whole run: stored trials beyond its own must come from a certificate.

        Raises:
            StorageError: the storage holds trials this run does not compute.
        """
        for number, trial in enumerate(self._known[self.seen :], start=self.seen):
            if trial.user_attrs.get("source") != "enumerated":
                raise StorageError(
                    f"{self._store.where}: stored trial {number} is not one of this run's {self.seen} ({_short(trial)}); "
                    "the storage was changed: start a new study with another --out"
                )


def _short(trial: FrozenTrial) -> str:
    return f"{trial.params} → {trial.values}"[:200]
