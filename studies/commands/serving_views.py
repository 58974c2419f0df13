"""What ``shapefront validate --serving`` prints: the serving model against measured systems and public figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ...costmodel.calibration.serving import ServingReport, validate_serving
from ...costmodel.calibration.serving_figures import figure_table, validate_figures
from ...costmodel.calibration.serving_rows import aiconfigurator_sample, read_rows
from ..output import print_json, print_table

INSTALLED = "aiconfigurator"


def percent(value: float | None) -> float | None:
    """A fraction as a percentage; ``None`` where there is none."""
    return None if value is None or value != value else 100 * value


def print_serving(rows: Path | None = None, figures: Path | None = None, *, json: bool = False, each: bool = False) -> None:
    """Predict measured rows and public figures and print the errors.

    Args:
        rows: CSV of measured rows; ``None`` = those that come with the package; ``aiconfigurator`` = the same rows from the
            installed package's sample.
        figures: CSV of public figures; ``None`` = those that come with the package.
        json: print JSON.
        each: print every row with its breakdown.
    """
    if rows is not None and str(rows) != INSTALLED:
        read_rows(rows)  # an unreadable file ends here, before the figures are priced
    found, left = validate_figures(figures)
    if str(rows) == INSTALLED:
        report = validate_serving(aiconfigurator_sample(), only=[row.id for row in read_rows()[0]])
    else:
        report = validate_serving(rows)
    if json:
        print_json(
            {
                "rows": report.table(),
                "measurements": report.rows(),
                "constants_seconds": dict(report.constants),
                "refused": dict(report.refused),
                "figures": figure_table(found),
                "figures_refused": left,
            }
        )
        return
    _print_table(report)
    if each:
        _print_rows(report)
    _print_figures(figure_table(found), left)


def _print_table(report: ServingReport) -> None:
    columns = ["system", "stack", "model", "format", "mode", "rows", "median %", "p90 %", "bias %", "Spearman"]
    columns += ["kernels alone %", "roofline %", "AIConfigurator rows", "its median %", "ours there %"]
    print_table(
        columns,
        [
            [
                *(r[k] for k in ("system", "stack", "model", "format", "mode", "n")),
                *(percent(r[k]) for k in ("median", "p90", "bias")),
                r["spearman"],
                percent(r["kernels_median"]),
                percent(r["roofline_median"]),
                r["aiconfigurator_n"],
                percent(r["aiconfigurator_median"]),
                percent(r["same_rows_median"]),
            ]
            for r in report.table()
        ],
        title="time per output token; one constant a stack and mode, its own configuration held out; roofline: two constants",
    )
    print_table(["refused row", "reason"], [[name, reason] for name, reason in report.refused.items()] or [["none", ""]])


def _print_rows(report: ServingReport) -> None:
    print_table(
        ["row", "layout", "batch", "measured ms", "predicted ms", "error %", "gemm", "attention", "comm.", "other", "prefill"],
        [
            [
                r["id"], r["layout"], r["running_batch"], 1e3 * r["measured_seconds"], 1e3 * r["predicted_seconds"],
                percent(r["error"]),
                *(1e3 * r["breakdown"].get(k, 0.0) for k in ("gemm", "attention", "communication", "other", "prefill")),
            ]
            for r in report.rows()
        ],
        title="every row; parts in ms, before the constant",
    )  # fmt: skip


def _print_figures(rows: list[dict[str, Any]], refused: dict[str, str]) -> None:
    print_table(
        ["system", "stack", "model", "format", "quantity", "figures", "median %", "p90 %", "bias %", "Spearman"],
        [
            [*(r[k] for k in ("system", "stack", "model", "format", "kind", "n")),
             *(percent(r[k]) for k in ("median", "p90", "bias")), r["spearman"]]
            for r in rows
        ],
        title="public figures, nothing fitted to them",
    )  # fmt: skip
    print_table(["figures refused", "reason"], [[count, reason] for reason, count in Counter(refused.values()).most_common()])
