"""MkDocs hook: ``<!-- errors: PROFILE -->`` in a page becomes the table of that profile's held-out errors."""

from __future__ import annotations

import re
from typing import Any

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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables."""
    return PLACE.sub(lambda match: errors_table(match.group(1)), markdown)
