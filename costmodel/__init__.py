"""What does one design cost? Pure functions over arrays; numpy only."""

if not __name__.startswith("shapefront."):
    raise ImportError(f"'{__name__}' is a room of shapefront, not a package: import shapefront.{__name__}")

from .architecture import Architecture, ArchitectureKind
from .attention import attention_decode_seconds, attention_prefill_seconds
from .batch import ArchitectureBatch, group_by_kind
from .collectives import all_reduce_seconds, all_to_all_seconds
from .decode import decode
from .errors import InvalidValueError, ShapefrontError, UnknownKeyError
from .formats import FORMATS, NumberFormat, TensorFormats, get_format
from .gemm import gemm_seconds
from .hardware import Hardware, hardware_names, load_hardware
from .layout import Layout, LayoutBatch, enumerate_layouts
from .moe import moe_seconds
from .prefill import prefill
from .profile import DEFAULT_PROFILE, KernelProfile, load_profile, profile_names
from .serving_frontier import frontier
from .workload import Workload

__all__ = [
    "DEFAULT_PROFILE",
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
    "all_reduce_seconds",
    "all_to_all_seconds",
    "attention_decode_seconds",
    "attention_prefill_seconds",
    "decode",
    "enumerate_layouts",
    "frontier",
    "gemm_seconds",
    "get_format",
    "group_by_kind",
    "hardware_names",
    "load_hardware",
    "load_profile",
    "moe_seconds",
    "prefill",
    "profile_names",
]
