"""A study: load it, run it, resume it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..costmodel import Architecture
from ..search.problem import SearchProblem
from .problem import build_problem, load_reference
from .result import Result
from .spec import SpecError, StudySpec
from .spec_file import find_study, load_spec, parse_spec, spec_to_dict, study_names, to_toml

__all__ = ["DEFAULT_STUDY", "RunOptions", "Study", "study_names"]
DEFAULT_STUDY = "moe-30b-a3b"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run a study; none of it changes the result.

    Attributes:
        out: folder of the results; None writes nothing.
        storage: ``memory``, ``journal``, ``sqlite``, a file or a PostgreSQL URL; None = journal in ``out``, or memory.
        resume: continue what the storage holds.
        overwrite: discard what the storage holds.
        workers: local processes.
        dask: a Dask scheduler: its address (``tcp://host:port``), or the file it wrote it into (``….json``).
        certify: prove the front after the search.
        certify_seconds: after that the certificate closes with the gap that is left.
        allow_code: let the study's user functions run.
        accept_changed_code: resume although the file of a user function changed.
        retry_failed: on resume, make the calls of user functions again that failed.
        progress: ``bar``, ``json-lines`` or ``quiet``.
    """

    out: Path | None = None
    storage: str | None = None
    resume: bool = False
    overwrite: bool = False
    workers: int = 1
    dask: str | None = None
    certify: bool = False
    certify_seconds: float = math.inf
    allow_code: bool = False
    accept_changed_code: bool = False
    retry_failed: bool = False
    progress: str = "quiet"


@dataclass(frozen=True)
class Study:
    """A validated study spec and the folder its relative paths start from."""

    spec: StudySpec
    folder: Path | None = None

    @classmethod
    def load(cls, name: str | Path = DEFAULT_STUDY) -> Study:
        """A built-in study by name, or a file ending in ``.toml``.

        Raises:
            ShapefrontError: no such study, or the file breaks a rule.
        """
        path = find_study(name)
        builtin = not str(name).endswith(".toml")
        return cls(load_spec(name), None if builtin else path.resolve().parent)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], *, folder: Path | None = None) -> Study:
        """A study from plain values."""
        return cls(parse_spec(table, "study"), folder)

    def with_search(self, **changes: Any) -> Study:
        """The same study with other search settings (``trials``, ``seed``, ``engine``, …); None keeps a setting.

        Raises:
            SpecError: a value breaks a rule.
        """
        given = {key: value for key, value in changes.items() if value is not None}
        if not given:
            return self
        table = spec_to_dict(self.spec)
        table["search"] |= given
        return replace(self, spec=parse_spec(table, self.spec.name))

    @property
    def reference(self) -> Architecture:
        """The reference model."""
        return load_reference(self.spec, self.folder)

    def problem(self) -> SearchProblem:
        """The search problem this study describes."""
        return build_problem(self.spec, folder=self.folder)

    def to_toml(self) -> str:
        """The spec with every default filled in."""
        return to_toml(spec_to_dict(self.spec))

    def run(
        self,
        *,
        trials: int | None = None,
        seed: int | None = None,
        engine: str | None = None,
        polish: bool | None = None,
        out: str | Path | None = None,
        **options: Any,
    ) -> Result:
        """Run the study.

        Args:
            trials: designs the search may price before the polish.
            seed: same seed, same result.
            engine: ``optuna`` or ``exhaustive``.
            polish: price the neighbours of the front after the trials; None = as the study says.
            out: folder for the results; None keeps them in memory.
            **options: the other fields of :class:`RunOptions`.

        Raises:
            ShapefrontError: the study cannot be run; the message says why and the way out.
        """
        from .run import run_study

        unknown = set(options) - set(RunOptions.__dataclass_fields__)
        if unknown:
            raise SpecError(
                f"unknown option '{sorted(unknown)[0]}' (known: {', '.join(sorted(RunOptions.__dataclass_fields__))})"
            )
        if out == "":
            raise SpecError("out is empty; give a folder, or None to write nothing")
        chosen = RunOptions(out=None if out is None else Path(out), **options)
        with ExitStack() as stack:
            return run_study(self.with_search(trials=trials, seed=seed, engine=engine, polish=polish), chosen, stack)
