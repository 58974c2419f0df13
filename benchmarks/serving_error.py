"""Error of the serving model on measured systems: ``python benchmarks/serving_error.py [--rows CSV] [--figures CSV] [--json]``.

One run, the same rows for all three: our kernel sum with one signed constant a stack (the row's own configuration held
out), a two-constant roofline held out alike, and AIConfigurator's answer where it gives one. Then what a transfer of the
constant costs (TP layouts → expert-parallel ones, GB200 → GB300), every row's breakdown, and public figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from shapefront.costmodel.calibration.serving import ServingReport, transfer, validate_serving
from shapefront.costmodel.calibration.serving_figures import figure_table, validate_figures
from shapefront.costmodel.calibration.serving_rows import ServingRow


def transfers(report: ServingReport) -> dict[str, dict[str, Any]]:
    """Constants from one kind of row, errors on another (disaggregated rows only)."""

    def decode_pool(test: Callable[[ServingRow], bool]) -> Callable[[ServingRow], bool]:
        return lambda row: row.mode == "disagg" and test(row)

    def system(name: str) -> Callable[[ServingRow], bool]:
        return decode_pool(lambda row: row.system == name)

    tp, dep = decode_pool(lambda row: row.layout.dpa == 1), decode_pool(lambda row: row.expert_parallel)
    return {
        "TP layouts to DEP": transfer(report, tp, dep),
        "GB200 to GB300": transfer(report, system("gb200"), system("gb300")),
        "GB300 to GB200": transfer(report, system("gb300"), system("gb200")),
    }


def percent(value: Any) -> str:
    """A fraction as a percentage; a dash where there is none."""
    return "–" if value is None or value != value else f"{100 * value:.1f}"


def show(report: ServingReport, worst: int) -> None:
    """Print the tables for people; errors in percent."""
    print("held out by configuration, %: ours median/p90 (bias) | kernels alone | two-constant roofline")
    print("  | AIConfigurator [ours on its rows]")
    for row in report.table():
        name = f"{row['system']:>6} {row['stack']:>7} {row['model'][-22:]:>22} {row['format']:>4} {row['mode']:>6}"
        print(
            f"{name} n={row['n']:>3}  {percent(row['median']):>5}/{percent(row['p90']):>5} ({percent(row['bias']):>5})"
            f" | {percent(row['kernels_median']):>5} | {percent(row['roofline_median']):>5}/{percent(row['roofline_p90']):>5}"
            f" | n={row['aiconfigurator_n']:>3} {percent(row['aiconfigurator_median']):>5}/"
            f"{percent(row['aiconfigurator_p90']):>5} [{percent(row['same_rows_median'])}/{percent(row['same_rows_p90'])}]"
        )
    print("\nconstant a stack and mode, ms:", {stack: round(1e3 * c, 2) for stack, c in report.constants.items()})
    for name, row in transfers(report).items():
        print(f"{name}: n={row['n']} median {percent(row['median'])} p90 {percent(row['p90'])} bias {percent(row['bias'])}")
    print(f"\nrefused: {dict(report.refused) or 'none'}")
    print(f"\nlargest {worst} errors (predicted/measured ms; gemm attention communication other [prefill] ms):")
    for row in sorted(report.rows(), key=lambda r: -abs(r["error"]))[:worst]:
        parts = " ".join(f"{1e3 * v:.2f}" for v in row["breakdown"].values())
        times = f"{1e3 * row['predicted_seconds']:>7.2f}/{1e3 * row['measured_seconds']:<7.2f}"
        print(f"  {percent(row['error']):>6} {times} {parts}  {row['id']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="CSV of measured rows (default: those that come with the package)")
    parser.add_argument("--figures", help="CSV of public figures (default: those that come with the package)")
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = validate_serving(options.rows)
    figures, refused = validate_figures(options.figures)
    if options.json:
        found = {
            "table": report.table(),
            "rows": report.rows(),
            "constants_seconds": dict(report.constants),
            "transfers": transfers(report),
            "refused": dict(report.refused),
            "figures": figure_table(figures),
            "figures_refused": refused,
        }
        print(json.dumps(found, indent=2))
        return
    show(report, options.worst)
    print(f"\npublic figures: {len(figures)} compared, {len(refused)} refused")
    for row in figure_table(figures):
        name = f"{row['system']:>6} {row['stack']:>7} {row['model'][:22]:>22} {row['format'][:20]:>20} {row['kind']:>9}"
        errors = f"median {percent(row['median']):>6} p90 {percent(row['p90']):>6} bias {percent(row['bias']):>6}"
        print(f"{name} n={row['n']:>2} {errors} spearman {row['spearman']:.2f}")
    reasons: dict[str, int] = {}
    for reason in refused.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count:>3} refused: {reason}")


if __name__ == "__main__":
    main()
