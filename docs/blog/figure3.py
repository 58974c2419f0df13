"""Figure 3: the roofline, with the layers of a real model placed on it at low and high concurrency."""

import sys

from shapefront.costmodel.models import load_model
from shapefront.studies.plots.roofline import draw_roofline, roofline_rows

MODEL = "Llama-3.1-8B"


def rows():
    """Intensity and rate of each layer's product."""
    return roofline_rows(load_model(MODEL), profile="gb300-blog")


if __name__ == "__main__":
    found = rows()
    for row in found:
        rate = f"{row['flop_per_second'] / 1e15:6.3f} PFLOP/s ({row['bound']})"
        print(f"{row['layer']:<14} M {row['m']:>6.0f}: {row['flop_per_byte']:8.1f} FLOP/B, {rate}")
    draw_roofline(found, profile="gb300-blog", note=f"{MODEL}, one GPU, profile gb300-blog").save(
        sys.argv[1] if len(sys.argv) > 1 else "figure3.png"
    )
