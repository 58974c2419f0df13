"""What a calibration family hands back, and the registry of families.

A family module offers two functions; :func:`.calibrate` and :func:`.validate` call them for every module of ``PLUGINS``::

    def fit(tables: MeasuredTables) -> list[FamilyResult]
    def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]

Both return an empty list where the tables hold nothing for the family.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ..profile import KernelProfile
    from .tables import MeasuredTables

PLUGINS = ("gemm", "bmm", "attention", "mla", "moe", "collectives", "elementwise")


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """The fit of one kernel family at one number format: one table of the profile file.

    Attributes:
        family: a name of :data:`..profile.FAMILIES`.
        format: number format, or ``default`` for a family without formats.
        parameters: name -> number or list of numbers (SI units), as the kernel module reads them.
        source: table, version and row counts in words.
        standard_errors: name -> standard error of the fitted numbers.
        fit: error on fitted rows (fractions): ``rows median p90 bias spearman``.
        held_out: the same on rows the fit never saw.
        valid: dimension -> (low, high) of the fitted rows.
        pairs: error of predicted ratios of neighbouring held-out shapes, may be empty.
        note: what a reader must know (excluded rows, switches).
        status: provenance of the numbers.
    """

    family: str
    format: str
    parameters: Mapping[str, Any]
    source: str
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    fit: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    pairs: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    status: str = "fitted"


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One line of the error table, on held-out rows; errors are fractions.

    Attributes:
        family: kernel family.
        format: number format (or a variant, e.g. ``fp8 window``).
        stack: serving stack.
        n: rows counted.
        median: median absolute relative error.
        p90: its 90th percentile.
        bias: median signed relative error.
        spearman: rank correlation of predicted and measured time.
        roofline_median: median absolute relative error of the pure roofline on the same rows.
        three_number_median: the same for compute efficiency, bandwidth efficiency and fixed time, fitted on the fit rows.
        excluded: rows left out, see ``note``.
        hardware: hardware name.
        note: why rows were left out.
    """

    family: str
    format: str
    stack: str
    n: int
    median: float
    p90: float
    bias: float
    spearman: float
    roofline_median: float
    three_number_median: float
    excluded: int = 0
    hardware: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row as a plain dict, keys as in the JSON output; figures without rows are None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}


def plugins(families: tuple[str, ...] | None = None) -> list[tuple[str, Any]]:
    """(name, module) of the family modules that exist, optionally only those named."""
    found = []
    for name in PLUGINS:
        if families is not None and name not in families:
            continue
        if importlib.util.find_spec(f"{__package__}.{name}") is not None:
            found.append((name, importlib.import_module(f"{__package__}.{name}")))
    return found


def fit_of(module: Any) -> Callable[[MeasuredTables], list[FamilyResult]]:
    """The module's ``fit``."""
    return cast("Callable[[MeasuredTables], list[FamilyResult]]", module.fit)


def validate_of(module: Any) -> Callable[[MeasuredTables, KernelProfile], list[ValidationRow]]:
    """The module's ``validate``."""
    return cast("Callable[[MeasuredTables, KernelProfile], list[ValidationRow]]", module.validate)
