"""``shapefront calibrate``: fit a kernel profile to measured tables, print what was found, write it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...costmodel.calibration import CalibrationResult, FamilyResult, write_profile
from ...costmodel.calibration import calibrate as fit_profile
from ...costmodel.errors import InvalidValueError
from ..output import number, print_json, print_table
from .serving_views import percent

CONFIDENCE = 1.96  # standard errors on either side of a 95 % interval
_FIGURES = ("rows", "median", "p90", "bias", "spearman")


def calibrate(
    hardware: Annotated[str, typer.Option(help="GPU whose datasheet and tables are used, e.g. gb300.")],
    stack: Annotated[str, typer.Option(help="Serving stack: trtllm, sglang, vllm; with --table any name of your own.")],
    out: Annotated[Path | None, typer.Option(help="Profile to write (.toml); <hardware>-<stack>.toml here unless given.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Your own CSV or parquet of GEMMs: columns m, n, k, dtype, latency (ms).")
    ] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this kernel family (repeatable).")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the families of an existing --out that are not fitted now.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit every kernel family that the measured tables hold; whole shapes stay unseen and give the held-out error."""
    out = out or Path(f"{hardware}-{stack}.toml")
    if out.suffix != ".toml":
        raise InvalidValueError(f"--out must end in .toml, got '{str(out)[:80]}'")
    if not out.parent.is_dir():
        raise InvalidValueError(f"{out.parent}: no such folder; create it, or give another --out")
    started = time.monotonic()

    def progress(text: str) -> None:
        if not json:
            print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    result = fit_profile(hardware, stack, table, family or None, progress=progress)
    write_profile(result, out, keep=keep)
    if json:
        print_json(as_json(result, out))
        return
    for found in result.families:
        print_family(found)
    typer.echo("\n± is 1.96 standard errors; '?': wider than the number itself, not identified; 'bound': at the end of its range")
    print_errors(result)
    typer.echo(f"wrote {out} ({len(result.families)} entries, {time.monotonic() - started:.0f} s)")
    typer.echo(f"price with it: --profile {out}; its error again: shapefront profiles {out}")


def as_json(result: CalibrationResult, out: Path) -> dict[str, Any]:
    """The result with one entry per family and format; intervals are 95 %, errors are fractions."""
    rows = [
        {
            "family": f.family,
            "format": f.format,
            "status": f.status,
            "source": f.source,
            "parameters": dict(f.parameters),
            "interval_95": {name: interval(f, name) for name in f.standard_errors if name in f.parameters},
            "fit": dict(f.fit),
            "held_out": dict(f.held_out),
            "pairs": dict(f.pairs),
            "valid": {name: list(limits) for name, limits in f.valid.items()},
            "note": f.note,
        }
        for f in result.families
    ]
    return {"name": result.name, "profile": str(out), "provenance": dict(result.provenance), "rows": rows}


def interval(found: FamilyResult, name: str) -> Any:
    """95 % interval of a fitted number (or of each of a list): value ± 1.96 standard errors, not below zero."""
    value, spread = found.parameters[name], found.standard_errors[name]
    if isinstance(value, list) and isinstance(spread, list):
        return [_around(v, s) for v, s in zip(value, spread, strict=True)]
    return _around(float(value), float(spread))


def _around(value: float, spread: float) -> list[float]:
    return [max(0.0, value - CONFIDENCE * spread), value + CONFIDENCE * spread]


def print_family(found: FamilyResult) -> None:
    """Parameters of one family and format with their confidence, and where the fit stops."""
    rows = [[name, _words(value), _confidence(found, name)] for name, value in found.parameters.items()]
    title = f"\n{found.family} {found.format} ({found.status}): {found.source}"
    print_table(["parameter", "value", "± (95 %)"], rows, title=title)
    if found.valid:
        limits = ", ".join(f"{name} {number(low)} to {number(high)}" for name, (low, high) in found.valid.items())
        typer.echo(f"  fitted over {limits}; outside, the form extrapolates")
    if found.note:
        typer.echo(f"  note: {found.note}")


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_words(v) for v in value)
    return f"{float(value):.3g}"


def _confidence(found: FamilyResult, name: str) -> str:
    """The half-width of the 95 % interval; or that the number was chosen, stands at its bound, or (``?``) is not identified."""
    if name not in found.standard_errors:
        return "chosen"
    value, spread = found.parameters[name], found.standard_errors[name]
    pairs = zip(value, spread, strict=True) if isinstance(value, list) and isinstance(spread, list) else [(value, spread)]
    words = []
    for v, s in pairs:
        words.append("bound" if s < 1e-6 * abs(v) else f"{CONFIDENCE * s:.2g}" + "?" * (CONFIDENCE * s > abs(v)))
    return ", ".join(words)


def print_errors(result: CalibrationResult) -> None:
    """Errors on fitted and on held-out rows, side by side."""

    def cells(part: Mapping[str, float]) -> list[Any]:
        figures = {name: part.get(name) for name in _FIGURES}
        return [figures["rows"], *(percent(figures[n]) for n in ("median", "p90", "bias")), figures["spearman"]]

    columns = ["fit rows", "median %", "p90 %", "held-out rows", "median %", "p90 %", "bias %", "Spearman"]
    rows = [[f.family, f.format, *cells(f.fit)[:3], *cells(f.held_out)] for f in result.families]
    print_table(["family", "format", *columns], rows, title="\nerror on fitted rows, and on whole shapes that the fit never saw")
    for f in result.families:
        if f.pairs:
            typer.echo(
                f"{f.family} {f.format}, ratio of neighbouring held-out shapes: median {100 * f.pairs['median']:.1f} %, "
                f"p90 {100 * f.pairs['p90']:.1f} %"
                + (f", sign right {100 * f.pairs['sign']:.1f} % where they differ by 5 % or more" if "sign" in f.pairs else "")
            )
