"""``shapefront profiles``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ...costmodel import load_profile, profile_names
from ..output import print_json, print_table


def profiles(
    name: Annotated[str | None, typer.Argument(help="Profile to show in full: a built-in name or a .toml file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List kernel profiles, or show one: what each kernel family was fitted on, its error and its range."""
    if name is None:
        found = [load_profile(profile) for profile in profile_names()]
        if json:
            print_json(
                [
                    {
                        "name": p.name,
                        "title": p.title,
                        "hardware": p.hardware.name,
                        "stack": p.stack,
                        "families": [f for f, fits in p.families.items() if fits],
                    }
                    for p in found
                ]
            )
            return
        print_table(
            ["name", "hardware", "stack", "fitted families", "title"],
            [
                [
                    p.name,
                    p.hardware.name,
                    p.stack,
                    ", ".join(f for f, fits in p.families.items() if fits) or "none (roofline)",
                    p.title,
                ]
                for p in found
            ],
        )
        return
    profile = load_profile(name)
    if json:
        families = {family: dict(fits) for family, fits in profile.families.items()}
        print_json(
            {"name": profile.name, "title": profile.title, "hardware": profile.hardware.name, "stack": profile.stack}
            | {"provenance": dict(profile.provenance), "families": families}
        )
        return
    rows = []
    for family, fits in profile.families.items():
        for number_format, fit in fits.items():
            rows.append([family, number_format, fit.status, *(_percent(at) for at in (fit.fit, fit.held_out)), fit.source])
    print_table(
        ["family", "format", "status", "fit median error %", "held-out median error %", "source"],
        rows,
        title=f"{profile.name}: {profile.title}",
    )


def _percent(errors: Mapping[str, Any]) -> float | None:
    median = errors.get("median")
    return None if median is None else 100 * float(median)
