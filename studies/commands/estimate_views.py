"""What ``shapefront estimate`` prints: a point, a frontier, four regimes, pipelined prefill, wide expert parallelism."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ...costmodel import Architecture, InvalidValueError, KernelProfile, Layout, LayoutBatch, TensorFormats, load_profile
from ...costmodel.memory import kv_bytes_per_token
from ...costmodel.prefill import prefill
from ...costmodel.regimes import four_regimes
from ...costmodel.scaling import expert_parallel_table
from ...costmodel.serving import ServingSetup
from ...costmodel.serving_frontier import AREA, Frontier
from ..output import number, print_json, print_table, say
from ..step_parts import CONSTANT, EXPLAINED, step_parts

THROUGHPUT_RATE = 20.0  # tokens/s/user of the point shown when no layout is named (the studies' throughput rate)


def numbers(text: str, name: str) -> list[int]:
    """Whole numbers of an option like ``1,2,4``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < len(part) <= 5 and int(part) > 0 for part in parts):
        raise InvalidValueError(f"--{name} reads like 1,2,4,8 (whole numbers from 1), got {text[:60]!r}")
    return sorted({int(part) for part in parts})


def common(design: Architecture) -> dict[str, Any]:
    """Dimensions and figures that do not depend on the deployment."""
    return {
        **design.to_dict(),
        "total_params": design.total_params,
        "active_params": design.active_params,
        "active_params_with_embedding": design.active_params_with_embedding,
        "kv_bytes_per_token": float(kv_bytes_per_token(design)[0]),
    }


def _layout(row: dict[str, Any]) -> Layout:
    return Layout(**{field.name: row[field.name] for field in fields(Layout)})


def print_point(row: dict[str, Any], json: bool) -> None:
    """One operating point with its breakdown."""
    if json:
        print_json(row)
        return
    facts: list[tuple[str, Any, str]] = [
        ("GPUs of one replica", row["gpus"], ""),
        ("sequences in flight", row["concurrency"], ""),
        ("sequences its memory holds", row["max_concurrency"], ""),
        ("inter-token latency", 1e3 * row["itl_seconds"], "ms"),
        ("time to first token", row["ttft_seconds"], "s"),
        ("one user gets", row["tokens_per_second_per_user"], "tokens/s/user"),
        ("one GPU delivers", row["tokens_per_second_per_gpu"], "tokens/s/GPU"),
        ("what rules the step", row["bound"], ""),
    ]
    print_table(
        ["one operating point", "value", "unit"],
        [[name, value if isinstance(value, str) else number(value), unit] for name, value, unit in facts if value is not None],
        title=f"{row['name'] or 'model'} on {_layout(row)}: {row['hardware']}, profile {row['profile']}, linear layers "
        f"{row['formats']['ffn']}, KV cache {row['formats']['kv']}, mode {row['mode']}, context {row['context']:g} tokens",
        right=(1,),
    )
    if row.get("stage_imbalance", 1.0) > 1.0:
        say(f"uneven stages: the fullest has {row['stage_imbalance'] - 1:.1%} more layers than the mean")
    steps = step_parts(row)
    total = sum(steps.values())
    print_table(["part of a decode step", "µs", "share %"], [[k, 1e6 * v, 100 * v / total] for k, v in steps.items()])
    if CONSTANT in steps:
        say(EXPLAINED)
    print_table(["kernel (all layers)", "µs"], [[k, 1e6 * v] for k, v in row["breakdown_parts"].items()])


def _silicon(setup: ServingSetup) -> str:
    """GPU and profile of a deployment."""
    profile = load_profile(setup.profile)
    return f"{profile.hardware.name}, {profile.name}"


