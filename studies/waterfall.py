"""Where a design's gain over the reference model comes from, one change at a time.

The reference is turned into the design in five steps, each priced with its own best layouts; after every step the FFN
or expert width is solved again so that the parameter total stays the reference's:

(a) alignment: the reference's misaligned dimensions rounded to multiples of 256;
(b) width against depth: hidden size and layers (heads in proportion);
(c) FFN/expert split: heads, and top-k with experts at the reference's E/k;
(d) KV: KV heads, head size, MLA ranks, window;
(e) sparsity: experts, shared experts, leading dense layers — the design itself.

The split depends on the order, which is therefore fixed. (d) and (e) change what quality laws do not price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..constraints.divisibility import layout_allowed
from ..costmodel import Architecture, InvalidValueError, TensorFormats, group_by_kind
from ..costmodel.serving import frontier_area, throughput_at_rates
from ..search.problem import SearchProblem

STEPS = (
    ("alignment", "alignment", True),
    ("width_depth", "width against depth", True),
    ("ffn_split", "FFN/expert split", True),
    ("kv", "KV", False),
    ("sparsity", "sparsity", False),
)
PREFERRED = 256  # alignment the first step rounds to (co-design post, guideline 2)
WIDTH_STEP = 16  # lattice of the solved width: one scale block of NVFP4, so that no step is charged for rounding
_KV = ("num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Step:
    """One step of the waterfall.

    Attributes:
        id: stable name.
        label: for people.
        gain: frontier area after the step over before it, minus 1; NaN where a step has no architecture.
        priced: whether the project's quality laws see the change.
    """

    id: str
    label: str
    gain: float
    priced: bool


@dataclass(frozen=True)
class Waterfall:
    """The five steps and their product.

    Attributes:
        steps: in order.
        total: area of the design over the reference's, minus 1.
        message: one sentence of what it means.
    """

    steps: tuple[Step, ...]
    total: float
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        steps = [{"id": s.id, "label": s.label, "gain": s.gain, "quality_priced": s.priced} for s in self.steps]
        return {"total": self.total, "steps": steps, "message": self.message}


def _round(value: int, step: int) -> int:
    return max(step, round(value / step) * step)


def _solve_width(design: Architecture, total: int) -> Architecture:
    """The design with its FFN or expert width solved for ``total`` parameters (a multiple of :data:`WIDTH_STEP`)."""
    key = "moe_intermediate_size" if design.num_experts else "intermediate_size"

    def at(width: int) -> Architecture:
        changes: dict[str, int] = {key: width}
        if design.num_experts:
            if design.n_shared_experts:
                changes["shared_expert_intermediate_size"] = width
            if design.first_k_dense_replace:
                changes["intermediate_size"] = (design.num_experts_per_tok + design.n_shared_experts) * width
        return design.with_(**changes)

    low, high = at(WIDTH_STEP).total_params, at(2 * WIDTH_STEP).total_params
    slope = (high - low) / WIDTH_STEP
    width = WIDTH_STEP + (total - low) / slope
    return at(_round(int(max(width, WIDTH_STEP)), WIDTH_STEP))


def _heads(design: Architecture, wanted: float) -> int:
    """Whole heads near ``wanted`` that the KV heads divide."""
    group = design.num_key_value_heads if design.attention == "gqa" else 1
    return max(group, round(wanted / group) * group)


def path(reference: Architecture, design: Architecture) -> list[Architecture]:
    """Reference, the architectures after steps (a) to (d), and the design."""
    total = reference.total_params
    aligned: dict[str, int] = {"hidden_size": _round(reference.hidden_size, PREFERRED)}
    for name in ("intermediate_size", "moe_intermediate_size"):
        if getattr(reference, name):
            aligned[name] = _round(getattr(reference, name), PREFERRED)
    first = reference.with_(**aligned) if any(getattr(reference, k) != v for k, v in aligned.items()) else reference
    scaled = reference.num_attention_heads * design.hidden_size / reference.hidden_size
    windows = round(first.num_sliding_window_layers * design.num_hidden_layers / first.num_hidden_layers)
    second: dict[str, int] = {"hidden_size": design.hidden_size, "num_hidden_layers": design.num_hidden_layers}
    second |= {"num_attention_heads": _heads(first, scaled), "num_sliding_window_layers": windows}
    if first.attention == "mla":
        second["num_key_value_heads"] = second["num_attention_heads"]
    wide = _solve_width(first.with_(**second), total)
    third: dict[str, int] = {}
    if design.attention == wide.attention:
        third["num_attention_heads"] = _heads(wide, design.num_attention_heads * _head_size(design) / _head_size(wide))
        if wide.attention == "mla":
            third["num_key_value_heads"] = third["num_attention_heads"]
    if design.num_experts and wide.num_experts:
        third["num_experts_per_tok"] = design.num_experts_per_tok
        third["num_experts"] = max(
            design.num_experts_per_tok, round(design.num_experts_per_tok * wide.num_experts / wide.num_experts_per_tok)
        )
    split = _solve_width(wide.with_(**third), total)
    kv: dict[str, Any] = {name: getattr(design, name) for name in _KV}
    kv |= {
        name: getattr(design, name)
        for name in ("attention", "num_attention_heads", "sliding_window", "num_sliding_window_layers", "qk_norm")
    }
    return [reference, first, wide, split, _solve_width(split.with_(**kv), total), design]


def _head_size(design: Architecture) -> int:
    return design.v_head_dim if design.attention == "mla" else design.head_dim


def areas(
    problem: SearchProblem, designs: Sequence[Architecture], formats: TensorFormats, rates: Sequence[float], axis: str
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Frontier area of each design over every layout that divides it, ``(A,)``."""
    found = np.zeros(len(designs))
    setup = problem.setup.with_(formats=formats)
    for where, batch in group_by_kind(designs):
        allowed = layout_allowed(batch, setup.layouts, balanced_pipeline=problem.rules.balanced_pipeline)
        table = throughput_at_rates(batch, setup, list(rates), allowed=allowed)
        found[where] = frontier_area(table.tokens_per_second_per_gpu, np.asarray(rates), axis)
    return found


