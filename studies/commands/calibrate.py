"""``shapefront calibrate``: fit a kernel profile to measured tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...costmodel.calibration import calibrate as fit_profile
from ...costmodel.calibration import write_profile
from ...costmodel.errors import InvalidValueError
from ..output import print_json, print_table
from .serving_views import percent


def calibrate(
    hardware: Annotated[str, typer.Argument(help="GPU, like gb300 (shapefront hardware lists them).")],
    stack: Annotated[str, typer.Argument(help="Serving stack: trtllm, sglang, vllm; any name with --table.")],
    table: Annotated[Path | None, typer.Option(help="Your GEMMs: CSV or parquet with m, n, k, dtype, latency (ms).")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this kernel family (repeatable).")] = None,
    out: Annotated[Path | None, typer.Option(help="Profile file (.toml); default: <hardware>-<stack>.toml here.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the families of an existing file that are not fitted now.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit every kernel family that the measured tables hold and write the profile; whole shapes are held out."""
    target = out or Path(f"{hardware}-{stack}.toml")
    if target.suffix != ".toml":
        raise InvalidValueError(f"--out must end in .toml, got '{target}'")
    result = fit_profile(hardware, stack, table, family or None)
    write_profile(result, target, keep=keep)
    rows = [
        {
            "family": f.family,
            "format": f.format,
            "status": f.status,
            "n": f.fit.get("rows"),
            "median": f.fit.get("median"),
            "held_out_n": f.held_out.get("rows"),
            "held_out_median": f.held_out.get("median"),
            "held_out_p90": f.held_out.get("p90"),
            "source": f.source,
        }
        for f in result.families
    ]
    if json:
        print_json({"profile": str(target), "name": result.name, "rows": rows})
        return
    print_table(
        ["family", "format", "rows fitted", "median %", "rows held out", "median %", "p90 %"],
        [
            [r["family"], r["format"], r["n"], percent(r["median"]), r["held_out_n"], percent(r["held_out_median"]),
             percent(r["held_out_p90"])]
            for r in rows
        ],
        title=f"{result.name}: written to {target}; use it with --profile {target}",
    )  # fmt: skip
