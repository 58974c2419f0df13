"""``shapefront compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...constraints.equal_quality import LOSS_SLACK
from ...costmodel import InvalidValueError, TensorFormats, load_profile
from ..compare import Comparison
from ..compare import compare as compare_models
from ..output import count, print_json, print_table, say
from .options import AREA_HEADING, parse_gpus

LAWS = {"zhao": "the MoE law", "dense": "the dense law", "joint": "the joint law, between a dense model and a mixture of experts"}


def compare(
    models: Annotated[list[str], typer.Argument(help="Two or more: config.json, a file of ours, or a built-in model's name.")],
    input: Annotated[int, typer.Option("--input", help="Prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option("--output", help="Answer tokens.")] = 1024,
    rates: Annotated[str, typer.Option(help="User rates to show, tokens/s, like 20,50,100.")] = "20,50,100",
    profile: Annotated[str | None, typer.Option(help="Kernel profile: a name or a .toml file.")] = None,
    hardware: Annotated[str | None, typer.Option(help="GPU in place of the profile's own.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPU counts to consider, like 1,2,4,8.")] = None,
    linear: Annotated[str, typer.Option(help="Number format of the linear layers and experts.")] = "nvfp4",
    kv_format: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp8",
    plot: Annotated[Path | None, typer.Option(help="Draw the frontiers into this .png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Set the frontiers of several models side by side; the first is what the others are held against."""
    found = compare_models(
        models,
        rates=_rates(rates),
        input_tokens=input,
        output_tokens=output,
        profile=profile,
        hardware=hardware,
        gpus=parse_gpus(gpus),
        formats=TensorFormats.uniform(linear, kv=kv_format),
    )
    if plot is not None:
        _draw(found, plot)
    if json:
        print_json(found.to_dict())
        return
    shown = [f"tokens/s/GPU at {rate:g}" for rate in found.rates]
    columns = [
        "model",
        "total",
        "active",
        *shown,
        AREA_HEADING,
        "area ÷ first",
    ]
    rows: list[list[object]] = []
    verdicts: list[list[object]] = []
    for m in found.models:
        against = m.error or ("equal quality" if not m.gives_up else "gives up: " + "; ".join(m.gives_up))
        sizes = [m.design.name, count(m.design.total_params), count(m.design.active_params)]
        area = [round(m.area), f"{m.area_over_first:.2f}"]
        losses = [f"{value:+.4f}" for value in (m.shape_change, m.size_change, m.loss_change)]
        rows.append([*sizes, *(round(v) for v in m.throughput), *area])
        verdicts.append([m.design.name, *losses, against])
    kernels, workload = load_profile(found.setup.profile), found.setup.workload
    served = f"{workload.input_tokens} tokens in, {workload.output_tokens} out, linear layers {linear}, KV cache {kv_format}"
    say(f"{served}, profile {kernels.name} on {kernels.hardware.name}")
    print_table(columns, rows)
    say("tokens/s/GPU: while every user gets at least the rate, tokens/s/user; area: tokens/s/GPU over ln tokens/s/user")
    print_table(
        ["model", "ΔL_shape", "L_size", "joint law (information)", "against the first"],
        verdicts,
        title=f"Predicted loss against the first model, nats/token (limit of ΔL_shape and of L_size: {LOSS_SLACK:+.3f})",
        right=(1, 2, 3),
    )
    laws = " and ".join(dict.fromkeys(LAWS[m.size_law] for m in found.models[1:]))
    say(
        f"equal quality needs ΔL_shape and L_size (by {laws}) within the limit, and like size, attention and sparsity; "
        "the joint law's total decides nothing"
    )


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidValueError(f"rates reads like 20,50,100, got {text[:60]!r}") from None


def _draw(found: Comparison, path: Path) -> None:
    from ..plots.frontier import Curve, plot_frontier

    curves = [
        Curve.of(m.frontier, m.design.name, "reference" if i == 0 else "design")
        for i, m in enumerate(found.models)
        if m.frontier is not None
    ]
    plot_frontier(curves, path, heading="Frontiers side by side", note="", goals=found.rates)
