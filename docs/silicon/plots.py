"""Pictures of ``docs/silicon.md``: ``python docs/silicon/plots.py [FOLDER]`` draws all four. Needs the extra ``silicon``.

Predicted against measured on held-out rows; K and N sweeps through measured points; the post's figures 4 and 5 with
each profile.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from shapefront.costmodel import load_profile
from shapefront.costmodel.calibration import STACKS, attention, moe, open_tables
from shapefront.costmodel.calibration.attention_rows import read_rows
from shapefront.costmodel.calibration.gemm_rows import read_gemm_rows
from shapefront.costmodel.calibration.split import gemm_held_out
from shapefront.costmodel.gemm import gemm_seconds
from shapefront.costmodel.moe_parameters import moe_parameters
from shapefront.studies.plots.sawtooth import sawtooth_rows
from shapefront.studies.plots.style import BLUE, CYCLE, GREY, LINES, VERMILION, new_figure
from shapefront.studies.plots.sweep import sweep_rows, threshold

POINTS = 2500  # drawn of each kernel and stack
PROFILES = ("ideal", "gb300-blog", *(f"gb300-{stack}" for stack in STACKS))


def held_out_points(stack: str) -> dict[str, list[tuple[Any, Any]]]:
    """Kernel -> (measured, predicted) seconds of held-out rows, one entry a format."""
    tables, profile = open_tables("gb300", stack), load_profile(f"gb300-{stack}")
    found: dict[str, list[tuple[Any, Any]]] = {"GEMM": [], "prefill attention": [], "decode attention": [], "experts": []}
    for rows in read_gemm_rows(tables):
        at = rows.held_out
        if at.any():
            predicted = gemm_seconds(rows.m[at], rows.n[at], rows.k[at], format=rows.format, profile=profile, warm_l2=True)
            found["GEMM"].append((rows.seconds[at], predicted))
    for kind, name in (("context", "prefill attention"), ("generation", "decode attention")):
        for part, _ in attention.by_format(read_rows(tables, kind), both=kind == "context"):
            held = part.take(part.held)
            found[name].append((held.seconds, attention.predict(held, profile, prefill=kind == "context")))
    for one in moe.every_kernel(tables):
        entry, part = one.name, one.rows
        if ":" not in entry and part.held.any() and entry in profile.families["moe"]:
            held = part.take(part.held)
            found["experts"].append(
                (held.seconds, moe.predict(moe_parameters(profile, entry, None), moe.prepare(held), entry, profile.hardware)[0])
            )
    return found


def draw_predicted(folder: Path) -> None:
    """Predicted against measured, four kernels by three stacks."""
    figure, axes = new_figure((12, 8.4), 3, 4)
    rng = np.random.default_rng(0)
    for line, stack in zip(axes, STACKS, strict=True):
        for axis, (kernel, parts) in zip(line, held_out_points(stack).items(), strict=True):
            measured, predicted = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            error = np.abs(predicted / measured - 1)
            at = rng.permutation(measured.size)[:POINTS]
            axis.loglog(measured[at], predicted[at], ".", color=BLUE, markersize=2, alpha=0.35, rasterized=True)
            ends = np.array([measured.min(), measured.max()])
            axis.loglog(ends, ends, color=GREY, linewidth=1)
            for factor in (0.8, 1.25):
                axis.loglog(ends, factor * ends, color=GREY, linewidth=0.7, linestyle=":")
            said = f"{100 * np.median(error):.1f} % median, {100 * np.quantile(error, 0.9):.0f} % p90"
            axis.set_title(f"{stack}, {kernel}\n{said}", fontsize=9)
            axis.tick_params(labelsize=8)
        line[0].set_ylabel("predicted, s", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("measured, s", fontsize=9)
    figure.suptitle("Held-out rows of GB300, all formats pooled; dotted: 25 % off", x=0.01, ha="left", fontsize=11)
    figure.savefig(folder / "predicted.png", dpi=90)


def draw_sweeps(folder: Path, stack: str = "trtllm") -> None:
    """Measured points over K and N (held-out ones filled) with the model's line between them and the roofline."""
    figure, axes = new_figure((12, 7), 2, 3)
    rows = {part.format: part for part in read_gemm_rows(open_tables("gb300", stack))}
    for line, dimension in zip(axes, ("K", "N"), strict=True):
        for axis, (name, m) in zip(line, (("nvfp4", 64), ("nvfp4", 8192), ("bf16", 8192)), strict=True):
            part, other = rows[name], 4096
            swept, kept = (part.k, part.n) if dimension == "K" else (part.n, part.k)
            at = (part.m == m) & (kept == other) & (swept <= 16384)
            sizes = np.arange(64, 16385, 32.0)
            n, k = (other, sizes) if dimension == "K" else (sizes, other)
            flop = 2.0 * m * n * k
            for profile, colour, label in ((f"gb300-{stack}", BLUE, "model"), ("ideal", GREY, "roofline")):
                seconds = gemm_seconds(m, n, k, format=name, profile=profile, warm_l2=profile != "ideal")
                axis.plot(
                    sizes,
                    flop / seconds / 1e15,
                    color=colour,
                    linewidth=1.3,
                    label=label,
                    linestyle="-" if colour == BLUE else ":",
                )
            rate = 2.0 * m * part.n[at] * part.k[at] / part.seconds[at] / 1e15
            held = gemm_held_out(part.n[at], part.k[at])
            axis.plot(
                swept[at][~held],
                rate[~held],
                "o",
                color=VERMILION,
                markerfacecolor="white",
                markersize=5,
                label="measured, fitted",
            )
            axis.plot(swept[at][held], rate[held], "o", color=VERMILION, markersize=5, label="measured, held out")
            axis.set_ylim(0, 1.25 * rate.max())
            axis.set_title(f"{name}, M = {m}, {'N' if dimension == 'K' else 'K'} = {other}", fontsize=9)
            axis.set_xlabel(dimension, fontsize=9)
        line[0].set_ylabel("PFLOP/s", fontsize=9)
    axes[0][0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.suptitle(f"GEMM sweeps through the measured points, GB300 {stack}", x=0.01, ha="left", fontsize=11)
    figure.savefig(folder / "sweeps.png", dpi=90)


def draw_figure_4(folder: Path) -> None:
    """The post's Fig. 4 (NVFP4, M = 8192) with each profile; prints peak and the 80 % sizes."""
    figure, axes = new_figure((12, 4.6), 1, 2, sharey=True)
    for profile, colour, style in zip(PROFILES, (GREY, *CYCLE), LINES, strict=False):
        rows = sweep_rows(profile=profile, step=128)
        peak = max(row["flop_per_second"] for row in rows)
        print(f"{profile}: peak {peak / 1e15:.2f} PFLOP/s ({peak / 15e15:.0%} of 15)", end=", ")
        print(f"80 % of it from K {threshold(rows, 'K')}, N {threshold(rows, 'N')}")
        for axis, dimension in zip(axes, ("K", "N"), strict=True):
            part = [row for row in rows if row["dimension"] == dimension]
            axis.plot(
                [r["size"] for r in part],
                [r["flop_per_second"] / 1e15 for r in part],
                color=colour,
                linestyle=style,
                label=profile,
                linewidth=1.5,
            )
            axis.set_xlabel(f"{dimension} ({'N = 9728' if dimension == 'K' else 'K = 8448'}, M = 8192)", fontsize=10)
    axes[0].set_ylabel("PFLOP/s", fontsize=10)
    axes[1].legend(fontsize=9, frameon=False, loc="lower right")
    figure.suptitle("Figure 4 of the post with each profile, NVFP4", x=0.01, ha="left", fontsize=11)
    figure.savefig(folder / "figure4.png", dpi=90)


def draw_figure_5(folder: Path) -> None:
    """The post's Fig. 5 (forced 256x128 tile, 4x2 CGA) with each profile."""
    figure, axis = new_figure((9.6, 4.8))
    for profile, colour, style in zip(PROFILES[1:], CYCLE, LINES, strict=False):
        rows = sawtooth_rows(profile=profile)
        rate = np.array([row["flop_per_second"] for row in rows])
        axis.plot([row["n"] for row in rows], rate / 1e15, color=colour, linestyle=style, label=profile, linewidth=1.4)
        drop = rate[1:] / rate[:-1]
        print(f"{profile}: {rate.min() / 1e15:.2f} to {rate.max() / 1e15:.2f} PFLOP/s, deepest step {1 - drop.min():.0%}")
    axis.set_xlabel("N (M = 8192, K = 8192)", fontsize=10)
    axis.set_ylabel("PFLOP/s", fontsize=10)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=9, frameon=False, loc="lower right")
    figure.suptitle(
        "Figure 5 of the post with each profile, NVFP4, forced 256x128 tile in a 4x2 CGA", x=0.01, ha="left", fontsize=11
    )
    figure.savefig(folder / "figure5.png", dpi=90)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for draw in (draw_predicted, draw_sweeps, draw_figure_4, draw_figure_5):
        draw(target)
