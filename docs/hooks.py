"""MkDocs hook: comments in a page become tables of errors, computed when the page is built.

``<!-- errors: PROFILE -->`` held-out errors of a profile; ``<!-- serving errors -->`` of whole steps on measured systems;
``<!-- public figures -->`` against published figures.
"""

from __future__ import annotations

import re
from typing import Any

SERVING, FIGURES = "<!-- serving errors -->", "<!-- public figures -->"
PLACE = re.compile(r"<!-- errors: ([\w-]+) -->")


def errors_table(name: str) -> str:
    """Held-out errors of a profile as a Markdown table: family, format, rows, median and p90."""
    from shapefront.costmodel import load_profile

    lines = ["| kernel | format | rows | median | p90 | bias |", "|---|---|---|---|---|---|"]
    for family, fits in load_profile(name).families.items():
        for number_format, fit in fits.items():
            held = fit.held_out
            if "median" in held and (":" not in number_format):
                cells = [
                    family,
                    number_format,
                    f"{held.get('rows', 0):,.0f}",
                    *(f"{held[k]:.1%}" for k in ("median", "p90", "bias") if k in held),
                ]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def serving_table() -> str:
    """Errors of the time per output token, held out by configuration."""
    from shapefront.costmodel.calibration.serving import validate_serving

    lines = [
        "| mode | system | stack | model | format | rows | median | p90 | bias | roofline | AIConfigurator (rows) "
        "| kernels alone |",
        "|---" * 12 + "|",
    ]
    for row in validate_serving().table():
        peer = f"{row['aiconfigurator_median']:.1%} ({row['aiconfigurator_n']})" if row["aiconfigurator_n"] else "–"
        ours = (f"{row[name]:.1%}" for name in ("median", "p90", "bias", "roofline_median"))
        cells = [row["mode"], row["system"], row["stack"], row["model"].split("/")[-1], row["format"], row["n"], *ours, peer]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['kernels_median']:.1%}"])) + " |")
    return "\n".join(lines)


def figures_table() -> str:
    """Errors on public figures."""
    from shapefront.costmodel.calibration.serving_figures import figure_table, validate_figures

    lines = ["| quantity | system | stack | model | format | figures | median | bias | from | to |", "|---" * 10 + "|"]
    figures = validate_figures()[0]
    rows = figure_table(figures)
    for row in sorted(rows, key=lambda row: (row["kind"], row["system"], row["stack"], row["model"])):
        cells = [*(row[name] for name in ("kind", "system", "stack", "model", "format", "n"))]
        same = [f for f in figures if (f.kind, f.system, f.stack, f.model, f.format) == tuple(cells[:5])]
        errors = [f.predicted / f.published - 1 for f in same]
        shown = [f"{row['median']:.0%}", *(f"{x:+.0%}" for x in (row["bias"], min(errors), max(errors)))]
        lines.append("| " + " | ".join(map(str, [*cells, *shown])) + " |")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables."""
    for mark, table in ((SERVING, serving_table), (FIGURES, figures_table)):
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return PLACE.sub(lambda match: errors_table(match.group(1)), markdown)
