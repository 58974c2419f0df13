"""Guideline 3 emerges: without the quality guard the best design of a budget gets ever shallower; with it, it stops at its edge.

8B dense parameters, tokenizer and head size of Llama-3.1-8B; every legal design on a 256 lattice is priced, for several limits
of the shape penalty; the width-to-depth band of real models is off, so that the guard alone holds. Run:
python docs/blog/guideline3.py [picture.png]
"""

import math
import sys

import numpy as np

from shapefront.constraints.bands import load_bands
from shapefront.constraints.budget import Budget, legal_designs
from shapefront.constraints.quality import delta_loss_shape
from shapefront.constraints.rules import Rules
from shapefront.constraints.space import DesignSpace, lattice
from shapefront.costmodel import Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.profile import DEFAULT_PROFILE
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates

LIMITS = (0.002, 0.005, 0.010, 0.016, 0.03, 0.06, math.inf)
RATES = (20.0, 100.0)


def best_depths():
    """Rows of (limit, rate, layers, hidden size, shape penalty, tokens/s/GPU) of the best design at each rate."""
    reference = load_model("Llama-3.1-8B")
    space = DesignSpace(
        "dense",
        reference.kind,
        {
            "hidden_size": lattice(2048, 10240, 256),
            "num_hidden_layers": tuple(range(4, 65)),
            "num_attention_heads": lattice(16, 96, 8),
            "intermediate_size": lattice(2048, 65536, 256),
        },
        {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": reference.vocab_size},
    )
    bands = load_bands(False, include=reference).without("width_over_depth").limits
    setup = ServingSetup(
        workload=Workload(), layouts=enumerate_layouts((1, 2, 4, 8), moe=False, max_kvp=4), profile=DEFAULT_PROFILE
    )
    rules = Rules(max_delta_loss_shape=math.inf, bands=dict(bands))
    batch = legal_designs([space], Budget(8.03e9), rules).batches[0]
    allowed = rules.layouts_allowed(batch, setup.layouts)
    table = throughput_at_rates(batch, setup, np.array(RATES), allowed=allowed).tokens_per_second_per_gpu
    penalty = delta_loss_shape(batch.hidden_size, batch.num_hidden_layers)
    rows = []
    for limit in LIMITS:
        inside = np.flatnonzero(penalty <= limit)
        for column, rate in enumerate(RATES):
            best = int(inside[np.argmax(table[inside, column])])
            rows.append(
                (
                    limit,
                    rate,
                    int(batch.num_hidden_layers[best]),
                    int(batch.hidden_size[best]),
                    float(penalty[best]),
                    float(table[best, column]),
                )
            )
    return rows


def draw(rows, path):
    """Layers of the best design, and its throughput, against the guard's limit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [limit if math.isfinite(limit) else 0.2 for limit in LIMITS]
    for rate, marker in zip(RATES, "os", strict=True):
        mine = [r for r in rows if r[1] == rate]
        left.semilogx(shown, [r[2] for r in mine], marker=marker, label=f"{rate:g} tokens/s/user")
        right.semilogx(shown, [r[5] / 1e3 for r in mine], marker=marker, label=f"{rate:g} tokens/s/user")
    for axes, what in ((left, "layers of the best design"), (right, "its throughput, 1000 tokens/s/GPU")):
        axes.axvline(0.010, color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel("limit of the shape penalty, nats/token")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
    left.legend(frameon=False)
    figure.suptitle("8B dense: the guard, not the hardware, sets the depth (right end: no guard)")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    found = best_depths()
    for limit, rate, layers, hidden, penalty, throughput in found:
        where = f"{layers:2d} layers of {hidden}, penalty {penalty:.4f}"
        print(f"limit {limit:<6g} at {rate:3g} tokens/s/user: {where}, {throughput:,.0f} tokens/s/GPU")
    draw(found, sys.argv[1] if len(sys.argv) > 1 else "guideline3.png")