def waterfall(
    problem: SearchProblem,
    design: Architecture,
    *,
    rates: Sequence[float],
    axis: str = "log",
    formats: TensorFormats | None = None,
    error: float = 0.0,
) -> Waterfall:
    """Split the design's gain in frontier area over the study's reference model.

    Args:
        problem: the study.
        design: the design.
        rates: user rates of the area, tokens/s/user, ascending.
        axis: ``log`` or ``linear``.
        formats: the design's formats where they are not the study's (their effect falls into the last step).
        error: relative pairwise error of the cost model; a smaller gain counts as none.
    """
    try:
        designs = path(problem.reference, design)
    except InvalidValueError:
        designs = [problem.reference, design]
    values = areas(problem, designs[:-1], problem.setup.formats, rates, axis)
    last = areas(problem, designs[-1:], formats or problem.setup.formats, rates, axis)
    values = np.concatenate((values, last))
    with np.errstate(divide="ignore", invalid="ignore"):
        total = float(values[-1] / values[0] - 1)
        gains = values[1:] / values[:-1] - 1 if len(designs) == len(STEPS) + 1 else np.full(len(STEPS), np.nan)
    steps = tuple(Step(id_, label, float(gain), priced) for (id_, label, priced), gain in zip(STEPS, gains, strict=True))
    return Waterfall(steps, total, _sentence(steps, total, error))


def _sentence(steps: Sequence[Step], total: float, error: float) -> str:
    if not np.isfinite([s.gain for s in steps]).all():
        return "the gain cannot be split: one of the steps between reference and design has no layout that serves it"
    priced = float(np.prod([1 + s.gain for s in steps if s.priced])) - 1
    rest = float(np.prod([1 + s.gain for s in steps if not s.priced])) - 1
    floor = max(error, 0.005)
    if total < -floor:
        return f"slower than the reference model by {-total:.0%} in frontier area"
    if total <= floor:
        return f"no gain over the reference model beyond {'the model error' if error > 0.005 else 'rounding'} ({total:+.1%})"
    if priced <= floor:
        return (
            f"alignment, width against depth and FFN split together gain nothing ({priced:+.1%}); "
            f"the {total:+.1%} comes from KV and sparsity ({rest:+.1%}), whose quality is not priced"
        )
    if rest <= floor:
        return f"alignment, width against depth and FFN split gain {priced:+.1%}; KV and sparsity add nothing ({rest:+.1%})"
    return f"alignment, width against depth and FFN split gain {priced:+.1%}; KV and sparsity {rest:+.1%} (quality not priced)"
