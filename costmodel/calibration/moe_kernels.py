"""Which rows of the measured MoE tables make up which entry of a profile, per serving stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """Which rows make up one entry of the profile.

    Attributes:
        name: entry in the profile, ``format`` or ``format:kernel``.
        dtype: ``moe_dtype`` of the table.
        sources: parts of ``kernel_source`` that belong to it.
        older: what the stack runs in its place on GPUs before Blackwell.
        activation_bits: how the kernel takes activations (see :class:`..moe_parameters.MoeParameters`).
        lender: stack whose rows of the same kernel the numbers are fitted to, as its tables hold more shapes or fewer
            wrong picks of the autotuner; the stack's own rows stay the ones it is judged on.
    """

    name: str
    dtype: str
    sources: tuple[str, ...]
    older: tuple[str, ...] = ()
    activation_bits: float = 0.0
    lender: str = ""

    @property
    def format(self) -> str:
        """Number format of the entry."""
        return self.name.split(":")[0]


_FUSED = ("flashinfer_trtllm_trtllmfp8expertsmonolithic", "trtllmnvfp4expertsmonolithic", "trtllmbf16experts")
_TORCH_FLOW = ("moe_torch_flow_cutlass", "moe_torch_flow_nongated")
KERNELS: Mapping[str, tuple[Kernel, ...]] = {
    "trtllm": (
        Kernel("nvfp4", "nvfp4", _TORCH_FLOW),
        Kernel("fp8_block", "fp8_block", ("deepgemm",), ("moe_torch_flow_cutlass",)),
        Kernel("fp8", "fp8", _TORCH_FLOW),
        Kernel("bf16", "bfloat16", _TORCH_FLOW),
        Kernel("nvfp4:fused", "nvfp4", ("min_latency",)),
        Kernel("fp8_block:fused", "fp8_block", ("flashinfer_trtllm",)),
        Kernel("mxfp4", "w4a8_mxfp4_mxfp8", ("moe_torch_flow",), activation_bits=8, lender="sglang"),
        Kernel("w4a16_mxfp4", "w4a16_mxfp4", ("moe_torch_flow",)),
    ),
    "sglang": (
        Kernel("nvfp4", "nvfp4", ("flashinfer_trtllm",)),
        Kernel("fp8_block", "fp8_block", ("flashinfer_trtllm",), ("fused_moe_triton",)),
        Kernel("bf16", "bfloat16", ("flashinfer_trtllm",), ("fused_moe_triton",)),
        Kernel("mxfp4", "w4a8_mxfp4_mxfp8", ("flashinfer_trtllm",), activation_bits=8),
        Kernel("w4a16_mxfp4", "w4a16_mxfp4", ("flashinfer_trtllm",), ("fused_moe_triton",)),
        Kernel("int4_g128", "int4_wo", ("flashinfer_trtllm",), ("marlin",)),
        Kernel("fp8_block:grouped", "fp8_block", ("deepgemm",)),
        Kernel("fp8_block:triton", "fp8_block", ("triton",)),
        Kernel("bf16:triton", "bfloat16", ("triton",)),
    ),
    "vllm": (
        Kernel("nvfp4", "nvfp4", _FUSED),
        Kernel("fp8_block", "fp8_block", _FUSED, ("cutlass_flashinferexperts",)),
        Kernel("fp8", "fp8", _FUSED, ("cutlass_flashinferexperts",)),
        Kernel("bf16", "bfloat16", _FUSED, ("tritonexperts",)),
        Kernel("fp8_block:modular", "fp8_block", ("trtllmfp8expertsmodular",)),
        Kernel("mxfp4", "w4a8_mxfp4_mxfp8", ("trtllmmxfp4experts",), activation_bits=8),
        Kernel("w4a16_mxfp4", "w4a16_mxfp4", ("trtllmmxfp4experts",), ("oaitriton",)),
        Kernel("int4_g128", "int4_wo", ("marlinexperts",)),  # an older release's rows are 2 to 3 times slower, another call
    ),
}
