"""Figure 5: tile quantisation. Forced 256x128 tile, clusterMMA, 4x2 CGA; a fine sweep of N."""

import sys

from shapefront.studies.plots.sawtooth import draw_sawtooth, sawtooth_rows


def rows():
    """Throughput at each N."""
    return sawtooth_rows(profile="gb300-blog")


def maxima(found):
    """N of the local maxima."""
    rate = [row["flop_per_second"] for row in found]
    return [found[i]["n"] for i in range(1, len(rate) - 1) if rate[i] > rate[i - 1] and rate[i] > rate[i + 1]]


if __name__ == "__main__":
    found = rows()
    print("local maxima at N =", ", ".join(str(n) for n in maxima(found)))
    draw_sawtooth(found, note="NVFP4, profile gb300-blog").save(sys.argv[1] if len(sys.argv) > 1 else "figure5.png")
