"""Dense tensor-core peaks across number formats (blog Fig. 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...costmodel.hardware import load_hardware
from .style import BLUE, GREEN, ORANGE, Plot, new_figure, title

FORMATS = (
    ("BF16", "bf16_flop_per_second", BLUE),
    ("FP8", "fp8_flop_per_second", GREEN),
    ("NVFP4", "nvfp4_flop_per_second", ORANGE),
)


def format_rows(hardware: Sequence[str] = ("gb300",)) -> list[dict[str, Any]]:
    """Peak of each format on each GPU, FLOP/s; a format the GPU lacks has none."""
    rows = []
    for name in hardware:
        chip = load_hardware(name)
        for label, key, _ in FORMATS:
            peak = float(getattr(chip, key))
            if peak > 0:
                rows.append({"hardware": chip.name, "format": label, "flop_per_second": peak})
    return rows


def draw_formats(rows: Sequence[dict[str, Any]], *, note: str = "") -> Plot:
    """Draw the peaks as grouped bars with their values."""
    chips = list(dict.fromkeys(row["hardware"] for row in rows))
    figure, axis = new_figure((max(6.4, 1.6 + 1.7 * len(chips)), 4.8))
    for index, (label, _, colour) in enumerate(FORMATS):
        for row in (r for r in rows if r["format"] == label):
            position = chips.index(row["hardware"]) + (index - 1) * 0.27
            value = row["flop_per_second"] / 1e15
            axis.bar(position, value, width=0.25, color=colour, label=label if row["hardware"] == chips[0] else None, zorder=3)
            axis.annotate(f"{value:.3g}", (position, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=10)
    axis.set_xticks(range(len(chips)), [chip.upper() for chip in chips], fontsize=11)
    axis.grid(False, axis="x")
    axis.set_ylabel("Dense peak, PFLOP/s", fontsize=11)
    title(axis, "Tensor-core peak by number format", note)
    figure.legend(loc="outside lower center", ncols=3, fontsize=10, frameon=False)
    return Plot("formats", figure, list(rows))
