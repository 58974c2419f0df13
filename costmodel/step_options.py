"""What a step needs to know beyond shapes: the serving stack's choices, with their numbers from the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import LARGEST, number
from .errors import InvalidValueError, check_keys, shown
from .formats import TensorFormats
from .moe_load import check_load
from .profile import DEFAULT_PROFILE, KernelProfile, load_profile

FloatArray = NDArray[np.float64]
_DAY = 86_400.0  # seconds: no constant of a step is longer


@dataclass(frozen=True, slots=True)
class StepParameters:
    """Profile family ``step``: what surrounds the kernels of one forward pass. Neutral defaults.

    Attributes:
        host_seconds: signed constant a step: host work that CUDA graphs do not hide, less what the kernel tables
            count and the stack does not run, s.
        overlap: share of communication hidden behind compute, [0, 1].
        shared_expert_overlap: share of the shared expert that runs beside the routed ones, [0, 1].
        static_scales: share of the dynamic per-tensor scale kernel that the GEMM tables include and a checkpoint with
            static scales does not run, [0, 1] (formats ``fp8`` and ``nvfp4``).
    """

    host_seconds: float = 0.0
    overlap: float = 0.0
    shared_expert_overlap: float = 0.0
    static_scales: float = 0.0

    def __post_init__(self) -> None:
        number("host_seconds", self.host_seconds, "a finite number of seconds", low=-_DAY, high=_DAY)
        for name in ("overlap", "shared_expert_overlap", "static_scales"):
            number(name, getattr(self, name), "between 0 and 1", high=1.0)


@dataclass(frozen=True, slots=True)
class ElementwiseParameters:
    """Profile family ``elementwise``: norms, residuals, activations. Neutral defaults.

    Attributes:
        launch_seconds: fixed time of one kernel, s.
        memory_efficiency: share of the HBM bandwidth, (0, 1].
    """

    launch_seconds: float = 0.0
    memory_efficiency: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.memory_efficiency <= 1:
            raise InvalidValueError(f"memory_efficiency must lie in (0, 1], got {self.memory_efficiency}")


def _numbers(cls: Any, profile: KernelProfile, family: str, name: str = "default") -> Any:
    fits = profile.families.get(family, {})
    table = fits[name].parameters if name in fits else {}
    check_keys(table, [f.name for f in fields(cls)], f"{profile.name}: [{family}.{name}]")
    return cls(**{name: float(value) for name, value in table.items()})


@lru_cache(maxsize=64)
def step_parameters(profile: KernelProfile, kind: str = "default") -> StepParameters:
    """The profile's ``step`` numbers: ``default``, or of one attention kind."""
    parameters: StepParameters = _numbers(StepParameters, profile, "step", kind)
    return parameters


@lru_cache(maxsize=64)
def elementwise_parameters(profile: KernelProfile, kernel: str = "default") -> ElementwiseParameters:
    """The profile's ``elementwise`` numbers: ``default`` or ``dynamic_scale``."""
    parameters: ElementwiseParameters = _numbers(ElementwiseParameters, profile, "elementwise", kernel)
    return parameters


def elementwise_seconds(bytes: ArrayLike, *, kernels: ArrayLike = 1, profile: KernelProfile) -> FloatArray:
    """Seconds of element-wise kernels: launches + bytes / (bandwidth · efficiency); all arguments broadcast.

    Args:
        bytes: bytes read and written, B.
        kernels: kernels launched.
        profile: kernel profile.
    """
    p = elementwise_parameters(profile)
    rate = profile.hardware.memory_bytes_per_second * p.memory_efficiency
    return np.asarray(np.asarray(bytes, dtype=np.float64) / rate + p.launch_seconds * np.asarray(kernels))


