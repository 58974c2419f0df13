"""What a review considers: the layouts' widest factors, formats and the quality limits."""

from __future__ import annotations

from dataclasses import dataclass

from ...costmodel.architecture import Architecture
from ...costmodel.formats import TensorFormats
from ...costmodel.profile import load_profile
from ...costmodel.serving import ServingSetup
from ..quality import SOFT_SHAPE_LIMIT

NODE = 8  # tensor parallelism stays within eight GPUs on every public stack (inferred); wider factors are not asked for


@dataclass(frozen=True, slots=True)
class Considered:
    """The frame a design is judged in.

    Attributes:
        ffn_tensor: largest FFN tensor parallelism among the layouts, at most 8.
        attention_tensor: largest attention tensor parallelism among the layouts, at most 8.
        expert: largest expert parallelism among the layouts, at most the number of experts.
        gpus: most GPUs of a layout.
        scale_up_gpus: GPUs of the scale-up domain.
        formats: number formats.
        four_bit: the hardware multiplies in four bits.
        fitted_gemms: formats whose matrix products the profile has numbers for; the others are priced at the roofline.
        max_delta_loss_shape: limit of the shape penalty, nats/token.
    """

    ffn_tensor: int
    attention_tensor: int
    expert: int
    gpus: int
    scale_up_gpus: int
    formats: TensorFormats
    four_bit: bool
    fitted_gemms: frozenset[str] = frozenset()
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT

    @classmethod
    def of(cls, design: Architecture, setup: ServingSetup, max_delta_loss_shape: float = SOFT_SHAPE_LIMIT) -> Considered:
        """The frame of a deployment."""
        profile = load_profile(setup.profile)
        layouts, hardware = setup.layouts, profile.hardware

        def largest(values: list[int], limit: int) -> int:
            return max([v for v in values if v <= limit], default=1)

        return cls(
            ffn_tensor=largest(layouts.tpf.tolist(), NODE),
            attention_tensor=largest(layouts.tpa.tolist(), NODE),
            expert=largest(layouts.ep.tolist(), design.num_experts) if design.num_experts else 1,
            gpus=int(layouts.gpus.max()),
            scale_up_gpus=hardware.scale_up_gpus,
            formats=setup.formats,
            four_bit=hardware.nvfp4_flop_per_second > 0,
            fitted_gemms=frozenset(profile.families.get("gemm", {})),
            max_delta_loss_shape=max_delta_loss_shape,
        )
