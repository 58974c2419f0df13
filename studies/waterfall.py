"""Where a design's gain over the reference model comes from, one change at a time.

The reference is first given the design's parameter total, then turned into the design in five steps. After each of them the FFN
or expert width is solved again, so that every row after the first holds the same parameter total; active parameters are shown:

(0) size: the reference's FFN or expert width changed until it has the design's total parameters;
(a) alignment: its hidden size and width rounded to the power of two, at most 256, that the design's own are multiples of;
(b) width against depth: hidden size and layers (heads in proportion);
(c) FFN/expert split: heads, and top-k with experts at the reference's E/k;
(d) KV: KV heads, head size, MLA ranks, window;
(e) sparsity: experts, shared experts, leading dense layers: the design itself.

A solved width lies between two lattice widths. Both are priced and the frontier area in between is interpolated (its inverse, a
time, is linear in the width), so that no step is charged for rounding or for size. The split depends on the order, which is
therefore fixed. (d) and (e) change what quality laws do not price.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..constraints.deployable import throughput_at_allowed
from ..constraints.divisibility import layout_allowed
from ..costmodel import Architecture, InvalidValueError, TensorFormats, group_by_kind
from ..costmodel.serving import frontier_area
from ..search.problem import SearchProblem

STEPS = (
    ("size", "size", True),
    ("alignment", "alignment", True),
    ("width_depth", "width against depth", True),
    ("ffn_split", "FFN/expert split", True),
    ("kv", "KV", False),
    ("sparsity", "sparsity", False),
)
SHAPE_STEPS = ("alignment", "width_depth", "ffn_split")  # what a shape gains at equal size and priced quality
PREFERRED = 256  # alignment the first step rounds to (co-design post, guideline 2)
_KV = ("num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Step:
    """One step of the waterfall.

    Attributes:
        id: stable name.
        label: for people.
        gain: frontier area after the step over before it, minus 1; NaN where a step has no architecture. Gains multiply.
        priced: whether the project's quality laws see the change.
        change: frontier area after the step minus before it, over the reference's. Changes add up to the total.
        total_params: parameters after the step.
        active_params: active parameters after the step.
    """

    id: str
    label: str
    gain: float
    priced: bool
    change: float = math.nan
    total_params: float = math.nan
    active_params: float = math.nan


@dataclass(frozen=True)
class Waterfall:
    """The steps, their product and their sum.

    Attributes:
        steps: in order.
        total: area of the design over the reference's, minus 1: the sum of the changes, or the product of 1 + gain, minus 1.
        message: one sentence of what it means.
    """

    steps: tuple[Step, ...]
    total: float
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        steps = [
            {
                "id": s.id,
                "label": s.label,
                "gain": s.gain,
                "change": s.change,
                "total_params": s.total_params,
                "active_params": s.active_params,
                "quality_priced": s.priced,
            }
            for s in self.steps
        ]
        return {"total": self.total, "steps": steps, "message": self.message}


@dataclass(frozen=True)
class Stage:
    """What is priced after a step: a design, or a width between two designs of the lattice.

    Attributes:
        low: the narrower design.
        high: the wider one; ``low`` again where the width is a whole one.
        share: where between the two, 0 is ``low``.
    """

    low: Architecture
    high: Architecture
    share: float = 0.0

    def between(self, low: float, high: float) -> float:
        """A figure that is linear in the width, at the stage's width."""
        return low + self.share * (high - low)

    @property
    def total_params(self) -> float:
        """Parameters."""
        return self.between(self.low.total_params, self.high.total_params)

    @property
    def active_params(self) -> float:
        """Active parameters."""
        return self.between(self.low.active_params, self.high.active_params)


def _round(value: int, step: int) -> int:
    return max(step, round(value / step) * step)


def _width(design: Architecture) -> int:
    return design.moe_intermediate_size if design.num_experts else design.intermediate_size


def _with_width(design: Architecture, width: int) -> Architecture:
    """The design with another FFN or expert width; shared experts as wide as the routed ones stay so."""
    if not design.num_experts:
        return design.with_(intermediate_size=width)
    if design.shared_expert_intermediate_size == design.moe_intermediate_size:
        return design.with_(moe_intermediate_size=width, shared_expert_intermediate_size=width)
    return design.with_(moe_intermediate_size=width)


def _solve_width(design: Architecture, total: float, step: int) -> Stage:
    """The design with its FFN or expert width solved for ``total`` parameters, between two multiples of ``step``.

    Raises:
        InvalidValueError: the design has more parameters than ``total`` with the narrowest FFN.
    """
    low, high = _with_width(design, step).total_params, _with_width(design, 2 * step).total_params
    width = 1 + (total - low) / (high - low)  # in steps
    if width <= 0:
        raise InvalidValueError(f"{design.num_hidden_layers} layers of width {design.hidden_size} exceed {total:.4g} parameters")
    if abs(width - round(width)) < 1e-9:
        whole = _with_width(design, round(width) * step)
        return Stage(whole, whole)
    first = max(math.floor(width), 1)
    return Stage(_with_width(design, first * step), _with_width(design, (first + 1) * step), width - first)


