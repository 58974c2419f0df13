"""Parameters of the grouped expert GEMM: neutral defaults are the pure roofline."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from .errors import InvalidValueError, check_keys
from .formats import NumberFormat, get_format
from .hardware import Hardware
from .profile import KernelProfile

# Kernels that a stack serves with, by format: (elsewhere, where attention is data-parallel and experts are
# expert-parallel); None is the plain entry of the profile. trtllm's own table times CUTLASS and DeepGEMM, but serving
# runs the fused kernel, except behind its NVFP4 wide-EP all-to-all (the measured wide-EP table is CUTLASS). sglang runs
# DeepGEMM there: ``grouped`` is that library in all shapes, ``deepgemm`` its table of one shape, which stands in where
# there is no other (Hopper, where the plain entry is an untuned Triton kernel, 10 times slower at wide EP). The first
# that the profile has is taken. Source: measured serving rows; other choices cost up to 12 % median error there (inferred).
SERVING_KERNELS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "trtllm": {"nvfp4": (("fused",), ("cutlass",)), "fp8_block": (("fused",), ("fused",))},
    "sglang": {"nvfp4": ((), ("cutlass",)), "fp8_block": ((), ("grouped", "deepgemm"))},
}


_WEIGHT_ONLY = ("int4_g128", "w4a16_mxfp4")


@dataclass(frozen=True)
class MoeParameters:
    """Fitted numbers of a grouped expert GEMM.

    Attributes:
        launch_seconds: fixed time of the layer's kernels, s.
        wide_topk_seconds: time added where a token picks more than 10 experts: routing outside the fused kernel, s.
        expert_seconds: time per expert on the rank, s.
        touched_expert_seconds: time per touched expert, s.
        memory_efficiency: share of the HBM peak, in (0, 1].
        math_efficiency: share of the tensor peak, in (0, 1].
        unhidden: how much of the shorter of math and memory shows: sqrt(long² + unhidden·short²), 0 (all hidden)
            to 3 (the two add up).
        tile_rows_min: smallest row tile of the kernel's menu; 0 means no tiles.
        tile_rows_max: largest row tile.
        tile_overhead_rows: rows' worth of math lost per tile.
        tile_seconds: time of a tile of 128 columns on one SM beyond its math, s.
        tail_streams: loads of one weight tile on one SM that nothing hides.
        hidden_traffic: further bytes moved per row and H.
        inner_traffic: further bytes moved per row and expert width.
        token_traffic: bytes moved per token of the group and H.
        choice_traffic: bytes moved per token, choice of expert and H.
        row_seconds: time per row, s.
        choice_seconds: time per token and choice, s.
        ramp_seconds: routing time that sets in with the token count, s.
        ramp_tokens: tokens at which half of it has set in.
        step_seconds: time added above ``step_tokens`` (another routing kernel), s.
        step_tokens: tokens above which it is added.
        local_tokens: 1 where the kernel sees only tokens with an expert on its rank (after an all-to-all), 0 where
            it sees the whole group's.
        activation_bits: how the kernel takes activations: 8 as MXFP8 at the FP8 rate, 16 as BF16 at the BF16 rate
            (weight-only), 0 as the format says. No public kernel multiplies MXFP4 by MXFP4.
    """

    launch_seconds: float = 0.0
    wide_topk_seconds: float = 0.0
    expert_seconds: float = 0.0
    touched_expert_seconds: float = 0.0
    memory_efficiency: float = 1.0
    math_efficiency: float = 1.0
    unhidden: float = 0.0
    tile_rows_min: float = 0.0
    tile_rows_max: float = 0.0
    tile_overhead_rows: float = 0.0
    tile_seconds: float = 0.0
    tail_streams: float = 0.0
    hidden_traffic: float = 0.0
    inner_traffic: float = 0.0
    token_traffic: float = 0.0
    choice_traffic: float = 0.0
    row_seconds: float = 0.0
    choice_seconds: float = 0.0
    ramp_seconds: float = 0.0
    ramp_tokens: float = 1.0
    step_seconds: float = 0.0
    step_tokens: float = 256.0
    local_tokens: float = 0.0
    activation_bits: float = 0.0

    def __post_init__(self) -> None:
        for name in ("memory_efficiency", "math_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidValueError(f"moe parameters: {name} must be in (0, 1], got {getattr(self, name)}")
        if self.activation_bits not in (0, 8, 16):
            raise InvalidValueError(f"moe parameters: activation_bits must be 0, 8 or 16, got {self.activation_bits}")
        if not 0 <= self.unhidden <= 3:
            raise InvalidValueError(f"moe parameters: unhidden must be in [0, 3], got {self.unhidden}")
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise InvalidValueError(f"moe parameters: {field.name} must be >= 0, got {getattr(self, field.name)}")
        if self.tile_rows_max < self.tile_rows_min:
            raise InvalidValueError("moe parameters: tile_rows_max must not be below tile_rows_min")


def number_format(format: str, p: MoeParameters, hardware: Hardware) -> NumberFormat:
    """``format`` as the kernel of ``p`` runs it: its weights, with the activations and tensor rate it measures at."""
    number = hardware.number_format(format)
    if not p.activation_bits:
        return number
    taken = get_format("mxfp8" if p.activation_bits == 8 else "bf16")
    return replace(number, activation_bits=taken.activation_bits, math=taken.math)


@lru_cache(maxsize=256)
def moe_parameters(profile: KernelProfile, format: str, kernel: str | None = None) -> MoeParameters:
    """Parameters of ``format`` (and ``kernel``, stored as ``format:kernel``) in a profile.

    A weight-only format without numbers of its own takes another weight-only kernel's: its own with 16-bit activations
    (MXFP4 on Hopper), else the INT4 or MXFP4 one (Marlin runs NVFP4 on Hopper like INT4; inferred).
    """
    fits = profile.families.get("moe", {})
    name = f"{format}:{kernel}" if kernel and f"{format}:{kernel}" in fits else format
    number = profile.hardware.number_format(format)
    if name not in fits and number.weight_bits < number.activation_bits:
        name = next((n for n in (f"w4a16_{format}", *_WEIGHT_ONLY) if n in fits), name)
    return parse_parameters(profile.family("moe", name).parameters, f"{profile.name}: [moe.{name}]")


def parse_parameters(table: Any, where: str) -> MoeParameters:
    """Build :class:`MoeParameters` from a profile's table.

    Raises:
        UnknownKeyError: unknown keys.
    """
    check_keys(table, [f.name for f in fields(MoeParameters)], where)
    return MoeParameters(**{k: float(v) for k, v in table.items()})


def default_kernel(profile: KernelProfile, format: str, *, attention_data_parallel: bool) -> str | None:
    """Kernel a stack runs for ``format``: ``None`` (the profile's plain entry) or a name to pass as ``kernel``.

    Args:
        profile: kernel profile.
        format: number format of the experts.
        attention_data_parallel: attention is data-parallel while experts are expert-parallel (DEP layouts).
    """
    names = SERVING_KERNELS.get(profile.stack, {}).get(format, ((), ()))[attention_data_parallel]
    held = profile.families.get("moe", {})
    return next((name for name in names if f"{format}:{name}" in held), None)
