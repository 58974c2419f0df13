"""``shapefront run``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..output import print_json
from ..show import show_result
from ..study import DEFAULT_STUDY, Study
from ..user_objective import UserCodeError


def run(
    study: Annotated[str, typer.Argument(help="Built-in study (see 'shapefront studies') or a .toml file.")] = DEFAULT_STUDY,
    trials: Annotated[
        int | None, typer.Option(help="Designs to price before the polish; the study's own number if left out.")
    ] = None,
    polish: Annotated[
        bool | None,
        typer.Option(
            "--polish/--no-polish",
            help="After the trials, price every neighbour of the front until none is new. Calls user functions, too: often many "
            "times --trials. The study's own choice (yes) if left out.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same result.")] = None,
    engine: Annotated[str | None, typer.Option(help="optuna, or exhaustive to price every legal design.")] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Prove the front after the search.")] = False,
    certify_seconds: Annotated[float, typer.Option(help="Time for the proof; then it states the gap that is left.")] = math.inf,
    storage: Annotated[
        str | None, typer.Option(help="memory, journal, sqlite, a file, or postgresql://…; journal in --out if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard what the folder or storage holds of this study.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Local processes.")] = 1,
    dask: Annotated[str | None, typer.Option(help="Dask scheduler: tcp://host:port, or its --scheduler-file (….json).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; shapefront-results/STUDY if left out.")] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the study's own Python functions run.")] = False,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="Resume although the file of a user function changed.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="On resume, make failed calls of user functions again.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables.")] = False,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Progress as JSON lines on standard error.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Search the architectures of a study and write the ranked Pareto set.

    Writes pareto.csv, ranked.csv, result.json, study.toml, run.log, frontier.png and configs/rank-NN into the folder.
    Ctrl-C stops it with the results so far; --resume continues to the result of an uninterrupted run.
    """
    chosen = Study.load(study)
    folder = out if out is not None else Path("shapefront-results") / chosen.spec.name
    shown_again = (folder / "result.json").is_file() and not (resume or overwrite)
    result = chosen.run(
        trials=trials,
        polish=polish,
        seed=seed,
        engine=engine,
        out=folder,
        storage=storage,
        resume=resume,
        overwrite=overwrite,
        workers=workers,
        dask=dask,
        certify=certify,
        certify_seconds=certify_seconds,
        allow_code=allow_code,
        accept_changed_code=accept_changed_code,
        retry_failed=retry_failed,
        progress="json-lines" if json_lines else "quiet" if quiet or json else "bar",
    )
    if json:
        print_json(result.to_json())
    elif not quiet:
        show_result(result, folder)
        if shown_again:
            print("The folder held this study's finished result: shown again, nothing was searched (--overwrite starts anew).")
    if result.interrupted:
        print(f"shapefront: interrupted; results so far are in {folder}, continue with --resume", file=sys.stderr)
        raise typer.Exit(130)
    if result.data.get("failed_trials") and not result.data["legal_trials"]:
        cause = result.data["failures"][0]["cause"]
        raise UserCodeError(f"no legal design is left, {result.data['failed_trials']} failed: {cause}")
