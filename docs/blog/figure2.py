"""Figure 2: where a decode step's time goes: short and long context, throughput and latency."""

import sys

from shapefront.costmodel import Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup
from shapefront.studies.plots.breakdown import breakdown_rows, draw_breakdown

MODEL = "DeepSeek-R1"


def rows():
    """Share of each category in each of the four regimes."""
    layouts = enumerate_layouts((8, 16, 32, 64), moe=True, max_tpa=8, max_kvp=8)
    return breakdown_rows(load_model(MODEL), ServingSetup(workload=Workload(), layouts=layouts, profile="gb300-blog"))


if __name__ == "__main__":
    found = rows()
    for row in found:
        print(f"{row['context']:>7} tokens, {row['goal']:<10} {row['category']:<13} {row['share']:6.1%}")
    draw_breakdown(found, note=f"{MODEL}, profile gb300-blog").save(sys.argv[1] if len(sys.argv) > 1 else "figure2.png")
