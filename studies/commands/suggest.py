"""``shapefront suggest``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...constraints.laws import FIT_RANGES
from ...constraints.quality import DEFAULT_TRAIN_TOKENS, SOFT_SHAPE_LIMIT
from ...costmodel import InvalidValueError, TensorFormats
from ..output import count as people_count
from ..output import print_json, print_table, say
from ..suggest import Suggestion, SuggestResult
from ..suggest import suggest as suggest_designs
from .options import AREA_HEADING, parse_gpus, parse_pins


def suggest(
    params: Annotated[str | None, typer.Option("--params", help="Total parameters, like 30B.")] = None,
    active: Annotated[str | None, typer.Option("--active", help="Active parameters, like 3B: a mixture of experts.")] = None,
    like: Annotated[str | None, typer.Option("--like", help="Model whose tokenizer, head size and attention are kept.")] = None,
    fix: Annotated[list[str] | None, typer.Option("--fix", help="Pin a dimension, like hidden_size=4096; repeatable.")] = None,
    iso_loss: Annotated[
        bool, typer.Option("--iso-loss", help="With --like: the cheapest design whose predicted loss is no worse; sizes float.")
    ] = False,
    hardware: Annotated[str | None, typer.Option(help="GPU in place of the profile's own.")] = None,
    profile: Annotated[str | None, typer.Option(help="Kernel profile: a name or a .toml file.")] = None,
    input: Annotated[int, typer.Option("--input", help="Prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option("--output", help="Answer tokens.")] = 1024,
    min_user_rate: Annotated[float, typer.Option(help="Tokens/s every user must get.")] = 50.0,
    gpus: Annotated[str | None, typer.Option(help="GPU counts to consider, like 1,2,4,8.")] = None,
    linear: Annotated[str, typer.Option(help="Number format of the linear layers and experts.")] = "nvfp4",
    kv_format: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp8",
    tolerance: Annotated[float, typer.Option(help="Allowed distance from the budget; 0.01 is 1 %.")] = 0.01,
    train_tokens: Annotated[float, typer.Option(help="Training tokens, for the quality laws.")] = DEFAULT_TRAIN_TOKENS,
    max_delta_loss_shape: Annotated[float, typer.Option(help="Limit of the shape penalty, nats/token.")] = SOFT_SHAPE_LIMIT,
    count: Annotated[int, typer.Option(help="Designs wanted.")] = 5,
    explain: Annotated[bool, typer.Option("--explain", help="Why each dimension stands where it does.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Propose clearly different designs for a parameter budget, on the frontier of throughput against user rate."""
    shared: dict[str, Any] = {
        "fix": parse_pins(fix or []),
        "min_user_rate": min_user_rate,
        "count": count,
        "train_tokens": train_tokens,
        "max_delta_loss_shape": max_delta_loss_shape,
        "formats": TensorFormats.uniform(linear, kv=kv_format),
        "input_tokens": input,
        "output_tokens": output,
        "profile": profile,
        "hardware": hardware,
        "gpus": parse_gpus(gpus),
    }
    if iso_loss:
        _iso_loss(like, params, active, shared, explain, json)
        return
    result = suggest_designs(params, active, like=like, tolerance=tolerance, **shared)
    if json:
        print_json(result.to_dict())
        return
    _print(result, explain, chosen=like is not None)


def _iso_loss(
    like: str | None, params: str | None, active: str | None, shared: dict[str, Any], explain: bool, json: bool
) -> None:
    if like is None:
        raise InvalidValueError("--iso-loss needs --like: the model whose predicted loss must be kept")
    if params is not None or active is not None:
        raise InvalidValueError("--iso-loss lets total and active parameters float; leave --params and --active out")
    from ..iso_loss import NOTES
    from ..iso_loss import iso_loss as find

    result = find(like, **shared)
    if json:
        print_json(result.to_dict())
        return
    rows = [
        [s.design.name, f"{cost:.3f}", f"{change['default']:+.4f}", f"{change['joint']:+.4f}", "yes" if agree else "no"]
        for s, cost, change, agree in zip(result.found.designs, result.cost, result.loss_change, result.agree, strict=True)
    ]
    title = f"GPU time per token over {result.model.name}'s; predicted loss against it, nats/token"
    print_table(["design", "cost", "default law", "joint law", "both say no worse"], rows, title=title)
    _print(result.found, explain)
    for note in NOTES:
        say(f"note: {note}")