def print_frontier(design: Architecture, curve: Frontier, json: bool) -> None:
    """Every point of the frontier; in JSON the best one at the throughput rate stands on top."""
    rows = curve.rows()
    reached = [row for row in rows if row["tokens_per_second_per_user"] >= THROUGHPUT_RATE]
    best = (reached or rows)[0]
    if json:
        area = {axis: curve.area(axis=axis) for axis in ("log", "linear")}
        print_json(
            common(design)
            | best
            | {
                "profile": load_profile(curve.setup.profile).name,
                "mode": curve.setup.mode,
                "frontier_area": area["log"],
                "frontier_area_linear": area["linear"],
                "frontier_bounds": list(AREA[:2]),
                "evaluated": curve.evaluated,
                "frontier": rows,
            }
        )
        return
    first_token = any(row["ttft_seconds"] is not None for row in rows)
    constant = CONSTANT in step_parts(rows[0])  # a property of the profile: all points have it or none
    columns = ["layout", "GPUs", "sequences in flight", "tokens/s/user", "tokens/s/GPU", *(["TTFT s"] if first_token else [])]
    print_table(
        [*columns, "gemm %", "attention %", "comm. %", "other %", *([f"{CONSTANT} %"] if constant else [])],
        [
            [
                str(curve.layout(i)),
                row["gpus"],
                row["concurrency"],
                row["tokens_per_second_per_user"],
                row["tokens_per_second_per_gpu"],
                *([row["ttft_seconds"]] if first_token else []),
                *(100 * v / row["itl_seconds"] for v in step_parts(row).values()),
            ]
            for i, row in enumerate(rows)
        ],
        title=f"{design.name or 'model'}, {_silicon(curve.setup)}, mode {curve.setup.mode}: frontier of "
        f"{curve.evaluated} points; area {curve.area():,.0f} (tokens/s/GPU over ln tokens/s/user, {AREA[0]:g} to {AREA[1]:g}); "
        "%: of a decode step",
    )
    if constant:
        say(EXPLAINED)


def print_regimes(design: Architecture, setup: ServingSetup, allowed: Any, json: bool) -> None:
    """Fig. 2 of the co-design post."""
    found = four_regimes(design, setup, allowed=allowed)
    if json:
        print_json({"name": design.name, "profile": load_profile(setup.profile).name, "regimes": [r.to_dict() for r in found]})
        return
    constant = CONSTANT in step_parts(found[0].point)
    print_table(
        [
            "context, tokens",
            "goal",
            "GPUs",
            "sequences in flight",
            "tokens/s/user",
            "tokens/s/GPU",
            "gemm %",
            "attention %",
            "comm. %",
            "other %",
            *([f"{CONSTANT} %"] if constant else []),
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
                *(100 * v / r.point["itl_seconds"] for v in step_parts(r.point).values()),
                100 * r.resources["fixed"],
            ]
            for r in found
        ],
        title=f"{design.name or 'model'}, {load_profile(setup.profile).name}: four regimes "
        "(fixed: launches and latencies, inside the others)",
    )
    if constant:
        say(EXPLAINED)


def print_stages(
    design: Architecture,
    stages: str,
    layout: str | None,
    tokens: int,
    chunk: int,
    formats: TensorFormats,
    profile: str | KernelProfile,
    load: str | float,
    balanced_only: bool,
    schedule: bool,
    json: bool,
) -> None:
    """Fig. 8 and 9 of the co-design post: one stage's layout repeated over a pipeline."""
    base = Layout.parse(layout or "tpa=1")
    depths = numbers(stages, "stages")
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
        row: dict[str, Any] = layouts.layout(i).to_dict() | {
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
        title=f"{design.name or 'model'}, {load_profile(profile).name}: prefill of {tokens} tokens in chunks of {chunk}, "
        "back to back",
    )
    if schedule:
        blocks = [[r["pp"], *(1e3 * b[k] if "seconds" in k else int(b[k]) for k in b)] for r in rows for b in r["schedule"]]
        print_table(["pp", "stage", "chunk", "start ms", "end ms"], blocks)


def print_experts(design: Architecture, setup: ServingSetup, json: bool) -> None:
    """Throughput of attention DP with expert parallelism over widths, tokens per GPU and routing."""
    rows = expert_parallel_table(
        design, context=setup.workload.decode_context, formats=setup.formats, profile=setup.profile, overlap=setup.overlap
    )
    if json:
        profile = load_profile(setup.profile).name
        print_json({"name": design.name, "profile": profile, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ["routing", "EP = GPUs", "tokens/GPU", "GEMM-M", "tokens/s/GPU", "ITL ms", "comm. %"],
        [
            [
                r.load,
                r.ep,
                r.tokens_per_gpu,
                r.gemm_m,
                r.tokens_per_second_per_gpu,
                1e3 * r.itl_seconds,
                100 * r.communication_share,
            ]
            for r in rows
        ],
        title=f"{design.name or 'model'}, {load_profile(setup.profile).name}: wide expert parallelism",
    )
