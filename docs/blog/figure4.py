"""Figure 4: NVFP4 throughput over K (N = 9728) and over N (K = 8448), M = 8192."""

import sys

from shapefront.studies.plots.sweep import draw_sweep, sweep_rows, threshold


def rows():
    """Both sweeps at the cost model's own resolution."""
    return sweep_rows(profile="gb300-blog")


if __name__ == "__main__":
    found = rows()
    print(f"80 % of the sweep's maximum from K = {threshold(found, 'K')} (post: above 3072)")
    print(f"80 % of the sweep's maximum from N = {threshold(found, 'N')} (post: above 2560)")
    draw_sweep(found, note="NVFP4, profile gb300-blog").save(sys.argv[1] if len(sys.argv) > 1 else "figure4.png")
