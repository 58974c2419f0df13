"""``shapefront estimate``: what one model delivers on one deployment, with a breakdown."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from ...constraints.divisibility import layout_allowed, layout_reasons
from ...costmodel import (
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
from ...costmodel.memory import gpus_needed, kv_bytes_per_token, max_concurrency
from ...costmodel.prefill import prefill
from ...costmodel.regimes import four_regimes, resource_shares, ruling_bound
from ...costmodel.serving import MODES, ServingSetup
from ...costmodel.serving_frontier import Frontier, frontier
from ..hf_config import read_config
from ..output import print_json, print_table

THROUGHPUT_RATE = 20.0  # tokens/s/user of the point shown when no layout is named (the studies' throughput rate)
SMALL_MODEL = 71e9  # parameters up to which 1 to 8 GPUs are tried (study defaults), else 4 to 72
GPU_COUNTS = {True: (1, 2, 4, 8), False: (4, 8, 16, 32, 64, 72)}


def estimate(
    config: Annotated[str, typer.Argument(help="config.json, a file of ours, or a built-in model's name.")],
    layout: Annotated[str | None, typer.Option(help="Like tpa=1,dpa=8,ep=8; default: the best one at 20 tokens/s/user.")] = None,
    concurrency: Annotated[
        float | None, typer.Option(help="Sequences in flight of one replica; default: 64, or what fits.")
    ] = None,
    context: Annotated[float | None, typer.Option(help="KV tokens a decode step reads; default: input + output/2.")] = None,
    input: Annotated[int, typer.Option("--input", help="Prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option("--output", help="Answer tokens.")] = 1024,
    profile: Annotated[str, typer.Option(help="Kernel profile: a name or a .toml file.")] = "gb300-blog",
    format: Annotated[str, typer.Option(help="Number format of the linear layers and experts.")] = "nvfp4",
    kv_format: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp8",
    mode: Annotated[str, typer.Option(help="decode, disaggregated or aggregated.")] = "decode",
    gpus: Annotated[str | None, typer.Option(help="GPU counts to try, like 4,8,16.")] = None,
    gpu_budget: Annotated[int, typer.Option(help="GPUs of both pools together (disaggregated); 0 = no budget.")] = 0,
    max_ttft: Annotated[float, typer.Option(help="Goal on the time to first token, s.")] = math.inf,
    max_itl: Annotated[float, typer.Option(help="Goal on the inter-token latency, s.")] = math.inf,
    load: Annotated[str, typer.Option(help="Expert routing: balanced, power_law_1.01, power_law_1.2, or a factor.")] = "balanced",
    overlap: Annotated[float | None, typer.Option(help="Share of communication hidden behind compute.")] = None,
    kvp: Annotated[int, typer.Option(help="Largest KV parallelism (Helix) to try.")] = 1,
    regimes: Annotated[
        bool, typer.Option("--regimes", help="The four regimes: short and long context, throughput and latency.")
    ] = False,
    stages: Annotated[
        str | None, typer.Option(help="Prefill table over pipeline depths, like 1,2,4,8; --layout names one stage.")
    ] = None,
    chunk: Annotated[int, typer.Option(help="Prompt tokens of one prefill pass.")] = 8192,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="With --stages: start and end of every chunk on every stage.")
    ] = False,
    balanced_only: Annotated[bool, typer.Option("--balanced-only", help="Refuse stages with unequal layers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Price one model: a point, its frontier, its four regimes, or its pipelined prefill."""
    design = read_config(config)
    formats = TensorFormats.uniform(format, kv=kv_format)
    if mode not in MODES:
        raise InvalidValueError(f"mode must be one of {', '.join(MODES)}, got {mode[:40]!r}")
    work = Workload(
        input_tokens=input, output_tokens=output, load=_load(load), max_ttft_seconds=max_ttft, max_itl_seconds=max_itl
    )
    if stages is not None:
        _print_stages(design, stages, layout, input, chunk, formats, profile, work.load, balanced_only, schedule, json)
        return
    setup = ServingSetup(
        workload=work,
        layouts=_layouts(design, layout, gpus, kvp),
        formats=formats,
        profile=profile,
        mode=mode,
        overlap=overlap,
        chunk_tokens=chunk,
        gpu_budget=gpu_budget,
    )
    allowed = layout_allowed(ArchitectureBatch.from_architectures([design]), setup.layouts, balanced_pipeline=False)
    if regimes:
        _print_regimes(design, setup, allowed, json)
        return
    if layout is not None:
        _print_point(_point(design, setup, concurrency, context), json)
        return
    _print_frontier(design, frontier(design, setup, allowed=allowed), json)


