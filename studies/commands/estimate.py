"""``shapefront estimate``: what one model delivers on one deployment, with a breakdown."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...constraints.divisibility import layout_allowed, layout_reasons, layout_values
from ...costmodel import (
    DEFAULT_PROFILE,
    Architecture,
    ArchitectureBatch,
    InvalidValueError,
    Layout,
    LayoutBatch,
    TensorFormats,
    Workload,
    enumerate_layouts,
    load_profile,
)
from ...costmodel.decode import decode
from ...costmodel.memory import gpus_needed, max_concurrency
from ...costmodel.pipeline import stage_imbalance
from ...costmodel.regimes import resource_shares, ruling_bound
from ...costmodel.serving import MODES, ServingSetup
from ...costmodel.serving_frontier import frontier
from ...costmodel.step_options import StepOptions, constant_share
from ..hf_config import read_config
from .estimate_views import common, numbers, print_experts, print_frontier, print_point, print_regimes, print_stages

SMALL_MODEL = 71e9  # parameters up to which 1 to 8 GPUs are tried (study defaults), else 4 to 72
LAYOUT_HELP = (
    "Like tpa=1,dpa=8,ep=8; the frontier over all layouts if left out. Attention: tensor (tpa), KV (kvp) and data (dpa) "
    "parallelism; FFN: tensor (tpf) and expert (ep); pipeline (pp)."
)
GPU_COUNTS = {True: (1, 2, 4, 8), False: (4, 8, 16, 32, 64, 72)}


def estimate(
    config: Annotated[str, typer.Argument(help="config.json, a file of ours, or a built-in model's name.")],
    layout: Annotated[str | None, typer.Option(help=LAYOUT_HELP)] = None,
    concurrency: Annotated[
        float | None, typer.Option(help="With --layout: sequences in flight of one replica; default: 64, or what fits.")
    ] = None,
    context: Annotated[
        float | None, typer.Option(help="With --layout: KV tokens a decode step reads; default: input + output/2.")
    ] = None,
    input: Annotated[int, typer.Option("--input", help="Prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option("--output", help="Answer tokens.")] = 1024,
    profile: Annotated[str, typer.Option(help="Kernel profile: a name or a .toml file.")] = DEFAULT_PROFILE,
    hardware: Annotated[str | None, typer.Option(help="GPU in place of the profile's own.")] = None,
    linear: Annotated[str, typer.Option(help="Number format of the linear layers and experts.")] = "nvfp4",
    format: Annotated[str | None, typer.Option("--format", hidden=True)] = None,  # former name of --linear
    kv_format: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp8",
    mode: Annotated[str, typer.Option(help="decode, disaggregated or aggregated.")] = "decode",
    gpus: Annotated[str | None, typer.Option(help="GPU counts to try, like 4,8,16.")] = None,
    gpu_budget: Annotated[int, typer.Option(help="GPUs of both pools together (disaggregated); 0 = no budget.")] = 0,
    max_ttft: Annotated[float, typer.Option(help="Goal on the time to first token, s.")] = math.inf,
    max_itl: Annotated[float, typer.Option(help="Goal on the inter-token latency, s.")] = math.inf,
    load: Annotated[
        str, typer.Option(help="Expert routing: balanced, uniform_random, power_law_1.01, power_law_1.2, or a factor.")
    ] = "balanced",
    overlap: Annotated[float | None, typer.Option(help="Share of communication hidden behind compute.")] = None,
    kvp: Annotated[int, typer.Option(help="Largest KV parallelism (Helix) to try.")] = 1,
    regimes: Annotated[
        bool, typer.Option("--regimes", help="The four regimes: short and long context, throughput and latency.")
    ] = False,
    stages: Annotated[
        str | None, typer.Option(help="Prefill table over pipeline depths, like 1,2,4,8; --layout names one stage.")
    ] = None,
    wide_ep: Annotated[bool, typer.Option("--wide-ep", help="Throughput over expert-parallel widths and routing.")] = False,
    chunk: Annotated[int, typer.Option(help="Prompt tokens of one prefill pass.")] = 8192,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="With --stages: start and end of every chunk on every stage.")
    ] = False,
    balanced_only: Annotated[bool, typer.Option("--balanced-only", help="Refuse stages with unequal layers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Price one model: a point, its frontier, its four regimes, or its pipelined prefill."""
    design = read_config(config)
    formats = TensorFormats.uniform(format or linear, kv=kv_format)
    priced_on = load_profile(profile, hardware=hardware)
    if mode not in MODES:
        raise InvalidValueError(f"mode must be one of {', '.join(MODES)}, got {mode[:40]!r}")
    work = Workload(
        input_tokens=input, output_tokens=output, load=_load(load), max_ttft_seconds=max_ttft, max_itl_seconds=max_itl
    )
    if stages is not None:
        print_stages(design, stages, layout, input, chunk, formats, priced_on, work.load, balanced_only, schedule, json)
        return
    setup = ServingSetup(
        workload=work,
        layouts=_layouts(design, layout, gpus, kvp),
        formats=formats,
        profile=priced_on,
        mode=mode,
        overlap=overlap,
        chunk_tokens=chunk,
        gpu_budget=gpu_budget,
    )
    allowed = layout_allowed(ArchitectureBatch.from_architectures([design]), setup.layouts, balanced_pipeline=False)
    if regimes:
        print_regimes(design, setup, allowed, json)
        return
    if wide_ep:
        print_experts(design, setup, json)
        return
    if layout is None and (concurrency is not None or context is not None):
        raise InvalidValueError(
            "--concurrency and --context price one point: name its --layout; without one the frontier is priced, at the context "
            "of --input and --output"
        )
    if layout is not None:
        print_point(_point(design, setup, concurrency, context), json)
        return
    print_frontier(design, frontier(design, setup, allowed=allowed), json)


