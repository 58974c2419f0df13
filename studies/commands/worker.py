"""``shapefront worker``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ...costmodel import InvalidValueError
from ..collect import collect
from ..interrupts import Interrupts
from ..output import print_json
from ..show import show_result
from ..study import Study
from ..user_output import Output
from ..worker import Worker, summary
from ..worker_storage import HEARTBEAT_SECONDS


def worker(
    storage: Annotated[str, typer.Option(help="postgresql://USER@HOST/DATABASE, shared by all workers.")],
    study: Annotated[str, typer.Option(help="Name of the study in the storage.")],
    spec: Annotated[
        str | None, typer.Option(help="Study (built-in name or .toml file) to create it from where it does not exist.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Stop after this many of the worker's own; default: when the study has all.")
    ] = None,
    heartbeat: Annotated[
        int, typer.Option(help="Seconds between heartbeats; a trial is requeued after three missed ones.")
    ] = HEARTBEAT_SECONDS,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the study's own Python functions run.")] = False,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="Work on although the file of a user function changed.")
    ] = False,
    collect_: Annotated[bool, typer.Option("--collect", help="Do no work: rank what the workers completed so far.")] = False,
    out: Annotated[Path | None, typer.Option(help="With --collect: folder of the results.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line per trial.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Join a study on a shared PostgreSQL storage and work on its trials."""
    if collect_:
        result = collect(storage, study, out=out)
        if json:
            print_json(result.to_json())
        else:
            show_result(result, out)
        return
    if out is not None:
        raise InvalidValueError("--out goes with --collect: workers write to the storage only")
    if trials is not None and trials < 1:
        raise InvalidValueError(f"trials must be at least 1, got {trials}")
    interrupts, output = Interrupts(), Output()
    output.to(lambda name, text: None if quiet else print(f"{name}: {text}", file=sys.stderr))
    joined = Worker(
        storage,
        study,
        study=Study.load(spec) if spec else None,
        allow_code=allow_code,
        heartbeat=heartbeat,
        interrupts=interrupts,
        accept_changed_code=accept_changed_code,
        output=output,
    )
    with closing(joined), interrupts.listening():
        report = joined.run(
            trials,
            None
            if quiet
            else lambda t: print(
                f"trial {t.number} {t.state.name.lower()} {t.values or t.user_attrs.get('error')}", file=sys.stderr
            ),
        )
    if json:
        print_json(summary(report))
    else:
        states = ", ".join(f"{count} {state}" for state, count in sorted(report.totals.items()))
        print(f"this worker: {report.done} done, {report.failed} failed, {report.lost} requeued by others; the study: {states}")
        for text, number in report.causes:
            print(f"failed: {number} x {text}")
    if interrupts.asked:
        raise typer.Exit(130)
