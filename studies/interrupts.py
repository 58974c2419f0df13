"""Ctrl-C and SIGTERM as a flag that is looked at between writes, so that no write is cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether the user wants to stop; :meth:`check` raises where that is safe."""

    def __init__(self) -> None:
        self.asked = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt  # the second time at once
        self.asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if the user asked to stop."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[Interrupts]:
        """Take over SIGINT and SIGTERM (in the main thread only)."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield self
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
