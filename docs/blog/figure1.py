"""Figure 1: throughput against interactivity, and the area under the frontier that a better shape adds.

The post draws an idea; here it is a real pair: Qwen3-30B-A3B and a wider, shallower design of the same budget.
"""

import sys

from shapefront.costmodel import Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup
from shapefront.costmodel.serving_frontier import frontier
from shapefront.studies.plots.frontier import Curve, draw_frontier

REFERENCE = load_model("Qwen3-30B-A3B")
WIDER = REFERENCE.with_(
    num_hidden_layers=36, num_attention_heads=24, num_experts=80, num_experts_per_tok=6, moe_intermediate_size=1664, name="wider"
)


def curves():
    """Both frontiers and the ratio of their areas."""
    setup = ServingSetup(workload=Workload(), layouts=enumerate_layouts((1, 2, 4, 8), moe=True), profile="gb300-blog")
    reference, wider = frontier(REFERENCE, setup), frontier(WIDER, setup)
    named = [Curve.of(wider, "36 layers, 80 experts of 1,664", "design"), Curve.of(reference, "Qwen3-30B-A3B", "reference")]
    return named, wider.area(10, 200) / reference.area(10, 200)


if __name__ == "__main__":
    named, ratio = curves()
    print(f"frontier area 10-200 tokens/s/user (log axis): {ratio:.3f} times the reference")
    draw_frontier(named, note="profile gb300-blog, 8192 in, 1024 out", area=(10, 200)).save(
        sys.argv[1] if len(sys.argv) > 1 else "figure1.png"
    )
