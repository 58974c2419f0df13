"""Figure 6: dense tensor-core peak by number format."""

import sys

from shapefront.studies.plots.formats import draw_formats, format_rows


def rows():
    """GB300's three peaks."""
    return format_rows(["gb300"])


if __name__ == "__main__":
    found = rows()
    for row in found:
        print(f"{row['format']:<6} {row['flop_per_second'] / 1e15:g} PFLOP/s")
    draw_formats(found).save(sys.argv[1] if len(sys.argv) > 1 else "figure6.png")
