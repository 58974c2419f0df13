"""Chunked pipeline prefill as a Gantt chart (blog Fig. 8)."""

from __future__ import annotations

from collections.abc import Sequence

from ...costmodel.architecture import Architecture
from ...costmodel.formats import TensorFormats
from ...costmodel.layout import Layout
from ...costmodel.prefill import prefill
from ...costmodel.profile import DEFAULT_PROFILE
from .style import CYCLE, Plot, Row, new_figure, title


def pipeline_rows(
    architecture: Architecture,
    layout: Layout,
    *,
    input_tokens: int = 32768,
    chunk_tokens: int = 8192,
    profile: str = DEFAULT_PROFILE,
    formats: TensorFormats | None = None,
) -> list[dict[str, float]]:
    """Start and end of each chunk on each stage (see :func:`shapefront.costmodel.pipeline.schedule`).

    Args:
        architecture: the design.
        layout: the prefill replica; ``pp`` stages.
        input_tokens: prompt length.
        chunk_tokens: prompt tokens of one chunk.
        profile: kernel profile.
        formats: number formats.
    """
    priced = prefill(
        architecture, layout, input_tokens=input_tokens, chunk_tokens=chunk_tokens, sequences=1, formats=formats, profile=profile
    )
    return priced.schedule().rows()


def draw_pipeline(rows: Sequence[Row], *, note: str = "") -> Plot:
    """Draw the stages as lanes; the time to the first token is the last bar's end."""
    stages = 1 + max(row["stage"] for row in rows)
    chunks = 1 + max(row["chunk"] for row in rows)
    end = max(row["end_seconds"] for row in rows)
    scale, unit = (1e3, "ms") if end < 10 else (1.0, "s")
    figure, axis = new_figure((9.6, 1.9 + 0.55 * stages))
    axis.grid(False, axis="y")
    for row in rows:
        width = (row["end_seconds"] - row["start_seconds"]) * scale
        colour = CYCLE[row["chunk"] % len(CYCLE)]
        axis.barh(row["stage"], width, left=row["start_seconds"] * scale, height=0.72, color=colour, edgecolor="white", zorder=3)
        if width > 0.03 * end * scale and chunks <= 40:
            middle = (row["start_seconds"] + row["end_seconds"]) / 2 * scale
            axis.text(middle, row["stage"], str(row["chunk"] + 1), ha="center", va="center", fontsize=9, color="white", zorder=4)
    busy = sum(row["end_seconds"] - row["start_seconds"] for row in rows) / (stages * end)
    axis.axvline(end * scale, color="black", linewidth=1.2)
    axis.set_yticks(range(stages), [f"stage {s + 1}" for s in range(stages)])
    axis.invert_yaxis()
    axis.set_xlim(0, end * scale * 1.02)
    axis.set_xlabel(f"Time, {unit} (numbers: chunk of the prompt)", fontsize=11)
    title(axis, f"Chunked pipeline prefill: first token after {end * scale:,.4g} {unit}, stages busy {busy:.0%}", note)
    return Plot("pipeline", figure, list(rows))
