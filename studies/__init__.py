"""What the user touches: studies, results, the command line (names are imported on first use)."""

from importlib import import_module
from typing import Any

if not __name__.startswith("shapefront."):
    raise ImportError(f"'{__name__}' is a room of shapefront, not a package: import shapefront.{__name__}")

_PUBLIC = {"Study": ".study", "Result": ".result", "StudySpec": ".spec", "study_names": ".study"}
__all__ = ["Result", "Study", "StudySpec", "study_names"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name], __name__), name)
