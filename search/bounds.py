"""Optimistic bounds for groups of designs: no member is faster than its group's bound.

At one hidden size a decode step is a sum over layers, and a layer is an attention side plus an FFN side that do not see
each other::

    T(a, f, L, w) = T1(a) + (L - w - k1)·full(a) + w·windowed(a) + c(f) + (L - k1)·d(f)                        (1)

with a the attention dimensions, f the FFN dimensions, L layers of which w are windowed, k1 = leading dense layers + 1.
The tables T1, full, windowed, c, d hold seconds per (layout, concurrency) and come from pricing a few one- and
two-layer designs with the study's own kernel profile, so (1) is the cost model itself, factored: a study of a million
designs has only some thousand distinct a and f. What (1) leaves out only adds time (pipeline hops and waiting).
For a group of designs, taking the smallest FFN term at each (layout, concurrency), the smallest KV cache, the weights
as if no byte were held twice, and every layout that some member may use, gives a time below and a concurrency above
every member's. All figures carry a relative slack of 1e-9 for rounding.

The best throughput at a user rate under such a bound is taken over *all* concurrencies that meet the rate, not at the
largest one alone, so that it holds whatever the shape of T in the concurrency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.rules import Rules
from ..costmodel import ArchitectureBatch, LayoutBatch, get_format, load_profile
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.decode import price_decode
from ..costmodel.memory import kv_bytes_per_sequence_per_gpu
from ..costmodel.operating import best_at_rates
from ..costmodel.step_plan import StepPlan, decode_plan_of

if TYPE_CHECKING:
    from ..costmodel.serving import ServingSetup

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
SLACK = 1e-9  # relative, for rounding: the factored sum and the direct one differ by some 1e-15
ROWS = 64  # rows of (layout, concurrency) tables held at a time
FFN_FIELDS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "n_shared_experts",
)
DEPTH_FIELDS = ("num_hidden_layers", "num_sliding_window_layers", "first_k_dense_replace")
ATTENTION_FIELDS = tuple(n for n in INTEGER_FIELDS if n not in (*FFN_FIELDS, *DEPTH_FIELDS, "hidden_size"))


@lru_cache(maxsize=8)
def _flat(layouts: LayoutBatch, concurrency: tuple[float, ...]) -> tuple[LayoutBatch, StepPlan]:
    """The layouts without pipeline stages, and their plan at the tokens of one microbatch."""
    one = LayoutBatch.from_arrays(tpa=layouts.tpa, kvp=layouts.kvp, dpa=layouts.dpa, tpf=layouts.tpf, ep=layouts.ep)
    loads = np.asarray(concurrency)[None, :]
    turns = np.minimum(layouts.pp[:, None], np.maximum(loads, 1.0))
    return one, decode_plan_of(one, loads / turns)


def pass_seconds(batch: ArchitectureBatch, setup: ServingSetup) -> FloatArray:
    """One microbatch through all layers, s, ``(A, P·C)``: no pipeline waiting, no host time; never above the step."""
    layouts, plan = _flat(setup.layouts, setup.concurrency)
    options = replace(setup.step_options(), host_seconds=0.0)
    return price_decode(batch, layouts, plan, setup.workload.decode_context, options).seconds.reshape(len(batch), -1)


def with_host(seconds: FloatArray, setup: ServingSetup, attention: str) -> FloatArray:
    """Add the step's signed constant, which depends on the attention kind, as the decode step does."""
    host = setup.step_options().constant(attention)
    return seconds + np.maximum(host, -0.5 * seconds) if host else seconds


@dataclass(frozen=True, eq=False)
class LayerTables:
    """Equation (1) at one hidden size and one number of leading dense layers.

    Attributes:
        first: T1 per attention configuration, ``(nA, P·C)``.
        full: one full-attention layer, ``(nA, P·C)``.
        windowed: one windowed layer, ``(nA, P·C)``.
        offset: c per FFN configuration, ``(nF, P·C)``.
        slope: d per FFN configuration, ``(nF, P·C)``.
        base_layers: k1.
    """

    first: FloatArray
    full: FloatArray
    windowed: FloatArray
    offset: FloatArray
    slope: FloatArray
    base_layers: int

    def attention(self, a: IntArray, layers: IntArray, windows: IntArray) -> FloatArray:
        """Attention side of (1), ``(n, P·C)``."""
        full = (layers - windows - self.base_layers)[:, None]
        return self.first[a] + full * self.full[a] + windows[:, None] * self.windowed[a]

    def ffn(self, f: IntArray, layers: IntArray) -> FloatArray:
        """FFN side of (1), ``(n, P·C)``."""
        return self.offset[f] + (layers - self.base_layers)[:, None] * self.slope[f]


def combined(batch: ArchitectureBatch, attention: IntArray, ffn: IntArray, layers: int, windows: int) -> ArchitectureBatch:
    """Designs with the attention side of some members and the FFN side of others."""
    arrays = {name: getattr(batch, name)[ffn if name in FFN_FIELDS else attention] for name in INTEGER_FIELDS}
    size = len(attention)
    arrays["num_hidden_layers"] = np.full(size, layers, dtype=np.int64)
    arrays["num_sliding_window_layers"] = np.full(size, windows, dtype=np.int64)
    return ArchitectureBatch(batch.kind, **arrays)


