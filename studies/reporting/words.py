"""A result in sentences: what a design is, what it gains, what it gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..output import count, number
from ..ranking import AREA
from ..waterfall import SHAPE_STEPS, compound

Row = Mapping[str, Any]
REAL = 0.005  # a gain below half a percent is called none


def percent(value: float | None) -> str:
    """``+6.8 %`` with a true minus sign, or an en dash for a missing value."""
    if value is None or value != value:
        return "–"
    shown = f"{value:+.1%}".replace("-", "−").replace("%", " %")
    return "0.0 %" if shown[1:] == "0.0 %" else shown


def shape_text(row: Row) -> str:
    """``36 layers of width 2,048; 24 heads of 128 with 4 KV heads; 80 experts of width 1,664, 6 a token``."""
    parts = [f"{row['num_hidden_layers']} layers of width {row['hidden_size']:,}"]
    if row["attention"] == "mla":
        parts.append(f"{row['num_attention_heads']} heads, MLA with a latent of {row['kv_lora_rank']}")
    else:
        parts.append(f"{row['num_attention_heads']} heads of {row['head_dim']} with {row['num_key_value_heads']} KV heads")
    if row.get("num_sliding_window_layers"):
        parts.append(f"{row['num_sliding_window_layers']} layers with a window of {row['sliding_window']:,}")
    if row["num_experts"]:
        text = f"{row['num_experts']} experts of width {row['moe_intermediate_size']:,}, {row['num_experts_per_tok']} a token"
        if row["n_shared_experts"]:
            text += f", {row['n_shared_experts']} shared"
        parts.append(text)
    else:
        parts.append(f"FFN width {row['intermediate_size']:,}")
    return "; ".join(parts)


def gains(row: Row, reference: Row) -> list[tuple[float, float | None]]:
    """(user rate, relative gain of tokens/s/GPU over the reference there); None where the reference serves nobody."""
    base = {point["rate"]: point["tokens_per_second_per_gpu"] for point in reference["at_rates"]}
    return [
        (point["rate"], point["tokens_per_second_per_gpu"] / base[point["rate"]] - 1 if base[point["rate"]] > 0 else None)
        for point in row["at_rates"]
    ]


OWN_BUDGET = 0.02  # a budget further than this from the reference model's size is a budget of its own


def headline(designs: Sequence[Row], reference: Row, budget: float | None = None, by: str = AREA) -> str:
    """One sentence or two that answer the study's question.

    Args:
        designs: ranked designs.
        reference: the reference model.
        budget: parameters the study asks for; None where it does not say.
        by: what the designs are ranked by: ``frontier_area`` or an objective.
    """
    name = reference.get("name", "the reference model")
    equal = [row for row in designs if row["equal_quality"]]
    if designs and budget and abs(budget / reference["total_params"] - 1) > OWN_BUDGET:
        best = designs[0]
        at = ", ".join(f"{point['tokens_per_second_per_gpu']:,.0f} at {point['rate']:g}" for point in best["at_rates"])
        return (
            f"Best design for {count(budget)} parameters: {best['architecture_id']}, {shape_text(best)}; "
            f"tokens/s/GPU {at} tokens/s/user. "
            f"{name} has {count(reference['total_params'])}: it is a yardstick of speed here, not an equal in quality."
        )
    if not equal:
        return (
            f"No design of the front is at equal quality with {name}: "
            "every gain below gives something up that no quality law prices."
        )
    best = equal[0]
    if by != AREA:
        own = _figure(best, reference, by)
        return f"At equal quality with {name}, the best design by {by} is {best['architecture_id']}: {own}."
    area = (best["frontier_area_over_reference"] or 0) - 1
    if area < REAL:
        return f"At equal quality nothing beats {name} by more than half a percent: its shape already suits this hardware."
    priced = priced_gain(best)
    if priced is not None and priced < REAL:
        return (
            f"At equal quality, alignment, width and the FFN split gain nothing over {name}; "
            f"what {best['architecture_id']} gains "
            f"({percent(area)} frontier area) comes from its KV cache and sparsity, whose quality is not priced."
        )
    at = ", ".join(f"{percent(gain)} at {rate:g}" for rate, gain in gains(best, reference) if gain is not None)
    return (
        f"At equal quality with {name}, design {best['architecture_id']} serves more on the same GPUs: "
        f"{percent(area)} frontier area; "
        f"tokens/s/GPU {at} tokens/s/user."
    )


def _figure(row: Row, reference: Row, objective: str) -> str:
    """An objective of a design, and the reference model's where it has one (a user function is told the designs alone)."""
    own, base = row["objectives"].get(objective), reference["objectives"].get(objective)
    return number(own) + ("" if base is None else f" ({reference.get('name', 'the reference model')}: {number(base)})")


