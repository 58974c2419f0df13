"""``shapefront plot``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..output import print_json
from ..plot import KINDS, make_plot, subject_of


def plot(
    result: Annotated[str, typer.Argument(help="Folder written by 'shapefront run'; or a config.json or built-in model's name.")],
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS) + ".")] = "frontier",
    out: Annotated[
        Path | None, typer.Option(help="Picture (.png, .svg, .pdf); KIND.png in the result's folder if left out.")
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="Design of a result; the first ranked one if left out.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Known model to draw into the frontier (repeatable).")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Kernel profile; the result's own if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and draw nothing.")] = False,
) -> None:
    """Draw a result or a model; the numbers are written as CSV beside the picture."""
    subject = replace(subject_of(result, id=id, profile=profile), models=tuple(model or ()))
    picture = make_plot(subject, kind)
    if json:
        print_json({"kind": kind, "rows": list(picture.rows)})
        return
    for file in picture.save(out or (subject.folder or Path()) / f"{kind}.png"):
        typer.echo(str(file))