def dynamic_scale_seconds(rows: ArrayLike, width: ArrayLike, *, profile: KernelProfile) -> FloatArray:
    """Seconds of finding the largest absolute value of ``rows x width`` BF16 activations; 0 where the profile has none."""
    if "dynamic_scale" not in profile.families.get("elementwise", {}):
        return np.zeros(())
    p = elementwise_parameters(profile, "dynamic_scale")
    rate = profile.hardware.memory_bytes_per_second * p.memory_efficiency
    return np.asarray(p.launch_seconds + 2.0 * np.asarray(rows, dtype=np.float64) * np.asarray(width) / rate)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How one forward pass is executed.

    Attributes:
        formats: number formats of the tensor classes.
        profile: kernel profile.
        load: expert routing: a name of :data:`.moe_load.LOADS` or a factor >= 1.
        overlap: share of communication hidden behind compute; ``None`` takes the profile's.
        host_seconds: signed constant a step; ``None`` takes the profile's.
        shared_expert_overlap: ``None`` takes the profile's.
        static_scales: ``None`` takes the profile's.
        moe_kernel: expert kernel of the profile, where it has several; ``None`` takes the stack's own.
        wide_moe_kernel: the same for attention DP with expert parallelism; ``None`` takes the stack's own
            (:func:`.moe_parameters.default_kernel`).
        all_to_all_kernel: expert all-to-all kernel of the profile; ``None`` takes the stack's own
            (:func:`.expert_all_to_all.prompt_kernel` in prefill, else the plain entry).
        absorbed_format: number format of MLA's absorbed batched products; ``None`` = the attention math's.
    """

    formats: TensorFormats
    profile: KernelProfile
    load: str | float = "balanced"
    overlap: float | None = None
    host_seconds: float | None = None
    shared_expert_overlap: float | None = None
    static_scales: float | None = None
    moe_kernel: str | None = None
    wide_moe_kernel: str | None = None
    all_to_all_kernel: str | None = None
    absorbed_format: str | None = None
    _step: StepParameters = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.load, str | int | float | np.number):
            raise InvalidValueError(f"load must be a name or one factor, got {shown(self.load)}; call once for each")
        check_load(self.load)
        base = step_parameters(self.profile)
        chosen = {f.name: getattr(self, f.name) for f in fields(StepParameters)}
        merged = {
            name: getattr(base, name) if value is None else number(name, value, "one number", low=-LARGEST)
            for name, value in chosen.items()
        }
        object.__setattr__(self, "_step", StepParameters(**merged))

    @property
    def step(self) -> StepParameters:
        """The numbers around the kernels, user's choice over the profile's (the constant: see :meth:`constant`)."""
        return self._step

    def constant(self, attention: str) -> float:
        """Signed constant of a step, s: the user's, else the profile's for this attention kind (``step.mla``), else its own.

        Args:
            attention: ``gqa`` or ``mla``; measured stacks leave another residual with each.
        """
        if self.host_seconds is not None or attention not in self.profile.families.get("step", {}):
            return self._step.host_seconds
        return step_parameters(self.profile, attention).host_seconds

    @classmethod
    def make(
        cls, formats: TensorFormats | None = None, profile: str | KernelProfile = DEFAULT_PROFILE, **choices: Any
    ) -> StepOptions:
        """Fill in defaults and load the profile; unknown choices are refused by name."""
        check_keys(choices, [f.name for f in fields(cls) if f.init and f.name not in ("formats", "profile")], "step options")
        return cls(formats or TensorFormats(), load_profile(profile), **choices)


def constant_share(constant: float, seconds: float) -> float:
    """Part of a whole step that is its signed constant, s: a negative one takes no more than half of the rest, so at most ``-T``.

    Args:
        constant: the profile's constant (:meth:`StepOptions.constant`), s.
        seconds: the step T with the constant in it, s.
    """
    return max(constant, -seconds)


def require_options(options: Mapping[str, Any], *, formats: TensorFormats | None, profile: str | KernelProfile) -> StepOptions:
    """:meth:`StepOptions.make` from keyword arguments of a public function."""
    return StepOptions.make(formats, profile, **options)
