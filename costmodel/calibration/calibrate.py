"""``calibrate`` one (hardware, stack), ``write_profile`` it, ``validate`` the shipped profiles."""

from __future__ import annotations

import datetime
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import InvalidValueError, UnknownKeyError, did_you_mean
from ..hardware import read_toml
from ..profile import FAMILIES, KernelProfile, load_profile, parse_profile, profile_names
from .interface import PLUGINS, FamilyResult, ValidationRow, fit_of, plugins, validate_of
from .tables import STACKS, open_tables
from .toml import profile_toml

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
SPLIT = (
    "whole shapes held out by fixed hashes: splitmix64 (costmodel/calibration/split.py) for gemm, bmm, collectives and "
    "element-wise kernels; SHA-256 of whole head groups (calibration/attention_rows.py) for attention (salt 164) and mla "
    "(salt 7); SHA-256 of whole (H, width, E, k) groups (calibration/moe.py) for moe"
)


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Everything fitted for one (hardware, stack).

    Attributes:
        hardware: hardware name.
        stack: serving stack.
        families: one entry per kernel family and format.
        provenance: versions, date, split.
    """

    hardware: str
    stack: str
    families: tuple[FamilyResult, ...]
    provenance: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Profile name, e.g. ``gb300-trtllm``."""
        return f"{self.hardware}-{self.stack}"

    def as_table(self) -> dict[str, Any]:
        """The profile as nested plain tables, as :func:`..profile.parse_profile` reads them."""
        table: dict[str, Any] = {
            "name": self.name,
            "title": f"{self.hardware.upper()} fitted to measured {self.stack} kernels",
            "hardware": self.hardware,
            "stack": self.stack,
            "provenance": dict(self.provenance),
        }
        for result in sorted(self.families, key=lambda r: (FAMILIES.index(r.family), r.format)):
            entry: dict[str, Any] = {"status": result.status, "source": result.source, "parameters": dict(result.parameters)}
            for key in ("standard_errors", "fit", "held_out", "valid", "pairs"):
                part = getattr(result, key)
                if part:
                    entry[key] = {name: list(v) if isinstance(v, tuple) else v for name, v in part.items()}
            if result.note:
                entry["note"] = result.note
            table.setdefault(result.family, {})[result.format] = entry
        return table

    def profile(self) -> KernelProfile:
        """The result as a profile, checked like a file."""
        return parse_profile(self.as_table(), f"calibration of {self.name}")


