"""What all pictures share: sizes, colours safe for colour-blind readers, and the file with the numbers beside each."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...costmodel.errors import InvalidValueError

# Okabe and Ito 2008, "Color universal design": distinguishable under the common kinds of colour blindness.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000",
)  # fmt: skip
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
GREY = "#5F6B7A"
CATEGORY_COLOURS = {"gemm": BLUE, "attention": ORANGE, "communication": GREEN, "other": "#9AA5B1"}
WIDE = (9.6, 5.4)  # inches: a 16:9 slide
IMAGE_SUFFIXES = (".png", ".svg", ".pdf")

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Plot:
    """A picture and the numbers in it.

    Attributes:
        kind: what it shows, e.g. ``frontier``.
        figure: a ``matplotlib.figure.Figure``.
        rows: the numbers, one dictionary a row, same keys in each.
    """

    kind: str
    figure: Any
    rows: Sequence[Row]

    def csv(self) -> str:
        """The rows as CSV text."""
        return rows_to_csv(self.rows)

    def save(self, path: str | Path, *, dpi: int = 160) -> list[Path]:
        """Write the picture (format by suffix: .png, .svg, .pdf) and the numbers as ``.csv`` beside it.

        Returns:
            The two files.

        Raises:
            InvalidValueError: the suffix is none of these.
            OSError: the file cannot be written.
        """
        target = Path(path)
        if target.suffix.lower() not in IMAGE_SUFFIXES:
            raise InvalidValueError(f"a picture's name ends in {', '.join(IMAGE_SUFFIXES)}, got '{target.name[:80]}'")
        target.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None  # the same numbers give the same file
        self.figure.savefig(target, dpi=dpi, metadata=metadata)
        numbers = target.with_suffix(".csv")
        numbers.write_text(self.csv(), encoding="utf-8")
        return [target, numbers]


def rows_to_csv(rows: Sequence[Row]) -> str:
    """CSV text of rows with the columns of the first one; floats in full."""
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n", extrasaction="raise")
    writer.writeheader()
    writer.writerows({key: repr(value) if isinstance(value, float) else value for key, value in row.items()} for row in rows)
    return out.getvalue()


def new_figure(size: tuple[float, float] = WIDE, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure with its axes, drawn without a window system and without global state.

    Raises:
        InvalidValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidValueError("a picture needs the 'plot' extra: pip install 'shapefront[plot]'") from error
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.subplots(rows, columns, **options)
    for axis in axes.flat if hasattr(axes, "flat") else [axes]:
        axis.grid(True, color="#D5DAE0", linewidth=0.6)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=10)
    return figure, axes


def title(axis: Any, text: str, note: str = "") -> None:
    """A title set left, and a smaller line under it."""
    axis.set_title(text + (f"\n{note}" if note else ""), loc="left", fontsize=13 if not note else 12)


def plain_log_ticks(axis: Any, values: Sequence[float]) -> None:
    """Ticks of a log axis at round numbers, written in full.

    Args:
        axis: ``axes.xaxis`` or ``axes.yaxis``.
        values: where.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"))


def round_steps(low: float, high: float) -> list[float]:
    """1, 2, 5 × 10ⁿ from just below ``low`` to just above ``high``."""
    import math

    low, high = max(low, 1e-300), min(high, 1e300)  # of a foreign result: powers beyond are no floats
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    return [step for step in steps if low / 1.05 <= step <= high * 1.05]
