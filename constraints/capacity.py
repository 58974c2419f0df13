"""Does a design fit: the scale-up domain and the memory that weights leave for the KV cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..costmodel import ArchitectureBatch, Hardware, LayoutBatch, TensorFormats
from ..costmodel.memory import max_concurrency

BoolArray = NDArray[np.bool_]


def in_domain(layouts: LayoutBatch, hardware: Hardware, *, pipeline_inside: bool = True) -> BoolArray:
    """Whether each layout stays inside one scale-up domain, shape ``(P,)``.

    Args:
        layouts: layouts, ``(P,)``.
        hardware: the GPU and its domain.
        pipeline_inside: all stages in the domain; otherwise only each single stage.
    """
    return np.asarray((layouts.gpus if pipeline_inside else layouts.stage_gpus) <= hardware.scale_up_gpus)


def fits_memory(
    batch: ArchitectureBatch, layouts: LayoutBatch, *, context: float, formats: TensorFormats, hardware: Hardware
) -> BoolArray:
    """Whether weights and at least one sequence of ``context`` tokens fit, shape ``(A, P)``."""
    return np.asarray(max_concurrency(batch, layouts, context=context, formats=formats, hardware=hardware) >= 1)
