"""The lattice that ``suggest`` searches: a template's kind and tokenizer, sizes scaled to the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..constraints.alignment import FLOOR
from ..constraints.bands import load_bands
from ..constraints.budget import Budget
from ..constraints.rules import Rules
from ..constraints.space import DesignSpace, lattice
from ..costmodel.architecture import MAX_DIMENSION, Architecture
from ..costmodel.errors import InvalidValueError, UnknownKeyError, did_you_mean
from ..costmodel.formats import TensorFormats
from ..search.space import DesignTable, NothingLegalError, build_table
from .output import count

ENOUGH, TOO_MANY = 60, 3000  # legal designs to choose from (design choice: priced in seconds)
LEVELS = (0, 1, 2)  # coarse, usual, fine lattice
_DERIVED = ("first_k_dense_replace", "n_shared_experts", "vocab_size", "head_dim")
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NEVER_ZERO = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
PINNABLE = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "num_experts_per_tok",
    *_DERIVED,
    *_MLA,
)


def read_pins(pins: Mapping[str, int]) -> dict[str, int]:
    """Check pinned dimensions.

    Raises:
        UnknownKeyError: not a dimension that can be pinned.
        InvalidValueError: not a whole number in range.
    """
    for name, value in pins.items():
        if name not in PINNABLE:
            raise UnknownKeyError(f"'{name[:60]}' cannot be pinned{did_you_mean(name, PINNABLE)}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DIMENSION:
            raise InvalidValueError(f"a pinned {name} must be a whole number from 0 to {MAX_DIMENSION}, got {value!r:.40}")
        if not value and name in _NEVER_ZERO:
            raise InvalidValueError(f"a pinned {name} must be at least 1, got 0; leave the pin out to search it")
    for name in ("hidden_size", "intermediate_size", "moe_intermediate_size"):
        if pins.get(name, 0) % FLOOR:
            raise InvalidValueError(f"a pinned {name} must be a multiple of {FLOOR} (whole tiles), got {pins[name]}")
    heads, kv = pins.get("num_attention_heads", 0), pins.get("num_key_value_heads", 0)
    if heads and kv and heads % kv:
        raise InvalidValueError(f"n_kv_heads must divide n_heads, got pins n_heads={heads}, n_kv_heads={kv}")
    experts, k = pins.get("num_experts", 0), pins.get("num_experts_per_tok", 0)
    if experts and k > experts:
        raise InvalidValueError(f"top_k must be at most num_experts, got pins top_k={k}, num_experts={experts}")
    return dict(pins)


def check_floor(budget: Budget, template: Architecture, pins: Mapping[str, int]) -> None:
    """Refuse a budget that the embedding tables alone exceed, naming the floor.

    Raises:
        InvalidValueError: the budget is below what the tokenizer's tables take at the least width.
    """
    vocab = pins.get("vocab_size", template.vocab_size)
    width = pins.get("hidden_size", FLOOR)
    tables = 1 if template.tie_word_embeddings else 2
    floor = vocab * width * tables
    if budget.total_params * (1 + budget.tolerance) < floor:
        kind = "tied table" if tables == 1 else "two tables"
        raise InvalidValueError(
            f"{budget.total_params:.4g} parameters are below the floor of {floor:.4g}: a vocabulary "
            f"of {vocab} takes that much in "
            f"its {kind} at hidden_size {width}; raise --params, or pin a smaller vocabulary with "
            "--fix vocab_size=..."
        )
    if budget.active_params is not None and budget.active_params * (1 + budget.tolerance) < vocab * width:
        raise InvalidValueError(
            f"{budget.active_params:.4g} active parameters are below the floor of "
            f"{vocab * width:.4g}: the LM head alone multiplies "
            f"that much at vocabulary {vocab} and hidden_size {width}; raise --active, or pin a smaller vocabulary"
        )


def _around(centre: float, low: float, high: float, step: int, least: int) -> tuple[int, ...]:
    first, last = max(least, int(centre * low) // step * step), math.ceil(centre * high / step) * step
    return lattice(max(first, least), max(last, least), step)


def build_space(
    template: Architecture, budget: Budget, pins: Mapping[str, int], level: int, formats: TensorFormats
) -> DesignSpace:
    """One design space around the template scaled to the budget.

    Widths and depth scale with the cube root of the size; the lattice is 512/256/128 wide by level and size. What the template
    fixes: tokenizer, head size, attention kind and MLA ranks, shared experts, leading dense layers, window pattern.

    Args:
        template: the model whose kind is kept.
        budget: parameters.
        pins: dimension → value.
        level: 0 coarse, 1 usual, 2 fine.
        formats: number formats.
    """
    ratio = budget.total_params / template.total_params
    if template.num_experts and budget.active_params:
        ratio = math.sqrt(ratio * budget.active_params / template.active_params)
    scale = ratio ** (1 / 3)
    hidden, layers = template.hidden_size * scale, template.num_hidden_layers * scale
    step = (512, 256, 128)[level] if hidden >= 3072 else (256, 256, 128)[level] if hidden >= 1024 else 128
    dimensions: dict[str, tuple[int, ...]] = {
        "hidden_size": _around(hidden, 0.6, 1.7, step, FLOOR),
        "num_hidden_layers": _around(layers, 0.45, 1.5, 1 if level or layers < 50 else 2, 2),
    }
    heads = template.num_attention_heads * scale
    if template.attention == "gqa":
        kv = template.num_key_value_heads
        # never a narrower KV cache a layer: no published law says what that costs in quality (a pin may go below)
        dimensions["num_key_value_heads"] = (kv, 2 * kv)
        least_kv = pins.get("num_key_value_heads", kv) or 1
        unit = math.lcm(FLOOR // math.gcd(FLOOR, template.head_dim), least_kv)  # whole tiles, and KV heads that divide
        dimensions["num_attention_heads"] = _around(heads, 0.5, 2.0, unit, 1)
        if template.num_attention_heads == kv:  # MHA: a KV head a head, or fewer, but no narrower in all
            unit = FLOOR // math.gcd(FLOOR, template.head_dim)
            dimensions["num_attention_heads"] = _around(heads, 0.5, 2.0, unit, 1)
            dimensions["num_key_value_heads"] = tuple(
                h for h in dimensions["num_attention_heads"] if h >= kv * min(scale, 1)
            ) or (kv,)
    else:
        dimensions["num_attention_heads"] = _around(heads, 0.5, 1.5, 8 if level < 2 else 4, 1)
    if template.num_experts:
        dimensions |= _expert_lattice(template, scale, level)
    else:
        width = template.intermediate_size * scale
        dimensions["intermediate_size"] = _around(width, 0.3, 3.0, 256 if width >= 4096 and level < 2 else FLOOR, FLOOR)
    fixed = {
        name: getattr(template, name)
        for name in (*_DERIVED, *_MLA)
        if getattr(template, name) and not (template.attention == "mla" and name == "head_dim")
    }
    if template.num_sliding_window_layers:
        full = template.num_hidden_layers - template.num_sliding_window_layers
        fixed["sliding_window"] = template.sliding_window
        fixed["sliding_window_period"] = max(2, round(template.num_hidden_layers / max(1, full)))
    for name, value in pins.items():
        if name in dimensions:
            dimensions[name] = (value,)
        elif name in _DERIVED or name in _MLA:
            fixed[name] = value
        elif value:
            kind = "MoE" if template.num_experts else "dense"
            raise InvalidValueError(
                f"{name}={value} contradicts the {kind} {template.attention.upper()} template {template.name}"
            )
    return DesignSpace("suggest", template.kind, dimensions, fixed, formats)


def _expert_lattice(template: Architecture, scale: float, level: int) -> dict[str, tuple[int, ...]]:
    experts, k = template.num_experts, template.num_experts_per_tok
    width = template.moe_intermediate_size * scale
    unit = 16 if experts >= 64 else 8 if experts >= 32 else 1
    return {
        "num_experts": _around(experts, 0.25, 2.0, unit * (2 if level == 0 else 1), unit),
        "num_experts_per_tok": tuple(range(max(1, k // 2), 2 * k + 1)),
        "moe_intermediate_size": _around(width, 0.3, 3.0, 256 if width >= 2048 and level < 2 else FLOOR, FLOOR),
    }


def rules_for(template: Architecture, budget: Budget, max_delta_loss_shape: float) -> Rules:
    """Alignment floor, shape-penalty limit and the class's bands widened to hold the template."""
    bands = load_bands(template.num_experts > 0, include=template, both_budgets=budget.active_params is not None)
    return Rules(max_delta_loss_shape=max_delta_loss_shape, bands=dict(bands.limits))