def _print(result: SuggestResult, explain: bool, *, chosen: bool = True) -> None:
    budget = result.problem.budget
    hint = "" if chosen else "; choose another with --like"
    active = "" if budget.active_params is None else f", {people_count(budget.active_params)} active"
    say(
        f"{result.legal} legal designs within {budget.tolerance:.1%} of {people_count(budget.total_params)}{active}; "
        f"template {result.template.name} (kind, tokenizer, head size){hint}"
    )
    rates = [f"tokens/s/GPU at {rate:g}" for rate in result.rates]
    columns = [
        "design",
        "why",
        "H",
        "L",
        "heads",
        "KV",
        "H'e" if result.template.num_experts else "H'",
        "experts",
        "total",
        "active",
        *rates,
        AREA_HEADING,
        "shape penalty, nats/token",
        "KV B/token",
    ]
    print_table(columns, [_row(s) for s in result.designs])
    for s in result.designs:
        beside = ", ".join(
            f"{s.throughput[r] / n - 1:+.0%} at {r:g}" if n else f"out of reach at {r:g}" for r, n in s.nearest_throughput.items()
        )
        quality = "at equal quality" if s.equal_quality else f"gives up: {'; '.join(s.gives_up)}"
        say(f"{s.design.name} beside {s.nearest.name}: {beside}; {quality}")
        say(f"  {s.waterfall.message}")
        laws = (f"{law.change:+.4f} by the {FIT_RANGES[law.law].title}, {_beyond(law.times_beyond)}" for law in s.laws)
        say(f"  predicted loss beside {s.nearest.name}, nats/token: {'; '.join(laws)}")
        if s.review is not None and s.review.findings:
            say(f"  findings: {', '.join(f'{f.id} {f.dimension} ({f.cost_share:.1%})' for f in s.review.findings)}")
    if explain:
        for s in result.designs:
            _print_steps(s, result.rates)
    for note in result.notes:
        say(f"note: {note}")


def _beyond(times: float) -> str:
    return "inside its fit" if times <= 1 else f"{times:.2g}x beyond its fit"


def _row(s: Suggestion) -> list[object]:
    d = s.design
    width = d.moe_intermediate_size if d.num_experts else d.intermediate_size
    experts = f"{d.num_experts} top-{d.num_experts_per_tok}" if d.num_experts else "–"
    kv = d.attention_label if d.attention == "mla" else str(d.num_key_value_heads)
    sizes = [d.hidden_size, d.num_hidden_layers, d.num_attention_heads]
    counts = [people_count(d.total_params), people_count(d.active_params)]
    figures = [
        *(round(v) for v in s.throughput.values()),
        round(s.frontier_area),
        f"{s.delta_loss_shape:.4f}",
        round(s.kv_bytes_per_token),
    ]
    return [d.name, s.reason, *sizes, kv, width, experts, *counts, *figures]


def _print_steps(s: Suggestion, rates: tuple[float, ...]) -> None:
    def share(value: float) -> str:
        return "–" if value != value else f"{value:+.1%}"

    rows = []
    for step in s.explanation:
        where = f"{step.value} → {step.next_value if step.next_value is not None else '–'}"
        loss = "–" if step.loss_change != step.loss_change else f"{step.loss_change:+.4f}"
        rows.append([step.dimension, where, "; ".join(step.binds) or "nothing", *(share(c) for c in step.change), loss])
    columns = ["dimension", "step", "what binds", *(f"tokens/s/GPU at {rate:g}" for rate in rates), "loss, nats/token"]
    print_table(columns, rows, title=f"{s.design.name}: the next lattice steps")
