"""``shapefront check``."""

from __future__ import annotations

from typing import Annotated

import typer

from ...constraints.guidelines import FINDING_SHARE, Finding
from ...constraints.quality import SOFT_SHAPE_LIMIT
from ...costmodel import InvalidValueError, TensorFormats
from ..check import CheckResult, fix_loss_text, limits_text
from ..check import check as check_model
from ..output import print_json, print_table, say
from .options import parse_gpus

EXIT_FINDINGS = 1
OUTPUTS = ("text", "json", "sarif")
SHARES = ("step share, throughput", "step share, latency", "prefill share")
COLUMNS = ("id", "dimension", "value", "threshold", *SHARES, "fix", "gain", "fix's loss, nats/token", "what")


def check(
    config: Annotated[str, typer.Argument(help="config.json, a file of ours, or a built-in model's name.")],
    input: Annotated[int, typer.Option("--input", help="Prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option("--output", help="Answer tokens.")] = 1024,
    throughput_rate: Annotated[float, typer.Option(help="Tokens/s/user at which throughput counts.")] = 20.0,
    latency_rate: Annotated[float, typer.Option(help="Tokens/s/user at which latency counts.")] = 100.0,
    profile: Annotated[str | None, typer.Option(help="Kernel profile: a name or a .toml file.")] = None,
    hardware: Annotated[str | None, typer.Option(help="GPU in place of the profile's own.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPU counts to consider, like 1,2,4,8.")] = None,
    linear: Annotated[str, typer.Option(help="Number format of the linear layers and experts.")] = "nvfp4",
    kv_format: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp8",
    min_share: Annotated[float, typer.Option(help="Least share of the step time that makes a finding.")] = FINDING_SHARE,
    max_delta_loss_shape: Annotated[float, typer.Option(help="Limit of the shape penalty, nats/token.")] = SOFT_SHAPE_LIMIT,
    fail_on: Annotated[
        str, typer.Option(help="Exit 1 on: finding, information, never, or any departure from rules like SF003,SF009.")
    ] = "finding",
    format: Annotated[str, typer.Option("--format", help="text, json or sarif (SARIF 2.1.0).")] = "text",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold a model to the seven guidelines, each departure with its cost in time and the fix.

    Exit code 0: clean; 1: findings; 2: an error.
    """
    if format not in OUTPUTS:
        raise InvalidValueError(f"format must be one of {', '.join(OUTPUTS)}, got {format[:40]!r}")
    result = check_model(
        config,
        rates=(throughput_rate, latency_rate),
        finding_share=min_share,
        max_delta_loss_shape=max_delta_loss_shape,
        input_tokens=input,
        output_tokens=output,
        profile=profile,
        hardware=hardware,
        gpus=parse_gpus(gpus),
        formats=TensorFormats.uniform(linear, kv=kv_format),
    )
    failed = result.fails(fail_on)
    if format == "sarif":
        from ..sarif import to_sarif

        print_json(to_sarif(result))
    elif json or format == "json":
        print_json(result.to_dict())
    else:
        _print(result, min_share, max_delta_loss_shape)
    if failed:
        raise typer.Exit(EXIT_FINDINGS)


def _print(result: CheckResult, min_share: float, max_loss: float) -> None:
    design, review = result.design, result.review
    for role, rate, point in zip(("throughput", "latency"), review.rates, review.points, strict=True):
        where = "out of reach" if point is None else f"{point.tokens_per_second_per_gpu:,.0f} tokens/s/GPU on {point.layout}"
        say(f"{design.name}: at {rate:g} tokens/s/user ({role}) {where}")
    if not review.findings:
        say("no findings")
    if review.all:
        say(
            f"finding: costs at least {min_share:.2%} of the step time at one of the rates, and the design has a fix that is not "
            "slower; information: costs less, has no fix to offer, or is a choice of deployment or checkpoint"
        )
    for title, findings in (("findings", review.findings), ("information", review.information)):
        if findings:
            print_table(
                COLUMNS,
                [_row(f) for f in findings],
                title=f"{design.name}: {title}, worst first",
            )
    if any(f.fix and f.loss_change is not None for f in review.all):
        say(limits_text(max_loss))
    for warning in result.warnings:
        say(f"note: {warning}")


def _row(f: Finding) -> list[object]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:+.2%}"

    gain = f"{share(f.gain_throughput)} / {share(f.gain_latency)}"
    what = f.message + (f" ({f.note})" if f.note else "")
    costs = [share(v) for v in (f.cost_share_throughput, f.cost_share_latency, f.cost_share_prefill)]
    return [
        f.id,
        f.dimension,
        f"{f.value:g}",
        f"{f.threshold:g}",
        *costs,
        f.fix_text or "–",
        gain,
        fix_loss_text(f.loss_change),
        what,
    ]
