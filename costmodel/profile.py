"""Kernel profiles: the numbers of one (hardware, serving stack) pair, with what they were fitted on.

A profile file holds one table per kernel family and number format::

    [gemm.nvfp4]
    status = "fitted"                      # datasheet / measured / fitted / inferred
    source = "what the numbers were fitted on"
    parameters = {launch_seconds = 4.0e-6, ...}
    fit = {rows = 1200, median = 0.061, p90 = 0.17}          # optional, fractions
    held_out = {rows = 900, median = 0.066, p90 = 0.18}      # optional, never mixed with fit
    valid = {m = [1, 32768], n = [128, 65536]}               # optional: the range the fit saw

The kernel modules give each family's parameters neutral defaults, so that an empty ``parameters`` table is the
pure roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import InvalidValueError, UnknownKeyError, check_keys, did_you_mean, shown
from .hardware import STATUSES, Hardware, data_directory, load_hardware, read_toml

DEFAULT_PROFILE = "gb300-trtllm"  # of every command, study and function that names none
FAMILIES = (
    "gemm",
    "bmm",
    "attention_prefill",
    "attention_decode",
    "mla_prefill",
    "mla_decode",
    "moe",
    "all_reduce",
    "collective",
    "all_to_all",
    "elementwise",
    "step",
)
_MAX_NUMBER = 1e30  # beyond any quantity in SI units
_TOP_KEYS = ("name", "title", "hardware", "stack", "provenance", *FAMILIES)
_FIT_KEYS = ("status", "source", "parameters", "standard_errors", "fit", "held_out", "valid", "pairs", "note")


@dataclass(frozen=True)
class FamilyFit:
    """Parameters of one kernel family at one format, with their provenance.

    Attributes:
        parameters: name → number (or list of numbers), SI units.
        source: what the numbers come from.
        status: datasheet, measured, fitted or inferred.
        fit: error on the rows that were fitted (fractions), may be empty.
        held_out: error on rows the fit never saw (fractions), may be empty.
        valid: dimension → (low, high) the fit saw, may be empty.
        pairs: error of the predicted ratio of neighbouring shapes (fractions), may be empty.
    """

    parameters: Mapping[str, Any]
    source: str
    status: str
    fit: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    pairs: Mapping[str, float] = field(default_factory=dict)
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, eq=False)
class KernelProfile:
    """Everything fitted for one (hardware, serving stack); compared and hashed by identity (see ``load_profile``).

    Attributes:
        name: short name, e.g. ``gb300-trtllm``.
        title: one line for people.
        hardware: the GPU the numbers belong to.
        stack: serving stack (``ideal``, ``blog``, ``trtllm``, ``sglang``, ``vllm``, …).
        provenance: free-form facts: versions, dates, row counts.
        families: family → format → fit.
    """

    name: str
    title: str
    hardware: Hardware
    stack: str
    provenance: Mapping[str, Any]
    families: Mapping[str, Mapping[str, FamilyFit]]

    def family(self, family: str, number_format: str = "default") -> FamilyFit:
        """The fit of ``family`` at ``number_format``.

        Falls back to another format with the same tensor-core rate, then to ``default``, then to the pure
        roofline (no parameters), so that every profile prices every kernel.

        Raises:
            UnknownKeyError: ``family`` is not one of :data:`FAMILIES`.
        """
        if family not in FAMILIES:
            raise UnknownKeyError(f"unknown kernel family '{family}'{did_you_mean(family, FAMILIES)}")
        fits = self.families.get(family, {})
        if number_format in fits:
            return fits[number_format]
        if number_format != "default":
            math_format = _math_of(number_format, self.hardware)
            for name, fit in fits.items():
                if _math_of(name, self.hardware) == math_format:
                    return fit
        return fits.get("default", _ROOFLINE)


_ROOFLINE = FamilyFit(MappingProxyType({}), "pure roofline, nothing fitted", "datasheet")


def _math_of(name: str, hardware: Hardware) -> str:
    try:
        return hardware.number_format(name).math
    except UnknownKeyError:
        return name


def parse_profile(table: Mapping[str, Any], where: str, *, hardware: str | Hardware | None = None) -> KernelProfile:
    """Build a profile from a parsed TOML table.

    Args:
        table: the parsed file.
        where: file name for messages.
        hardware: replaces the file's hardware (to carry kernel numbers to another GPU's datasheet).

    Raises:
        UnknownKeyError: unknown or missing keys.
        InvalidValueError: a parameter is not a finite number, or a fit lacks source or status.
    """
    check_keys(table, _TOP_KEYS, where, required=("name", "hardware"))
    families: dict[str, Mapping[str, FamilyFit]] = {}
    for family in FAMILIES:
        fits: dict[str, FamilyFit] = {}
        for number_format, entry in _table(table.get(family, {}), f"{where}: [{family}]").items():
            place = f"{where}: [{family}.{number_format}]"
            entry = _table(entry, place)
            check_keys(entry, _FIT_KEYS, place, required=("status", "source", "parameters"))
            if entry["status"] not in STATUSES:
                raise InvalidValueError(f"{place}: status must be one of {', '.join(STATUSES)}, got {entry['status']!r:.40}")
            if not isinstance(entry["source"], str) or not entry["source"].strip():
                raise InvalidValueError(f"{place}: source must name where the numbers come from")
            numbers = {
                key: MappingProxyType(_table(entry.get(key, {}), f"{place}: {key}"))
                for key in ("parameters", "standard_errors", "fit", "held_out", "pairs")
            }
            for key, part in numbers.items():
                for name, value in part.items():
                    _check_number(value, f"{place}: {key}.{name}")
                    if isinstance(value, list) and key == "parameters" and not _takes_lists(family, name):
                        raise InvalidValueError(f"{place}: {key}.{name} must be one number, got a list")
            valid = {k: _bounds(v, f"{place}: valid.{k}") for k, v in _table(entry.get("valid", {}), f"{place}: valid").items()}
            fits[number_format] = FamilyFit(
                source=entry["source"], status=entry["status"], valid=valid, note=str(entry.get("note", "")), **numbers
            )
        families[family] = MappingProxyType(fits)
    return KernelProfile(
        name=str(table["name"]),
        title=str(table.get("title", table["name"])),
        hardware=load_hardware(hardware if hardware is not None else str(table["hardware"])),
        stack=str(table.get("stack", "unknown")),
        provenance=MappingProxyType(_table(table.get("provenance", {}), f"{where}: [provenance]")),
        families=MappingProxyType(families),
    )


def _table(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"{place} must be a table, got {value!r:.60}")
    return value


def _check_number(value: Any, place: str) -> None:
    if value == []:
        raise InvalidValueError(f"{place} must hold a number, got an empty list")
    for number in value if isinstance(value, list) else [value]:
        # abs first: an integer too long for a float is refused, not converted
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= _MAX_NUMBER:
            raise InvalidValueError(f"{place} must be a finite number of at most {_MAX_NUMBER:g}, got {number!r:.60}")


def _takes_lists(family: str, name: str) -> bool:
    """Whether a parameter may be a list: the kernel menu of GEMMs, numbers by head size or by segment elsewhere."""
    return name.startswith("menu_") if family in ("gemm", "bmm") else family not in ("moe", "elementwise", "step")


def _bounds(value: Any, place: str) -> tuple[float, float]:
    """``[low, high]`` as a pair."""
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValueError(f"{place} must be [low, high], got {value!r:.60}")
    _check_number(value, place)
    if value[0] > value[1]:
        raise InvalidValueError(f"{place}: low must be at most high, got {value!r:.60}")
    return float(value[0]), float(value[1])


def profile_names() -> list[str]:
    """Names of the built-in profiles."""
    return sorted(path.stem for path in data_directory("profiles").glob("*.toml"))


def load_profile(name: str | Path | KernelProfile, *, hardware: str | None = None) -> KernelProfile:
    """Return a profile by built-in name or from a user's file (a path ending in ``.toml``).

    Args:
        name: ``ideal``, ``gb300-blog``, …, a path, or a profile (returned as it is).
        hardware: price the same kernel numbers with another GPU's datasheet (``ideal`` on ``h100``).

    Raises:
        UnknownKeyError: no such built-in.
        InvalidValueError: the file breaks a rule.
    """
    if isinstance(name, KernelProfile):
        return name
    if not isinstance(name, str | Path) or not isinstance(hardware, str | None):
        raise InvalidValueError(f"profile and hardware must be names or files, got {shown(name)} and {shown(hardware)}")
    return _load_profile(str(name), hardware)


@lru_cache(maxsize=64)
def _load_profile(name: str, hardware: str | None) -> KernelProfile:
    if name.endswith(".toml"):
        return parse_profile(read_toml(Path(name)), name, hardware=hardware)
    if name not in profile_names():
        raise UnknownKeyError(
            f"unknown profile '{name[:80]}'{did_you_mean(name, profile_names())}; a file of your own must end in .toml"
        )
    return parse_profile(read_toml(data_directory("profiles") / f"{name}.toml"), name, hardware=hardware)
