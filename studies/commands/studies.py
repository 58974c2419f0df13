"""``shapefront studies``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..output import count, print_json, print_table
from ..spec import study_schema
from ..spec_file import find_study, load_spec, spec_to_dict, study_names


def studies(
    name: Annotated[str | None, typer.Argument(help="Study to show: a built-in name or a .toml file.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a study file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in studies, show one with its number of legal architectures, or print the schema."""
    if schema:
        print_json(study_schema())
        return
    if name is None:
        specs = [load_spec(study) for study in study_names()]
        rows = [{"name": s.name, "title": s.title, "reference": s.reference, "dimensions": _searched(s)} for s in specs]
        if json:
            print_json(rows)
        else:
            table = [[r["name"], r["title"], r["reference"], ", ".join(r["dimensions"])] for r in rows]
            print_table(["name", "title", "reference", "searched dimensions"], table)
        return
    from ..study import Study

    study = Study.load(name)
    problem = study.problem()
    reference = problem.reference
    figures = {
        "name": study.spec.name,
        "title": study.spec.title,
        "legal_architectures": len(problem.table),
        "families": problem.table.counts,
        "layouts": len(problem.setup.layouts),
        "concurrencies": len(problem.setup.concurrency),
        "total_params": problem.budget.total_params,
        "active_params": problem.budget.active_params,
        "reference": {"name": reference.name, "total_params": reference.total_params, "active_params": reference.active_params},
        "bands": problem.rules.bands,
    }
    if json:
        print_json({**figures, "spec": spec_to_dict(study.spec)})
        return
    sys.stdout.write(find_study(name).read_text("utf-8"))
    families = ", ".join(f"{family} {n:,}" for family, n in problem.table.counts.items())
    print(
        f"\n# {len(problem.table):,} legal architectures ({families}), {figures['layouts']} layouts, "
        f"{figures['concurrencies']} concurrencies; "
        f"reference {reference.name}: {count(reference.total_params)} total, {count(reference.active_params)} active"
    )


def _searched(spec: object) -> list[str]:
    found: dict[str, None] = {}
    for source in (spec, *spec.families):  # type: ignore[attr-defined]
        found.update({name: None for name, values in source.dimensions.items() if len(values) > 1})
    return list(found)
