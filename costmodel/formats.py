"""Number formats: bits per stored value, scales included, and the tensor classes they are chosen for.

Sources: physics of block-scaled formats (OCP MX specification v1.0 for MXFP8/MXFP4: one E8M0 scale per 32
values; NVFP4: one E4M3 scale per 16 values and one FP32 scale a tensor; DeepSeek-V3 report, section 3.3, for
FP8-block: one FP32 scale per 128 activations or per 128x128 weights). Status of every number: datasheet.

Sources of ``k_multiple``, the reduction length that kernels accept: 16 B rows of FP8 (cuBLASLt documentation, tensor core
usage for FP8: dimensions divisible by 16); 32 values of 4-bit formats (vLLM pull request 31099 and SGLang 17300: weights and
activations are padded to 32 for the CUTLASS and FlashInfer kernels, although an NVFP4 scale covers 16); a whole scale
group elsewhere (MX 32; FP8-block and INT4 g128 128: vLLM and SGLang refuse other shards by name, newer releases pad).
Status: datasheet of the kernels.

A new format goes here: one row of ``_FORMATS``; it is priced by the fitted kernel of the same tensor-core rate
(:meth:`.profile.KernelProfile.family`) until a profile has numbers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType

from .checks import number, whole
from .errors import UnknownKeyError, did_you_mean, shown

RATES = ("bf16", "fp8", "nvfp4")  # tensor-core rates of :class:`.hardware.Hardware`


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """One storage format.

    Attributes:
        name: the name used in files and on the command line.
        activation_bits: bits per activation value, scales included.
        weight_bits: bits per weight value, scales included.
        math: tensor-core rate the GEMM runs at: ``bf16``, ``fp8`` or ``nvfp4``.
        source: where the bit counts come from.
        k_multiple: the reduction length K of a product is padded to a multiple of it.
    """

    name: str
    activation_bits: float
    weight_bits: float
    math: str
    source: str
    k_multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("activation_bits", "weight_bits"):
            number(name, getattr(self, name), "above 0 and at most 64 bits a value", above=True, high=64.0)
        whole("k_multiple", self.k_multiple, 1, 4096)
        if self.math not in RATES:
            raise UnknownKeyError(f"a format's math must be one of {', '.join(RATES)}, got {shown(self.math)}")

    @property
    def activation_bytes(self) -> float:
        """Bytes per activation value, scales included."""
        return self.activation_bits / 8

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight value, scales included."""
        return self.weight_bits / 8


_MX = "OCP Microscaling Formats specification v1.0 (datasheet)"
_FORMATS = (
    NumberFormat("bf16", 16, 16, "bf16", "IEEE-754-derived 16-bit brain float (datasheet)"),
    NumberFormat("fp8", 8, 8, "fp8", "E4M3 with one scale a tensor (datasheet)", 16),
    NumberFormat("fp8_block", 8 + 32 / 128, 8 + 32 / 128**2, "fp8", "DeepSeek-V3 report, section 3.3 (datasheet)", 128),
    NumberFormat("mxfp8", 8 + 8 / 32, 8 + 8 / 32, "fp8", _MX, 32),
    NumberFormat("nvfp4", 4 + 8 / 16, 4 + 8 / 16, "nvfp4", "NVIDIA NVFP4: E4M3 scale per 16 values (datasheet)", 32),
    NumberFormat("mxfp4", 4 + 8 / 32, 4 + 8 / 32, "nvfp4", _MX, 32),
    # Weight-only formats: activations stay 16-bit and the tensor cores run at the 16-bit rate.
    NumberFormat("int4_g128", 16, 4 + 16 / 128, "bf16", "INT4, one BF16 scale per 128 weights (datasheet)", 128),
    NumberFormat("w4a16_mxfp4", 16, 4 + 8 / 32, "bf16", _MX, 32),
)
FORMATS = MappingProxyType({f.name: f for f in _FORMATS})


def get_format(name: str) -> NumberFormat:
    """Return the format called ``name``.

    Raises:
        UnknownKeyError: no such format; the message names the nearest.
    """
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        text = name if isinstance(name, str) else shown(name)
        raise UnknownKeyError(f"unknown number format '{text[:80]}'{did_you_mean(text, FORMATS)}") from None


@dataclass(frozen=True, slots=True)
class TensorFormats:
    """The number format of each tensor class (weights and the activations that meet them).

    Defaults are the project's study defaults: NVFP4 in the linear layers and experts, BF16 LM head and router,
    FP8 KV cache, BF16 attention math.
    """

    qkv: str = "nvfp4"
    attention_output: str = "nvfp4"
    ffn: str = "nvfp4"
    experts: str = "nvfp4"
    lm_head: str = "bf16"
    router: str = "bf16"
    kv: str = "fp8"
    attention: str = "bf16"

    def __post_init__(self) -> None:
        for field in fields(self):
            get_format(getattr(self, field.name))

    @classmethod
    def uniform(cls, linear: str, *, kv: str = "fp8") -> TensorFormats:
        """All linear layers and experts in ``linear``; LM head, router and attention math stay BF16."""
        return cls(qkv=linear, attention_output=linear, ffn=linear, experts=linear, kv=kv)