def layer_tables(batch: ArchitectureBatch, a_members: IntArray, f_members: IntArray, setup: ServingSetup) -> LayerTables:
    """Price the tables of one unit.

    Args:
        batch: the unit's designs: one hidden size, one number of leading dense layers.
        a_members: a member of each attention configuration, ``(nA,)``; windows taken from members that have them.
        f_members: a member of each FFN configuration, ``(nF,)``.
        setup: deployment, with the space's formats.
    """
    k1 = int(batch.first_k_dense_replace[0]) + 1
    base_f, base_a = np.full(len(a_members), f_members[0]), np.full(len(f_members), a_members[0])
    first = pass_seconds(combined(batch, a_members, base_f, k1, 0), setup)
    full = pass_seconds(combined(batch, a_members, base_f, k1 + 1, 0), setup) - first
    windowed = full
    if np.any(batch.num_sliding_window_layers):
        designs = combined(batch, a_members, base_f, k1 + 1, 1)
        window = np.maximum(batch.sliding_window.max(), 1)
        designs = replace(designs, sliding_window=np.where(designs.sliding_window > 0, designs.sliding_window, window))
        windowed = pass_seconds(designs, setup) - first
    one = pass_seconds(combined(batch, base_a, f_members, k1, 0), setup)
    two = pass_seconds(combined(batch, base_a, f_members, k1 + 1, 0), setup)
    return LayerTables(first, full, windowed, one - first[0], (two - one) - full[0], k1)


def permissive(batch: ArchitectureBatch, layouts: LayoutBatch, rules: Rules, *, any_depth: bool) -> ArchitectureBatch:
    """The designs with an FFN (and a depth) that every layout divides: what remains is the attention side's say."""
    width = rules.min_shard * math.lcm(*np.unique(layouts.tpf).tolist())
    experts = math.lcm(*np.unique(layouts.ep).tolist())
    widths = np.full(len(batch), width, dtype=np.int64)
    changes: dict[str, Any] = {"intermediate_size": widths, "moe_intermediate_size": widths}
    if batch.kind.moe:
        changes["num_experts"] = np.full(len(batch), experts, dtype=np.int64)
    if any_depth:
        changes["num_hidden_layers"] = np.full(len(batch), math.lcm(*np.unique(layouts.pp).tolist()), dtype=np.int64)
    return replace(batch, **changes)


def room_bound(batch: ArchitectureBatch, least_params: float, setup: ServingSetup) -> FloatArray:
    """Sequences that no member can exceed, ``(A, P)``: its own KV cache, weights as if spread without a copy.

    Args:
        batch: designs with the group's attention side and depth.
        least_params: fewest total parameters of any member.
        setup: deployment.
    """
    hardware = load_profile(setup.profile).hardware
    formats = setup.formats
    names = (formats.qkv, formats.attention_output, formats.ffn, formats.experts, formats.lm_head, formats.router)
    bytes_each = min(2.0, *(get_format(name).weight_bytes for name in names))
    # 0.99: biases and vectors count as parameters but are not priced as weight bytes
    weights = 0.99 * least_params * bytes_each / setup.layouts.gpus
    free = setup.usable_fraction * hardware.memory_bytes - weights
    each = kv_bytes_per_sequence_per_gpu(batch, setup.layouts, setup.workload.peak_context, setup.formats)
    return np.asarray(np.maximum(np.floor(free[None, :] / each * (1 + SLACK)), 0.0) * setup.layouts.dpa[None, :])


def throughput_bound(
    seconds: FloatArray, room: FloatArray, setup: ServingSetup, rates: tuple[float, ...], attention: str
) -> FloatArray:
    """Upper bound of tokens/s/GPU at each user rate, ``(n, R)``.

    Args:
        seconds: times no member undercuts, ``(n, P·C)``.
        room: sequences no member exceeds, 0 where no member may use the layout, ``(n, P)``.
        setup: deployment.
        rates: tokens/s/user, ``(R,)``.
        attention: attention kind of the designs.
    """
    grid = np.asarray(setup.concurrency)
    gpus = setup.layouts.gpus.astype(np.float64)
    out = np.zeros((len(seconds), len(rates)))
    wanted = np.maximum(np.asarray(rates), 1.0 / setup.workload.max_itl_seconds)
    for start in range(0, len(seconds), ROWS):
        rows = slice(start, min(start + ROWS, len(seconds)))
        itl = with_host(seconds[rows], setup, attention).reshape(-1, len(gpus), len(grid)) * (1 - SLACK)
        itl = np.maximum.accumulate(itl, axis=2)
        held = room[rows]
        _, best = best_at_rates(itl, grid, held, gpus, wanted)
        out[rows] = best.max(axis=1)
        figure = np.where(grid <= held[:, :, None], grid / (itl * gpus[:, None]), 0.0)
        for index, rate in enumerate(wanted):
            below = np.where(itl <= 1.0 / rate, figure, 0.0).max(axis=(1, 2))
            out[rows, index] = np.maximum(out[rows, index], below)
    return out * (1 + SLACK)
