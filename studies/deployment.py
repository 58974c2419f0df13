"""The default deployment of one design: workload, layouts and profile of the study defaults, from a few options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..costmodel.architecture import Architecture
from ..costmodel.formats import TensorFormats
from ..costmodel.layout import LayoutBatch, enumerate_layouts
from ..costmodel.profile import DEFAULT_PROFILE, KernelProfile, load_profile
from ..costmodel.serving import ServingSetup
from ..costmodel.workload import Workload

SMALL = 72e9  # parameters; up to 70B class 1-8 GPUs, above 4-72 (the project's study defaults)
SMALL_GPUS, LARGE_GPUS = (1, 2, 4, 8), (4, 8, 16, 32, 64, 72)
MAX_KVP = 4


@lru_cache(maxsize=32)
def default_layouts(gpus: tuple[int, ...], moe: bool) -> LayoutBatch:
    """Layouts on the given GPU counts without pipeline stages; one object per choice, so that plans are cached."""
    return enumerate_layouts(gpus, moe=moe, max_tpa=8, max_kvp=MAX_KVP)


def default_setup(
    total_params: float,
    moe: bool,
    *,
    input_tokens: int = 8192,
    output_tokens: int = 1024,
    formats: TensorFormats | None = None,
    profile: str | KernelProfile | None = None,
    hardware: str | None = None,
    gpus: Sequence[int] | None = None,
    load: str | float = "balanced",
) -> ServingSetup:
    """Deployment of a design of this size under the study defaults.

    Args:
        total_params: decides the GPU counts where ``gpus`` is not given.
        moe: experts can be spread.
        input_tokens: prompt length.
        output_tokens: answer length.
        formats: number formats of the tensor classes.
        profile: kernel profile or its name.
        hardware: GPU in place of the profile's own.
        gpus: GPU counts of one replica.
        load: expert routing.

    Raises:
        ShapefrontError: an option is out of range or unknown.
    """
    chosen = load_profile(profile or DEFAULT_PROFILE, hardware=hardware)
    counts = tuple(gpus) if gpus else SMALL_GPUS if total_params <= SMALL else LARGE_GPUS
    counts = tuple(g for g in counts if g <= chosen.hardware.scale_up_gpus) or (chosen.hardware.scale_up_gpus,)
    return ServingSetup(
        workload=Workload(input_tokens=input_tokens, output_tokens=output_tokens, load=load),
        layouts=default_layouts(counts, moe),
        formats=formats or TensorFormats(),
        profile=chosen,
    )


def setup_for(design: Architecture, **options: object) -> ServingSetup:
    """:func:`default_setup` for one design."""
    return default_setup(design.total_params, design.num_experts > 0, **options)  # type: ignore[arg-type]
