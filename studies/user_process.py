"""The process a user's function runs in: JSON lines in, JSON lines out, nothing else shared.

Started as ``python -m shapefront.studies.user_process MODULE:FUNCTION [FOLDER…]``. Its standard output belongs to the
protocol; what the function prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1  # Linux prctl(2): signal the child when its parent dies


def load_entry(entry: str) -> Callable[..., Any]:
    """Import ``module:function``.

    Raises:
        ImportError: no such module or function, or it is not callable.
    """
    module, _, name = entry.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ImportError(f"module '{module}' has no function '{name}'")
    return function  # type: ignore[no-any-return]


def _words(error: BaseException) -> str:
    """The error's text; some cannot say it."""
    try:
        return str(error)
    except Exception as worse:
        return f"(no text: {type(worse).__name__})"


def where(error: BaseException, entry: str, folders: Sequence[str]) -> str:
    """`` (file, line n)``: the innermost line of the function's own module, else the innermost of all.

    Files below one of ``folders`` are named from there.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without the line below that makes the call
    own = getattr(sys.modules.get(entry.partition(":")[0]), "__file__", None)
    chosen = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    if chosen is None:
        return ""
    name = next((os.path.relpath(chosen.filename, f) for f in folders if chosen.filename.startswith(f + os.sep)), chosen.filename)
    return f" ({name}, line {chosen.lineno})"


def main() -> None:
    """Answer calls until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a line is seen when it is printed
    entry, folders = sys.argv[1], sys.argv[2:]
    sys.path[:0] = folders
    try:
        function = load_entry(entry)
    except BaseException as error:
        answers.write(
            json.dumps({"error": f"cannot import {entry}: {type(error).__name__}: {_words(error)}"[:500], "fatal": True}) + "\n"
        )
        return
    from shapefront.costmodel import Architecture

    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        call = json.loads(line)
        try:
            value = float(function(Architecture.from_dict(call["design"]), call["point"]))
            answer: dict[str, Any] = {"value": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {_words(error)}"[:500] + where(error, entry, folders)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
