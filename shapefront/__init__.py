"""shapefront: search hardware-friendly LLM architectures with a GB300 cost model (public face, lazy)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name → module that defines it; imported on first use so that `import shapefront` stays light.
_PUBLIC = {
    "Study": "shapefront.studies",
    "Result": "shapefront.studies",
    "Architecture": "shapefront.costmodel",
    "Layout": "shapefront.costmodel",
    "TensorFormats": "shapefront.costmodel",
    "load_hardware": "shapefront.costmodel",
    "load_profile": "shapefront.costmodel",
    "ShapefrontError": "shapefront.costmodel",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'shapefront' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