def find_table(
    template: Architecture, budget: Budget, rules: Rules, pins: Mapping[str, int], formats: TensorFormats
) -> tuple[DesignSpace, DesignTable]:
    """The usual lattice with its legal designs; a coarser one where it holds too many, a finer one where too few.

    Raises:
        InvalidValueError: no design is legal; the message names what binds and what to relax.
    """
    space, table, message = _usual_lattice(template, budget, rules, pins, formats)
    if table is None:
        pinned = f" with {', '.join(f'{k}={v}' for k, v in pins.items())}" if pins else ""
        reasons = "; ".join(filter(None, (message, _freed(template, budget, rules, pins, formats), _odd_heads(template, pins))))
        raise InvalidValueError(f"nothing fits {count(budget.total_params)} parameters{pinned}: {reasons}")
    return space, table


def _usual_lattice(
    template: Architecture, budget: Budget, rules: Rules, pins: Mapping[str, int], formats: TensorFormats
) -> tuple[DesignSpace, DesignTable | None, str]:
    """Space, legal designs (None where there are none) and what binds then, at the level that holds neither too few nor many."""

    def at(level: int) -> tuple[DesignSpace, DesignTable | None, str]:
        space = build_space(template, budget, pins, level, formats)
        try:
            return space, build_table((space,), budget, rules), ""
        except NothingLegalError as error:
            return space, None, str(error)

    usual = at(1)
    if usual[1] is not None and len(usual[1]) > TOO_MANY:
        coarse = at(0)
        return usual if coarse[1] is None else coarse
    if usual[1] is None or len(usual[1]) < ENOUGH:
        fine = at(2)
        return usual if fine[1] is None and usual[1] is not None else fine
    return usual


def _odd_heads(template: Architecture, pins: Mapping[str, int]) -> str:
    """What an unusual head size asks of the head count."""
    size = pins.get("head_dim", template.head_dim)
    unit = FLOOR // math.gcd(FLOOR, size) if size else 1
    if template.attention != "gqa" or unit <= 8:
        return ""
    return (
        f"a head size of {size} fills whole tiles of {FLOOR} only with heads in multiples of {unit}: try --fix head_dim={FLOOR}"
    )


def _freed(template: Architecture, budget: Budget, rules: Rules, pins: Mapping[str, int], formats: TensorFormats) -> str:
    """Which single pin makes the space empty: legal designs without it."""
    found = []
    for name, value in pins.items():
        others = {k: v for k, v in pins.items() if k != name}
        try:
            table = _usual_lattice(template, budget, rules, others, formats)[1]
        except InvalidValueError:
            continue
        if table is not None:
            found.append(f"without {name}={value} there are {len(table)} legal designs")
    return "the pins contradict the budget, the bands or each other; " + "; ".join(found) if found else ""