def priced_gain(row: Row) -> float | None:
    """Gain of alignment, width against depth and FFN split together, compounded; None where there is no waterfall."""
    steps = [step for step in (row.get("waterfall") or {}).get("steps", []) if step["id"] in SHAPE_STEPS]
    if not steps or any(step["gain"] is None for step in steps):
        return None
    return compound(step["gain"] for step in steps)


def hypervolume_text(value: float | None) -> str:
    """A hypervolume; nothing is enclosed where no design exceeds the reference point in every objective."""
    return number(value, 6) if value else "none: no design exceeds the reference point in every objective"


def design_sentences(row: Row, reference: Row, extra: Sequence[tuple[str, str]] = ()) -> list[str]:
    """What one ranked design is, gains and gives up.

    Args:
        row: the design.
        reference: the reference model.
        extra: (heading, name) of objectives beside throughput and frontier area.
    """
    name = reference.get("name", "the reference model")
    ratio = row.get("frontier_area_over_reference")
    area = percent(None if ratio is None else ratio - 1)
    at = ", ".join(f"{percent(gain)} at {rate:g}" for rate, gain in gains(row, reference))
    found = [
        f"{shape_text(row)}. {count(row['total_params'])} parameters, {count(row['active_params'])} active.",
        f"Frontier area {area} against {name}; tokens/s/GPU {at} tokens/s/user.",
    ]
    for heading, name_of in extra:
        found.append(
            f"{heading}: {number(row['objectives'].get(name_of))}; {name} {number(reference['objectives'].get(name_of))}."
        )
    waterfall = row.get("waterfall") or {}
    if waterfall.get("message"):
        found.append(f"Where it comes from: {waterfall['message']}.")
    if row["equal_quality"]:
        found.append("At equal quality with the reference by the study's rule.")
    elif row.get("gives_up"):
        found.append(f"Not at equal quality. It gives up: {', '.join(row['gives_up'])}.")
    if row.get("within_model_error_of"):
        found.append(f"Within the cost model's error of {row['within_model_error_of']}: the two are not told apart.")
    if row.get("twins"):
        found.append(f"Near-twins grouped with it (under 1 % apart, neighbouring shapes): {row['twins']}.")
    return found


def runner_up_sentences(row: Row, reference: Row) -> list[str]:
    """What a design just off the fronts is and how near it comes."""
    base, ratio = reference["objectives"], row.get("frontier_area_over_reference")
    at = ", ".join(
        f"{percent(value / base[name] - 1)} {objective_text(name)}"
        for name, value in row["objectives"].items()
        if base.get(name, 0) and value is not None
    )
    area = f"Frontier area {percent(ratio - 1)}; " if ratio is not None else ""
    near = row.get("of_the_front")
    share = number(100 * near, 3) if near is not None else "–"
    found = [
        f"{shape_text(row)}. {count(row['total_params'])} parameters, {count(row['active_params'])} active.",
        f"{area}{at}.",
        f"Reaches {share} % of the nearest design of the front in its worst objective.",
    ]
    if row["equal_quality"]:
        found.append("At equal quality with the reference.")
    elif row.get("gives_up"):
        found.append(f"Not at equal quality. It gives up: {', '.join(row['gives_up'])}.")
    if row.get("within_model_error_of"):
        found.append(f"Within the cost model's error of {row['within_model_error_of']}: the two are not told apart.")
    return found


def objective_text(name: str) -> str:
    """``tokens/s/GPU at 20 tokens/s/user`` for an objective's stable name."""
    head, _, rate = name.rpartition("_at_")
    return f"tokens/s/GPU at {rate} tokens/s/user" if head == "tokens_per_second_per_gpu" else name


def layout_text(point: Row) -> str:
    """``TPA 1 · DPA 8 · EP 8 on 8 GPUs``; factors of 1 left out."""
    factors = [
        f"{name.upper()} {point[name]}"
        for name in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")
        if point.get(name) and point[name] > 1
    ]
    gpus = point.get("gpus")
    if not gpus:
        return "out of reach"
    return f"{' · '.join(factors)}{' on ' if factors else ''}{gpus} GPU{'s' if gpus != 1 else ''}"
