"""What does one design cost? Pure functions over arrays; numpy only."""

if not __name__.startswith("shapefront."):
    raise ImportError(f"'{__name__}' is a room of shapefront, not a package: import shapefront.{__name__}")

from .architecture import Architecture, ArchitectureKind
from .batch import ArchitectureBatch, group_by_kind
from .errors import InvalidValueError, ShapefrontError, UnknownKeyError
from .formats import FORMATS, NumberFormat, TensorFormats, get_format
from .hardware import Hardware, hardware_names, load_hardware
from .layout import Layout, LayoutBatch, enumerate_layouts
from .profile import KernelProfile, load_profile, profile_names
from .workload import Workload

__all__ = [
    "FORMATS",
    "Architecture",
    "ArchitectureBatch",
    "ArchitectureKind",
    "Hardware",
    "InvalidValueError",
    "KernelProfile",
    "Layout",
    "LayoutBatch",
    "NumberFormat",
    "ShapefrontError",
    "TensorFormats",
    "UnknownKeyError",
    "Workload",
    "enumerate_layouts",
    "get_format",
    "group_by_kind",
    "hardware_names",
    "load_hardware",
    "load_profile",
    "profile_names",
]
