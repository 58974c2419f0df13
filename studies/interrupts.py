"""Ctrl-C and SIGTERM as a flag that is looked at between writes, so that no write is cut short."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1  # Linux prctl(2): signal the child when its parent dies


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent dies, however that ends (Linux; elsewhere nothing is done).

    Args:
        parent: process id of the parent; one that is gone already ends this process here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


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