def _load(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _numbers(text: str, name: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 < len(part) <= 5 and int(part) > 0 for part in parts):
        raise InvalidValueError(f"--{name} reads like 1,2,4,8 (whole numbers from 1), got {text[:60]!r}")
    return sorted({int(part) for part in parts})


def _layouts(design: Architecture, layout: str | None, gpus: str | None, kvp: int) -> LayoutBatch:
    if layout is not None:
        one = Layout.parse(layout)
        reasons = layout_reasons(design, one, balanced_pipeline=False)
        if reasons:
            raise InvalidValueError(f"layout {one} does not divide {design.name or 'the model'}: " + "; ".join(reasons))
        return LayoutBatch.from_layouts([one])
    counts = _numbers(gpus, "gpus") if gpus else list(GPU_COUNTS[design.total_params <= SMALL_MODEL])
    return enumerate_layouts(counts, moe=design.num_experts > 0, max_kvp=max(kvp, 1))


def _common(design: Architecture) -> dict[str, Any]:
    return {
        **design.to_dict(),
        "total_params": design.total_params,
        "active_params": design.active_params,
        "active_params_with_embedding": design.active_params_with_embedding,
        "kv_bytes_per_token": float(kv_bytes_per_token(design)[0]),
    }


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
            f"{design.name or 'the model'} on {one} ({one.gpus} GPUs of {hardware.name}) holds {held:g} sequences of {peak:g} tokens, "
            f"asked for {max(wanted, 1.0):g}: that takes at least {need} GPUs; widen the layout, lower --concurrency or --context, "
            "or use smaller formats"
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
    if setup.mode != "decode":
        curve = frontier(design, setup.with_(concurrency=(wanted,)))
        row |= {k: v for k, v in curve.rows()[0].items() if k not in ("breakdown", "bound")}
    shares = resource_shares(design, one, wanted, context=read, formats=setup.formats, profile=setup.profile, **choices)
    breakdown = {
        name: float(getattr(step, f"{name}_seconds")[0, 0, 0]) for name in ("gemm", "attention", "communication", "other")
    }
    parts = {name: float(value[0, 0, 0]) for name, value in step.parts.items() if value[0, 0, 0] > 0}
    return (
        _common(design)
        | row
        | {
            "profile": load_profile(setup.profile).name,
            "mode": setup.mode,
            "breakdown": breakdown,
            "breakdown_parts": parts,
            "resource_shares": shares,
            "bound": ruling_bound(shares),
        }
    )


def _print_point(row: dict[str, Any], json: bool) -> None:
    if json:
        print_json(row)
        return
    itl = row["itl_seconds"]
    print_table(
        ["layout GPUs", "concurrency", "holds", "ITL ms", "TTFT s", "tokens/s/user", "tokens/s/GPU", "bound"],
        [
            [
                row["gpus"],
                row["concurrency"],
                row["max_concurrency"],
                1e3 * itl,
                row["ttft_seconds"],
                row["tokens_per_second_per_user"],
                row["tokens_per_second_per_gpu"],
                row["bound"],
            ]
        ],
        title=f"{row['name'] or 'model'}, {row['profile']}, mode {row['mode']}, context {row['context']:g}",
    )
    total = sum(row["breakdown"].values())
    print_table(["part", "µs", "share %"], [[k, 1e6 * v, 100 * v / total] for k, v in row["breakdown"].items()])
    print_table(["kernel (all layers)", "µs"], [[k, 1e6 * v] for k, v in row["breakdown_parts"].items()])


def _print_frontier(design: Architecture, curve: Frontier, json: bool) -> None:
    rows = curve.rows()
    reached = [row for row in rows if row["tokens_per_second_per_user"] >= THROUGHPUT_RATE]
    best = (reached or rows)[0]
    if json:
        area = {axis: curve.area(axis=axis) for axis in ("log", "linear")}
        print_json(
            _common(design)
            | best
            | {
                "profile": load_profile(curve.setup.profile).name,
                "mode": curve.setup.mode,
                "frontier_area": area["log"],
                "frontier_area_linear": area["linear"],
                "frontier_bounds": [10.0, 300.0],
                "evaluated": curve.evaluated,
                "frontier": rows,
            }
        )
        return
    print_table(
        [
            "layout",
            "GPUs",
            "concurrency",
            "tokens/s/user",
            "tokens/s/GPU",
            "TTFT s",
            "gemm %",
            "attention %",
            "comm. %",
            "other %",
        ],
        [
            [
                str(curve.layout(i)),
                row["gpus"],
                row["concurrency"],
                row["tokens_per_second_per_user"],
                row["tokens_per_second_per_gpu"],
                row["ttft_seconds"],
                *(100 * v / row["itl_seconds"] for v in row["breakdown"].values()),
            ]
            for i, row in enumerate(rows)
        ],
        title=f"{design.name or 'model'}, {load_profile(curve.setup.profile).name}, mode {curve.setup.mode}: frontier of {curve.evaluated} "
        f"points; area {curve.area():,.0f} (ln tokens/s/user from 10 to 300)",
    )


def _print_regimes(design: Architecture, setup: ServingSetup, allowed: Any, json: bool) -> None:
    found = four_regimes(design, setup, allowed=allowed)
    if json:
        print_json({"name": design.name, "profile": load_profile(setup.profile).name, "regimes": [r.to_dict() for r in found]})
        return
    print_table(
        [
            "context",
            "goal",
            "GPUs",
            "concurrency",
            "tokens/s/user",
            "tokens/s/GPU",
            "gemm %",
            "attention %",
            "comm. %",
            "other %",
            "fixed %",
        ],
        [
            [
                r.context,
                r.goal,
                r.point["gpus"],
                r.point["concurrency"],
                r.point["tokens_per_second_per_user"],
                r.point["tokens_per_second_per_gpu"],
                *(100 * v for v in r.shares.values()),
                100 * r.resources["fixed"],
            ]
            for r in found
        ],
        title=f"{design.name or 'model'}, {load_profile(setup.profile).name}: four regimes (fixed: launches and latencies inside the others)",
    )


def _print_stages(
    design: Architecture,
    stages: str,
    layout: str | None,
    tokens: int,
    chunk: int,
    formats: TensorFormats,
    profile: str,
    load: str | float,
    balanced_only: bool,
    schedule: bool,
    json: bool,
) -> None:
    """Fig. 8 and 9 of the co-design post: one stage's layout repeated over a pipeline."""
    base = Layout.parse(layout or "tpa=1")
    depths = _numbers(stages, "stages")
    layouts = LayoutBatch.from_layouts([Layout(base.tpa, base.kvp, base.dpa, base.tpf, base.ep, pp) for pp in depths])
    step = prefill(
        design,
        layouts,
        input_tokens=tokens,
        chunk_tokens=chunk,
        balanced_only=balanced_only,
        formats=formats,
        profile=profile,
        load=load,
    )
    rows = []
    for i, pp in enumerate(depths):
        row = layouts.layout(i).to_dict() | {
            "pp": pp,
            "ttft_seconds": float(step.ttft_seconds[0, i]),
            "input_tokens_per_second_per_gpu": float(step.tokens_per_second_per_gpu[0, i]),
            "stage_imbalance": float(step.imbalance[0, i]),
        }
        if schedule:
            row["schedule"] = step.schedule(0, i).rows()
        rows.append(row)
    if json:
        print_json(
            {
                "name": design.name,
                "profile": load_profile(profile).name,
                "input_tokens": tokens,
                "chunk_tokens": chunk,
                "rows": rows,
            }
        )
        return
    print_table(
        ["pp", "GPUs", "TTFT s", "input tokens/s/GPU", "fullest stage / mean"],
        [[r["pp"], r["gpus"], r["ttft_seconds"], r["input_tokens_per_second_per_gpu"], r["stage_imbalance"]] for r in rows],
        title=f"{design.name or 'model'}, {load_profile(profile).name}: prefill of {tokens} tokens in chunks of {chunk}, back to back",
    )
    if schedule:
        blocks = [[r["pp"], *(1e3 * b[k] if "seconds" in k else int(b[k]) for k in b)] for r in rows for b in r["schedule"]]
        print_table(["pp", "stage", "chunk", "start ms", "end ms"], blocks)
