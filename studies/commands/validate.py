"""``shapefront validate``: the error of kernels and of whole serving steps against measured tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...costmodel.calibration import validate as validate_kernels
from ...costmodel.errors import InvalidValueError
from ..output import print_json, print_table
from .serving_views import percent, print_serving


def validate(
    serving: Annotated[bool, typer.Option("--serving", help="Whole steps against measured systems and public figures.")] = False,
    hardware: Annotated[str | None, typer.Option(help="Only profiles of this GPU (kernels).")] = None,
    stack: Annotated[str | None, typer.Option(help="Only this serving stack: trtllm, sglang, vllm (kernels).")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this kernel family (repeatable).")] = None,
    on: Annotated[str | None, typer.Option(help="Measure on another GPU's tables: what a transfer costs (kernels).")] = None,
    version: Annotated[
        str | None, typer.Option(help="Measure on this version of the stack's tables, not the newest (kernels).")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="CSV of measured serving rows, or 'aiconfigurator' for the installed package's own.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="CSV of public figures instead of the bundled ones.")] = None,
    each: Annotated[bool, typer.Option("--each", help="With --serving: every row with its breakdown.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the cost model's error: median, 90th percentile, bias and rank correlation, on rows no fit saw."""
    if serving:
        if hardware or stack or family or on or version:
            raise InvalidValueError(
                "--serving takes --rows and --figures; --hardware, --stack, --family, --on, --version are for kernels"
            )
        print_serving(rows, figures, json=json, each=each)
        return
    if rows or figures or each:
        raise InvalidValueError("--rows, --figures and --each belong to --serving; add it, or leave them out")
    found = validate_kernels(hardware, stack, family or None, on=on, version=version)
    if json:
        print_json({"rows": found})
        return
    names = ("hardware", "stack", "family", "format", "n", "excluded")
    print_table(
        [
            "hardware",
            "stack",
            "family",
            "format",
            "rows",
            "rows excluded",
            "median %",
            "p90 %",
            "bias %",
            "Spearman",
            "roofline %",
            "three numbers %",
        ],
        [
            [
                *(row[name] for name in names),
                *(percent(row[name]) for name in ("median", "p90", "bias")),
                row["spearman"],
                percent(row["roofline_median"]),
                percent(row["three_number_median"]),
            ]
            for row in found
        ],
        title="error of the predicted kernel time, % of the measured one, on rows no fit saw; beside it, on the same rows, "
        "the plain roofline and a fit of three numbers (their medians)",
    )
    for row in found:
        if row["note"]:
            typer.echo(f"{row['hardware']} {row['stack']} {row['family']} {row['format']}: {row['note']}")
