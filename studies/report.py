"""One self-contained page about a result: the answer first, then the evidence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..costmodel import ShapefrontError
from .files import prepare_folder, write_whole
from .reporting.page import guidelines_section, page
from .result import Result
from .show import has_experts


def report_html(result: Result, *, guidelines: bool = True) -> str:
    """The page as text.

    Args:
        result: what a study found.
        guidelines: hold the first ranked design against the seven guidelines (prices its neighbours; a second or two).
    """
    from ..constraints.laws import CAVEATS

    section = _guidelines(result) if guidelines and result.ranked_rows else ""
    caveats = [text for text in CAVEATS if "MoE" not in text or has_experts(result)]
    return page(result, guidelines=section, provenance=_provenance(result), caveats=caveats)


def write_report(result: Result, path: str | Path, *, guidelines: bool = True) -> Path:
    """Write :func:`report_html` to ``path``.

    Raises:
        OutputError: the file cannot be written.
    """
    target = Path(path)
    prepare_folder(target.parent)
    write_whole(target, report_html(result, guidelines=guidelines))
    return target


def _guidelines(result: Result) -> str:
    from .check import check, finding_dict
    from .export import design_formats
    from .study import Study

    row = result.ranked_rows[0]
    name = row["architecture_id"]
    try:
        setup = Study.from_dict(result.spec).problem().setup.with_(formats=design_formats(result, row))
        found = check(result.architecture(name), setup=setup)
    except ShapefrontError as error:  # the page is about the result; a check that cannot be made is said, not raised
        return guidelines_section(f"{name} (not checked: {error})", [])
    return guidelines_section(name, [finding_dict(finding) for finding in found.findings])


def _provenance(result: Result) -> dict[str, str]:
    settings: Mapping[str, Any] = result.data.get("settings", {})
    facts = {"profile": str(settings.get("profile", "?")), "hardware": str(settings.get("hardware", "?"))}
    try:
        facts |= _profile_facts(str(settings.get("profile")))
    except ShapefrontError as error:
        facts["profile data"] = f"not available here ({error})"
    unused = () if has_experts(result) else ("experts", "router")
    formats = ", ".join(f"{name} {value}" for name, value in settings.get("formats", {}).items() if name not in unused)
    facts |= {"workload": str(settings.get("workload_text", "?")), "number formats": formats}
    if settings.get("train_tokens"):
        facts["training tokens of the quality laws"] = f"{settings['train_tokens']:.3g}"
    packages = ", ".join(f"{name} {version(name)}" for name in ("shapefront", "optuna", "numpy"))
    return facts | {"page written by": f"{packages}, Python {sys.version.split()[0]}"}


def _profile_facts(name: str) -> dict[str, str]:
    from ..costmodel import load_profile

    profile = load_profile(name)
    fits = [(family, fmt, fit) for family, formats in profile.families.items() for fmt, fit in formats.items()]
    errors = [f"{family} {fmt} {fit.held_out['median']:.1%}" for family, fmt, fit in fits if "median" in fit.held_out]
    return {
        "profile title": profile.title,
        "profile status": ", ".join(sorted({fit.status for _, _, fit in fits})) or "datasheet",
        "held-out median error": ", ".join(errors) or "none stated: nothing in this profile was fitted to measurements",
    }