def _load(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _layouts(design: Architecture, layout: str | None, gpus: str | None, kvp: int) -> LayoutBatch:
    if layout is not None:
        one = Layout.parse(layout)
        reasons = layout_reasons(design, one, balanced_pipeline=False)
        if reasons:
            why = f"{'; '.join(reasons)} ({layout_values(design)})"
            raise InvalidValueError(f"layout {one} does not divide {design.name or 'the model'}: {why}")
        return LayoutBatch.from_layouts([one])
    counts = numbers(gpus, "gpus") if gpus else list(GPU_COUNTS[design.total_params <= SMALL_MODEL])
    if kvp < 1:
        raise InvalidValueError(f"--kvp must be at least 1, got {kvp}")
    found = enumerate_layouts(counts, moe=design.num_experts > 0, max_kvp=kvp)
    allowed = layout_allowed(ArchitectureBatch.from_architectures([design]), found, balanced_pipeline=False)[0]
    if not allowed.any():
        shown = ", ".join(map(str, counts[:8])) + (", …" if len(counts) > 8 else "")
        raise InvalidValueError(
            f"no layout of {shown} GPUs divides {design.name or 'the model'} ({layout_values(design)}); give other --gpus"
        )
    return found.take(allowed)  # the others are not worth pricing


def _point(design: Architecture, setup: ServingSetup, concurrency: float | None, context: float | None) -> dict[str, Any]:
    """One layout at one concurrency."""
    one, hardware = setup.layouts.layout(0), load_profile(setup.profile).hardware
    work = setup.workload
    read = work.decode_context if context is None else float(context)
    peak = max(float(work.peak_context), read) if context is None else read
    held = float(max_concurrency(design, one, context=peak, formats=setup.formats, hardware=hardware)[0, 0])
    wanted = min(64.0, held) if concurrency is None else float(concurrency)
    if held < max(wanted, 1.0):
        need = gpus_needed(design, context=peak, concurrency=max(wanted, 1.0), formats=setup.formats, hardware=hardware)
        raise InvalidValueError(
            f"{design.name or 'the model'} on {one} ({one.gpus} GPUs of {hardware.name}) holds {held:g} sequences of {peak:g} "
            f"tokens, asked for {max(wanted, 1.0):g}: that takes at least {need} GPUs; widen the layout, lower --concurrency or "
            "--context, or use smaller formats"
        )
    choices = {"load": work.load, "overlap": setup.overlap}
    step = decode(design, one, wanted, context=read, formats=setup.formats, profile=setup.profile, **choices)
    itl = float(step.seconds[0, 0, 0])
    row: dict[str, Any] = {
        **one.to_dict(),
        "concurrency": wanted,
        "max_concurrency": held,
        "context": read,
        "itl_seconds": itl,
        "tokens_per_second_per_user": 1.0 / itl,
        "tokens_per_second_per_gpu": wanted / itl / one.gpus,
        "ttft_seconds": None,
    }
    if one.pp > 1:
        row["stage_imbalance"] = float(stage_imbalance(design.num_hidden_layers, one.pp))
    if setup.mode != "decode":
        curve = frontier(design, setup.with_(concurrency=(wanted,)))
        row |= {k: v for k, v in curve.rows()[0].items() if k not in ("breakdown", "step_constant_seconds", "bound")}
    shares = resource_shares(design, one, wanted, context=read, formats=setup.formats, profile=setup.profile, **choices)
    breakdown = {
        name: float(getattr(step, f"{name}_seconds")[0, 0, 0]) for name in ("gemm", "attention", "communication", "other")
    }
    constant = StepOptions.make(setup.formats, setup.profile).constant(design.attention)
    parts = {name: float(value[0, 0, 0]) for name, value in step.parts.items() if value[0, 0, 0] > 0}
    return (
        common(design)
        | row
        | {
            "profile": load_profile(setup.profile).name,
            "hardware": hardware.name,
            "formats": asdict(setup.formats),
            "mode": setup.mode,
            "breakdown": breakdown,
            "step_constant_seconds": constant_share(constant, itl),  # inside other
            "breakdown_parts": parts,
            "resource_shares": shares,
            "bound": ruling_bound(shares),
        }
    )
