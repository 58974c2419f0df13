"""The roofline (blog Fig. 3) with a design's layers placed on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...costmodel.architecture import Architecture
from ...costmodel.formats import TensorFormats
from ...costmodel.gemm import gemm_cost
from ...costmodel.layout import Layout
from ...costmodel.moe_load import experts_touched
from ...costmodel.profile import DEFAULT_PROFILE, load_profile
from .layers import layer_gemms
from .style import CYCLE, GREY, MARKERS, VERMILION, Plot, new_figure, plain_log_ticks, title

LATENCY_TOKENS, THROUGHPUT_TOKENS = 16.0, 4096.0  # tokens of one step: a low and a high concurrency


def roofline_rows(
    architecture: Architecture,
    *,
    profile: str = DEFAULT_PROFILE,
    layout: Layout | None = None,
    formats: TensorFormats | None = None,
    tokens: Sequence[float] = (LATENCY_TOKENS, THROUGHPUT_TOKENS),
) -> list[dict[str, Any]]:
    """Intensity, rate and bound of each layer's product at each token count.

    Args:
        architecture: the design.
        profile: kernel profile.
        layout: shards; one GPU when left out.
        formats: number formats.
        tokens: tokens of one step (GEMM-M of the dense layers).
    """
    rows = []
    for count in tokens:
        for gemm in layer_gemms(architecture, layout, formats):
            m, batch = count, 1.0
            if gemm.experts:  # a grouped kernel: the experts that some token reaches, tokens shared evenly
                batch = float(experts_touched(count, architecture.num_experts, architecture.num_experts_per_tok))
                m = count * architecture.num_experts_per_tok / batch
                batch = max(1.0, batch * gemm.experts / architecture.num_experts)
            cost = gemm_cost(m, gemm.n, gemm.k, batch=batch, format=gemm.format, profile=profile)
            moved = float(cost.read_bytes + cost.write_bytes)
            rows.append(
                {
                    "layer": gemm.name,
                    "tokens": float(count),
                    "m": m,
                    "experts": batch if gemm.experts else 0.0,
                    "n": gemm.n,
                    "k": gemm.k,
                    "format": gemm.format,
                    "flop_per_byte": float(cost.flop) / moved,
                    "flop_per_second": float(cost.flop / cost.seconds),
                    "seconds": float(cost.seconds),
                    "bound": str(cost.bound),
                }
            )
    return rows


def draw_roofline(rows: Sequence[dict[str, Any]], *, profile: str = DEFAULT_PROFILE, note: str = "") -> Plot:
    """Draw the roofs of the profile's GPU and the layers of :func:`roofline_rows`."""
    hardware = load_profile(profile).hardware
    figure, axis = new_figure()
    intensity = np.geomspace(1, 2e4, 200)
    roofs = {"NVFP4": hardware.nvfp4_flop_per_second, "FP8": hardware.fp8_flop_per_second, "BF16": hardware.bf16_flop_per_second}
    for name, peak in roofs.items():
        if peak:
            axis.plot(
                intensity,
                np.minimum(intensity * hardware.memory_bytes_per_second, peak) / 1e15,
                color=GREY,
                linewidth=1.5,
                zorder=2,
            )
            axis.annotate(
                f"{name} {peak / 1e15:g} PFLOP/s", (1.9e4, peak / 1e15), ha="right", va="bottom", fontsize=9, color=GREY
            )
    names = list(dict.fromkeys(row["layer"] for row in rows))
    counts = sorted({row["tokens"] for row in rows})
    for index, name in enumerate(names):
        for row in (r for r in rows if r["layer"] == name):
            high = row["tokens"] == counts[-1] and len(counts) > 1
            colour = CYCLE[index % len(CYCLE)]
            axis.scatter(
                row["flop_per_byte"], row["flop_per_second"] / 1e15, marker=MARKERS[index % len(MARKERS)], s=70, zorder=4,
                facecolor=colour if high else "white", edgecolor=colour, linewidth=1.6,
            )  # fmt: skip
    handles = [axis.scatter([], [], marker=MARKERS[i % 6], s=60, color=CYCLE[i % 6], label=name) for i, name in enumerate(names)]
    handles.append(
        axis.scatter([], [], marker="o", s=60, facecolor="white", edgecolor=GREY, label=f"hollow: {counts[0]:,g} tokens a step")
    )
    if len(counts) > 1:
        handles.append(axis.scatter([], [], marker="o", s=60, color=GREY, label=f"filled: {counts[-1]:,g} tokens a step"))
    ridge = hardware.nvfp4_flop_per_second / hardware.memory_bytes_per_second if hardware.nvfp4_flop_per_second else 0
    if ridge:
        axis.axvline(ridge, color=VERMILION, linewidth=1, linestyle=(0, (2, 2)))
        axis.annotate(f"ridge {ridge:,.0f} FLOP/B", (ridge, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
                      textcoords="offset points", fontsize=9, color=VERMILION)  # fmt: skip
    low = min(float(row["flop_per_second"]) for row in rows) / 1e15 / 2
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(1, 2e4)
    axis.set_ylim(low, max(roofs.values()) / 1e15 * 1.8)
    plain_log_ticks(axis.xaxis, [1, 10, 100, 1000, 10000])
    plain_log_ticks(axis.yaxis, [10.0**power for power in range(-6, 3) if low <= 10.0**power <= 20])
    axis.set_xlabel("Arithmetic intensity, FLOP/byte", fontsize=11)
    axis.set_ylabel("Rate on one GPU, PFLOP/s", fontsize=11)
    title(axis, f"Roofline of {hardware.name.upper()} with the design's layers", note)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return Plot("roofline", figure, list(rows))
