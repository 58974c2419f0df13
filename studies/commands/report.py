"""``shapefront report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import print_json
from ..report import write_report
from ..result import Result


def report(
    result: Annotated[Path, typer.Argument(help="Folder written by 'shapefront run', or its result.json.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write, or the folder of report.html; the result's folder if left out.")
    ] = None,
    guidelines: Annotated[bool, typer.Option(help="Hold the first design against the seven guidelines.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the file's name as JSON.")] = False,
) -> None:
    """Write a result as one self-contained page: the answer, the frontier, the tables, the caveats."""
    target = out or (result if result.is_dir() else result.parent)
    if target.is_dir() or not target.suffix:
        target = target / "report.html"
    target = write_report(Result.load(result), target, guidelines=guidelines)
    if json:
        print_json({"files": [target]})
    else:
        typer.echo(str(target))