def _heads(design: Architecture, wanted: float) -> int:
    """Whole heads near ``wanted`` that the KV heads divide."""
    group = design.num_key_value_heads if design.attention == "gqa" else 1
    return max(group, round(wanted / group) * group)


def path(reference: Architecture, design: Architecture) -> list[Stage]:
    """Reference, the stages after size and steps (a) to (d), and the design.

    Raises:
        InvalidValueError: a stage is no legal architecture, or cannot have the design's total parameters.
    """
    total, step = design.total_params, math.gcd(PREFERRED, _width(design))
    sized = _solve_width(reference, total, math.gcd(step, _width(reference)))
    aligned = reference.with_(hidden_size=_round(reference.hidden_size, math.gcd(PREFERRED, design.hidden_size)))
    first = _solve_width(aligned, total, step)
    base = first.low
    scaled = reference.num_attention_heads * design.hidden_size / reference.hidden_size
    windows = round(base.num_sliding_window_layers * design.num_hidden_layers / base.num_hidden_layers)
    second: dict[str, int] = {"hidden_size": design.hidden_size, "num_hidden_layers": design.num_hidden_layers}
    second |= {"num_attention_heads": _heads(base, scaled), "num_sliding_window_layers": windows}
    if base.attention == "mla":
        second["num_key_value_heads"] = second["num_attention_heads"]
    wide = base.with_(**second)
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
        if design.first_k_dense_replace and wide.first_k_dense_replace:
            third["intermediate_size"] = design.intermediate_size
    split = wide.with_(**third)
    kv: dict[str, Any] = {name: getattr(design, name) for name in _KV}
    kv |= {
        name: getattr(design, name)
        for name in ("attention", "num_attention_heads", "sliding_window", "num_sliding_window_layers", "qk_norm")
    }
    later = [_solve_width(stage, total, step) for stage in (wide, split, split.with_(**kv))]
    return [Stage(reference, reference), sized, first, *later, Stage(design, design)]


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
        table = throughput_at_allowed(batch, setup, list(rates), allowed)
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
        stages = path(problem.reference, design)
    except InvalidValueError:
        stages = [Stage(problem.reference, problem.reference), Stage(design, design)]
    before = [side for stage in stages[:-1] for side in (stage.low, stage.high)]
    values = areas(problem, before, problem.setup.formats, rates, axis).reshape(-1, 2)
    last = areas(problem, [design], formats or problem.setup.formats, rates, axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = [
            stage.between(*side) if stage.share else float(side[0]) for stage, side in zip(stages[:-1], 1 / values, strict=True)
        ]
        found = np.append(1 / np.array(times), last)
        total = float(found[-1] / found[0] - 1)
        split = len(stages) == len(STEPS) + 1
        gains = found[1:] / found[:-1] - 1 if split else np.full(len(STEPS), np.nan)
        changes = np.diff(found) / found[0] if split else gains
    after = stages[1:] if split else stages[-1:] * len(STEPS)
    steps = tuple(
        Step(id_, label, float(gain), priced, float(change), stage.total_params, stage.active_params)
        for (id_, label, priced), gain, change, stage in zip(STEPS, gains, changes, after, strict=True)
    )
    return Waterfall(steps, total, _sentence(steps, total, error))


def compound(gains: Iterable[float]) -> float:
    """Gains one after another: the product of 1 + gain, minus 1."""
    return math.prod(1 + gain for gain in gains) - 1


def _sentence(steps: Sequence[Step], total: float, error: float) -> str:
    if not np.isfinite([s.gain for s in steps]).all():
        return "the gain cannot be split: one of the steps between reference and design has no layout that serves it"
    shape = compound(s.gain for s in steps if s.id in SHAPE_STEPS)
    rest = compound(s.gain for s in steps if not s.priced)
    size = compound(s.gain for s in steps if s.id == "size")
    floor = max(error, 0.005)
    if total < -floor:
        return f"slower than the reference model by {-total:.0%} in frontier area"
    if total <= floor:
        return f"no gain over the reference model beyond {'the model error' if error > 0.005 else 'rounding'} ({total:+.1%})"
    sized = f"; the other parameter total {size:+.1%}" if abs(size) >= 0.005 else ""
    if shape <= floor and rest <= floor:
        nothing = f"alignment, width against depth and FFN split together gain nothing ({shape:+.1%})"
        return f"{nothing}, KV and sparsity {rest:+.1%}{sized}"
    if shape <= floor:
        return (
            f"alignment, width against depth and FFN split together gain nothing ({shape:+.1%}); "
            f"KV and sparsity gain {rest:+.1%}, whose quality is not priced{sized}"
        )
    if rest <= floor:
        return f"alignment, width against depth and FFN split gain {shape:+.1%}; KV and sparsity add nothing ({rest:+.1%}){sized}"
    return (
        f"alignment, width against depth and FFN split gain {shape:+.1%}; on top of that KV and sparsity {rest:+.1%} "
        f"(quality not priced){sized}"
    )
