"""What user functions print: lines of their processes, handed to whoever shows or keeps them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import IO

LINE_BYTES = 4096  # longer lines are handed over in pieces
HELD = 200  # lines kept until somebody takes them
_JOIN_SECONDS = 1.0  # a child of the user's own may hold the stream open


class Output:
    """Lines of text with the name of the function that printed them; kept until :meth:`to` says where they go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[str, str]] = deque(maxlen=HELD)
        self._take: Callable[[str, str], None] | None = None

    def __call__(self, name: str, text: str) -> None:
        """One line that function ``name`` printed."""
        with self._lock:
            if self._take is None:
                self._held.append((name, text))
            else:
                self._take(name, text)

    def to(self, take: Callable[[str, str], None]) -> None:
        """Hand lines to ``take(name, text)``, those held first."""
        with self._lock:
            self._take = take
            while self._held:
                take(*self._held.popleft())


class Lines(threading.Thread):
    """Reads one process's stream and hands its lines on."""

    def __init__(self, stream: IO[bytes], name: str, output: Output) -> None:
        super().__init__(daemon=True)
        self._stream, self._name, self._output = stream, name, output
        self.start()

    def run(self) -> None:
        """Read until the other side closes."""
        try:
            for raw in iter(lambda: self._stream.readline(LINE_BYTES), b""):
                self._output(self._name, raw.decode(errors="replace").rstrip("\r\n"))
        except (OSError, ValueError):
            pass  # closed
        finally:
            self._stream.close()

    def finish(self) -> None:
        """Wait for the last lines of a process that ended."""
        self.join(_JOIN_SECONDS)
