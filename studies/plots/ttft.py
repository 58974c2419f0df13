"""Time to first token and prefill throughput against pipeline depth (blog Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...costmodel.architecture import Architecture
from ...costmodel.formats import TensorFormats
from ...costmodel.layout import Layout, LayoutBatch
from ...costmodel.prefill import prefill
from ...costmodel.profile import DEFAULT_PROFILE
from .style import BLUE, VERMILION, Plot, Row, new_figure, plain_log_ticks, round_steps

STAGES = (1, 2, 4, 8, 16, 32)


def ttft_rows(
    architecture: Architecture,
    stage: Layout,
    *,
    stages: Sequence[int] = STAGES,
    input_tokens: int = 262144,
    chunk_tokens: int = 8192,
    profile: str = DEFAULT_PROFILE,
    formats: TensorFormats | None = None,
) -> list[dict[str, Any]]:
    """Time to first token and prefill throughput of one prompt at each pipeline depth.

    Args:
        architecture: the design.
        stage: GPUs of one stage (its ``pp`` is ignored).
        stages: pipeline depths; those deeper than the model are left out.
        input_tokens: prompt length.
        chunk_tokens: prompt tokens of one chunk.
        profile: kernel profile.
        formats: number formats.
    """
    depths = [depth for depth in stages if depth <= architecture.num_hidden_layers]
    layouts = LayoutBatch.from_layouts([replace(stage, pp=depth) for depth in depths])
    priced = prefill(
        architecture, layouts, input_tokens=input_tokens, chunk_tokens=chunk_tokens, sequences=1, formats=formats, profile=profile
    )
    return [
        {
            "pp": depth,
            "gpus": int(layouts.gpus[i]),
            "ttft_seconds": float(priced.ttft_seconds[0, i]),
            "tokens_per_second_per_gpu": float(priced.tokens_per_second_per_gpu[0, i]),
            "imbalance": float(priced.imbalance[0, i]),
        }
        for i, depth in enumerate(depths)
    ]


def draw_ttft(rows: Sequence[Row], *, note: str = "") -> Plot:
    """Draw both over the number of pipeline stages, one above the other.

    Args:
        rows: dictionaries with ``pp``, ``gpus``, ``ttft_seconds`` and ``tokens_per_second_per_gpu`` (prompt tokens).
        note: line under the title.
    """
    figure, (upper, lower) = new_figure((9.6, 6.4), 2, 1, sharex=True, height_ratios=[3, 2])
    stages = [row["pp"] for row in rows]
    times = [float(row["ttft_seconds"]) for row in rows]
    rates = [float(row["tokens_per_second_per_gpu"]) for row in rows]
    upper.plot(stages, times, color=BLUE, marker="o", linewidth=2)
    upper.set_xscale("log", base=2)
    upper.set_yscale("log")
    plain_log_ticks(upper.yaxis, round_steps(min(times) / 1.5, max(times) * 2))
    for x, y in zip(stages, times, strict=True):
        upper.annotate(f"{y:.3g} s", (x, y), xytext=(6, 6), textcoords="offset points", ha="left", fontsize=10)
    upper.set_ylim(min(times) / 1.5, max(times) * 1.8)
    upper.set_ylabel("Time to first token, s", fontsize=11)
    lower.plot(stages, rates, color=VERMILION, marker="s", linestyle=(0, (5, 2)), linewidth=2)
    lower.set_ylim(0, max(rates) * 1.25)
    lower.set_ylabel("Prompt tokens/s/GPU", fontsize=11)
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.set_xticks(stages, [str(stage) for stage in stages])
    lower.minorticks_off()
    lower.set_xlim(stages[0] / 1.15, stages[-1] * 1.35)
    lower.set_xlabel("Pipeline stages", fontsize=11)
    heading = "First token and prefill throughput against pipeline depth"
    figure.suptitle(heading + (f"\n{note}" if note else ""), x=0.01, ha="left", fontsize=12)
    return Plot("ttft", figure, list(rows))