def calibrate(
    hardware: str,
    stack: str,
    table: str | Path | None = None,
    families: Sequence[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> CalibrationResult:
    """Fit every kernel family that the measured tables of (hardware, stack) hold.

    Args:
        hardware: hardware name, e.g. ``gb300``.
        stack: ``trtllm``, ``sglang``, ``vllm``; any name with a table of your own.
        table: a user's CSV or parquet of GEMMs with columns m, n, k, dtype, latency (ms), instead of the built-in tables.
        families: family modules to fit (``gemm``, ``attention``, …); all where None.
        progress: called with a line of text before each family and with its error after.

    Raises:
        InvalidValueError: no table, or one with bad columns, units, values or too few rows.
        UnknownKeyError: an unknown hardware, stack, family or dtype.
    """
    known_families(families)
    if table is not None and families is not None and set(families) != {"gemm"}:
        raise InvalidValueError(
            f"a table of your own holds GEMMs, got families {', '.join(families)}; leave them out, or say gemm"
        )
    if not _NAME.match(stack):
        raise InvalidValueError(
            f"a stack's name has letters, digits, '.', '-' and '_' only (it names the profile), got {stack[:40]!r}"
        )
    say = progress or (lambda text: None)
    tables = open_tables(hardware, stack, table)
    chosen = ("gemm",) if table is not None else (tuple(families) if families is not None else None)
    results: list[FamilyResult] = []
    modules = plugins(chosen)
    for place, (name, module) in enumerate(modules, 1):
        say(f"{place}/{len(modules)} fitting {name}")
        found = fit_of(module)(tables)
        for one in found:
            error = f"held-out median {one.held_out['median']:.1%}" if "median" in one.held_out else "no held-out rows"
            say(f"{place}/{len(modules)} {one.family} {one.format}: {error}")
        results += found
    if not results:
        raise InvalidValueError(f"the tables of {hardware}/{stack} hold no kernel family to fit")
    provenance: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    if table is None:
        try:
            provenance["tables"] = f"aiconfigurator-core {version('aiconfigurator-core')} (Apache-2.0), NVIDIA"
        except PackageNotFoundError:
            provenance["tables"] = "aiconfigurator-core (Apache-2.0), NVIDIA"
    else:
        provenance["tables"] = Path(table).name
    provenance["split"] = SPLIT
    return CalibrationResult(tables.hardware.name, stack, tuple(results), provenance)


def known_families(families: Sequence[str] | None) -> None:
    """Refuse names that are no family module.

    Raises:
        UnknownKeyError: one is not.
    """
    for name in families or ():
        if name not in PLUGINS:
            raise UnknownKeyError(f"unknown kernel family '{name[:60]}'{did_you_mean(name, PLUGINS)}")


def write_profile(result: CalibrationResult, path: str | Path, *, keep: bool = False) -> Path:
    """Write a profile file: checked first, written aside, then renamed, so that a reader never sees half of it.

    Args:
        result: what was fitted.
        path: the file.
        keep: keep the (family, format) tables of an existing file that ``result`` does not replace.

    Raises:
        InvalidValueError: the folder cannot be written, or the result is not a valid profile.
    """
    target = Path(path)
    table = result.as_table()
    if keep and target.is_file():
        old = read_toml(target)
        for family in FAMILIES:  # families and formats in one order, whatever is fitted again
            merged = {**old.get(family, {}), **table.pop(family, {})}
            if merged:
                table[family] = {name: merged[name] for name in sorted(merged)}
    parse_profile(table, str(target))
    text = profile_toml(table)
    aside: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False, encoding="utf-8") as handle:
            aside = Path(handle.name)
            handle.write(text)
        os.chmod(handle.name, 0o644)
        os.replace(handle.name, target)
    except OSError as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
        raise InvalidValueError(f"{target}: cannot be written ({error.strerror}); give a folder that exists") from None
    return target


def validate(
    hardware: str | None = None,
    stack: str | None = None,
    families: Sequence[str] | None = None,
    *,
    on: str | None = None,
    version: str | None = None,
) -> list[dict[str, Any]]:
    """Error table of the shipped profiles against the measured tables, held-out rows only.

    Args:
        hardware: only profiles of this hardware.
        stack: only this serving stack.
        families: only these family modules.
        on: measure on another GPU's tables, with that GPU's datasheet in place of the profile's own (transfer: nothing
            of those tables was fitted).
        version: measure on the tables of this version of the stack (or of NCCL) instead of the newest.

    Raises:
        InvalidValueError: no table of ``version``; no shipped profile matches; or the measured tables are not installed.
    """
    rows: list[ValidationRow] = []
    known_families(families)
    names = [
        name
        for name in profile_names()
        if (profile := load_profile(name)).stack in STACKS
        and hardware in (None, profile.hardware.name)
        and stack in (None, profile.stack)
    ]
    if not names:
        raise InvalidValueError(
            f"no fitted profile for hardware={hardware or 'any'}, stack={stack or 'any'}; fitted ones: "
            + ", ".join(n for n in profile_names() if load_profile(n).stack in STACKS)
        )
    for name in names:
        profile = load_profile(name, hardware=on)
        tables = replace(open_tables(profile.hardware.name, profile.stack), version=version)
        for _, module in plugins(tuple(families) if families is not None else None):
            rows += validate_of(module)(tables, profile)
    if version is not None and not rows:
        raise InvalidValueError(f"no measured table of version '{version[:40]}' for {', '.join(names)}; leave --version out")
    return [row.as_dict() for row in rows]
