"""Progress of a run: a bar, JSON lines, or nothing; always on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..search.outcome import Progress

_LINE_SECONDS = 1.0  # at most one JSON line a second and one at each change of phase


class Reporter(Protocol):
    """Something that shows progress."""

    def __call__(self, progress: Progress) -> None:
        """Show the state."""

    def say(self, event: str, text: str) -> None:
        """Show one line of text."""

    def close(self) -> None:
        """Stop showing."""


class Silent:
    """Shows nothing."""

    def __call__(self, progress: Progress) -> None:
        """Do nothing."""

    def say(self, event: str, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Plain(Silent):
    """No terminal to draw a bar on: lines of text alone."""

    def say(self, event: str, text: str) -> None:
        """Print the line."""
        print(text, file=sys.stderr, flush=True)


class JsonLines:
    """One JSON object a line: phase, trials, priced, total, front_size, hypervolume, designs_per_second, eta_seconds.

    Lines of text are ``{"event": …, "text": …}``.
    """

    def __init__(self, stream: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._start, self._last, self._phase = clock(), -1e9, ""

    def __call__(self, progress: Progress) -> None:
        """Write a line when a second has passed or the phase changed."""
        now = self._clock()
        if progress.phase == self._phase and now - self._last < _LINE_SECONDS:
            return
        self._last, self._phase = now, progress.phase
        rate, eta = speed(progress, now - self._start)
        row = {**progress.__dict__, "hypervolume": progress.hypervolume if progress.hypervolume == progress.hypervolume else None}
        self._stream.write(json.dumps({**row, "designs_per_second": rate, "eta_seconds": eta}) + "\n")
        self._stream.flush()

    def say(self, event: str, text: str) -> None:
        """Write the text as an object."""
        self._stream.write(json.dumps({"event": event, "text": text}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A bar with ETA, designs per second and front size."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = [TextColumn("{task.description:9}"), BarColumn(), TextColumn("{task.fields[text]}")]
        self._bar = RichProgress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task("start", total=None, text="")
        self._start = time.monotonic()
        self._bar.start()

    def __call__(self, progress: Progress) -> None:
        """Move the bar."""
        rate, eta = speed(progress, time.monotonic() - self._start)
        text = f"{progress.priced:,} designs  {rate:,.0f}/s  {progress.front_size} on the front"
        if eta is not None:
            text += f"  {eta:,.0f} s left"
        self._bar.update(
            self._task, description=progress.phase, completed=progress.priced, total=progress.total or None, text=text
        )

    def say(self, event: str, text: str) -> None:
        """Print the line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def speed(progress: Progress, seconds: float) -> tuple[float, float | None]:
    """Designs per second so far, and seconds left (None where the total is not known)."""
    rate = progress.priced / seconds if seconds > 0 else 0.0
    left = progress.total - progress.priced
    return rate, left / rate if progress.total and rate > 0 and left >= 0 else None


def make_reporter(mode: str) -> Reporter:
    """``bar`` (only on a terminal), ``json-lines`` or ``quiet``."""
    if mode == "json-lines":
        return JsonLines()
    if mode == "bar":
        return Bar() if sys.stderr.isatty() else Plain()
    return Silent()
