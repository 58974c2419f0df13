"""Parallel layouts: attention TPA x KVP x DPA and FFN TPF x EP on the same GPUs, times PP stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import common_shape, position, whole, whole_list, whole_numbers
from .errors import InvalidValueError, UnknownKeyError, check_keys, shown

IntArray = NDArray[np.int64]
MAX_GPUS = 4096
KEYS = "tpa, kvp, dpa (attention), tpf, ep (FFN) and pp (pipeline)"


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """How one model replica lies on GPUs.

    Attributes:
        tpa: attention tensor parallelism (heads).
        kvp: KV-cache parallelism (sequence), Helix, arXiv 2507.07120.
        dpa: attention data parallelism (requests).
        tpf: FFN tensor parallelism (inner width).
        ep: expert parallelism (experts).
        pp: pipeline stages.

    Raises:
        InvalidValueError: a factor below 1, or TPA·KVP·DPA != TPF·EP.
    """

    tpa: int = 1
    kvp: int = 1
    dpa: int = 1
    tpf: int = 1
    ep: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, whole(field.name, getattr(self, field.name), 1, MAX_GPUS))
        attention, ffn = self.tpa * self.kvp * self.dpa, self.tpf * self.ep
        if attention != ffn:
            raise InvalidValueError(
                f"attention and FFN use the same GPUs: tpa*kvp*dpa must equal tpf*ep, got "
                f"{self.tpa}*{self.kvp}*{self.dpa} = {attention} and {self.tpf}*{self.ep} = {ffn}"
            )

    @property
    def gpus(self) -> int:
        """GPUs of one replica: TPA·KVP·DPA·PP."""
        return self.tpa * self.kvp * self.dpa * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage: TPA·KVP·DPA = TPF·EP."""
        return self.tpa * self.kvp * self.dpa

    def to_dict(self) -> dict[str, int]:
        """The six factors and ``gpus``."""
        return {**asdict(self), "gpus": self.gpus}

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items() if value > 1) or "tpa=1"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read ``"tpa=1,dpa=8,ep=8"``; factors not named are 1, except that a missing FFN side follows the attention side.

        When neither ``tpf`` nor ``ep`` is named, TPF takes the attention side's GPUs.

        Raises:
            InvalidValueError: not in that form, an unknown factor, or the two sides differ.
        """
        values: dict[str, int] = {}
        for part in text.split(",") if text.strip() else []:
            key, _, number = part.strip().partition("=")
            if not number.strip().isdecimal() or len(number) > 6:
                raise InvalidValueError(f"a layout reads like 'tpa=1,dpa=8,ep=8', got '{part.strip()[:60]}'")
            if key not in {f.name for f in fields(cls)}:
                near = " (did you mean 'tpa' or 'tpf'?)" if key == "tp" else ""
                raise UnknownKeyError(f"layout: unknown key '{key[:40]}'{near}; the keys are {KEYS}")
            if key in values:
                raise InvalidValueError(f"layout names {key} twice: '{text[:80]}'")
            values[key] = int(number)
        if "tpf" not in values and "ep" not in values:
            values["tpf"] = values.get("tpa", 1) * values.get("kvp", 1) * values.get("dpa", 1)
        return cls(**values)


_FIELDS = tuple(f.name for f in fields(Layout))


@dataclass(frozen=True, eq=False, slots=True)
class LayoutBatch:
    """Many layouts as a structure of arrays; every attribute is an int64 array of shape ``(P,)``."""

    tpa: IntArray
    kvp: IntArray
    dpa: IntArray
    tpf: IntArray
    ep: IntArray
    pp: IntArray

    @classmethod
    def from_arrays(cls, **arrays: Any) -> LayoutBatch:
        """Broadcast (missing factors are 1) and validate once.

        Args:
            **arrays: ``tpa kvp dpa tpf ep pp`` → whole numbers of shape ``(P,)`` or one for all.

        Raises:
            InvalidValueError: a factor that is no whole number from 1 to ``MAX_GPUS``, a layout whose two sides differ (the
                message says which), or lengths that do not fit.
            UnknownKeyError: an unknown factor.
        """
        check_keys(arrays, _FIELDS, "LayoutBatch")
        found = {name: np.atleast_1d(whole_numbers(name, arrays.get(name, 1))) for name in _FIELDS}
        if len(common_shape(found)) != 1:
            raise InvalidValueError(f"factors must be one-dimensional, got shape {common_shape(found)}; flatten them")
        values = np.broadcast_arrays(*found.values())
        batch = cls(*(np.ascontiguousarray(v) for v in values))
        outside = any(np.any((v < 1) | (v > MAX_GPUS)) for v in values)
        if outside or np.any(batch.stage_gpus != batch.tpf * batch.ep):
            for index, row in enumerate(zip(*(v.tolist() for v in values), strict=True)):
                try:
                    Layout(*row)  # raises with the message for the first bad one
                except InvalidValueError as error:
                    raise InvalidValueError(f"layout {index} of the batch: {error}") from None
        return batch

    @classmethod
    def from_layouts(cls, layouts: Sequence[Layout]) -> LayoutBatch:
        """Stack layouts.

        Raises:
            InvalidValueError: the list is empty.
        """
        if isinstance(layouts, str) or not isinstance(layouts, Sequence) or not layouts:
            raise InvalidValueError(f"a batch needs a list of at least one layout, got {shown(layouts)}")
        if not all(isinstance(layout, Layout) for layout in layouts):
            bad = next(layout for layout in layouts if not isinstance(layout, Layout))
            raise InvalidValueError(f"a batch holds Layout objects, got {shown(bad)}; read text with Layout.parse")
        return cls.from_arrays(**{name: [getattr(layout, name) for layout in layouts] for name in _FIELDS})

    def __len__(self) -> int:
        return len(self.tpa)

    @property
    def gpus(self) -> IntArray:
        """GPUs of one replica, shape ``(P,)``."""
        return self.stage_gpus * self.pp

    @property
    def stage_gpus(self) -> IntArray:
        """GPUs of one pipeline stage, shape ``(P,)``."""
        return self.tpa * self.kvp * self.dpa

    def take(self, index: Any) -> LayoutBatch:
        """The layouts at ``index`` (integers, a slice or a mask)."""
        return LayoutBatch(*(np.atleast_1d(getattr(self, name)[index]) for name in _FIELDS))

    def layout(self, index: int) -> Layout:
        """Layout ``index`` as a scalar :class:`Layout`.

        Raises:
            InvalidValueError: the batch has no such layout.
        """
        index = position("layout", index, len(self))
        return Layout(*(int(getattr(self, name)[index]) for name in _FIELDS))

    def __iter__(self) -> Iterator[Layout]:
        return (self.layout(i) for i in range(len(self)))


def enumerate_layouts(
    gpu_counts: Sequence[int], *, moe: bool, max_tpa: int = 64, max_kvp: int = 1, max_pp: int = 1, max_ep: int = 1024
) -> LayoutBatch:
    """Every layout on the given GPU counts.

    Args:
        gpu_counts: GPUs of one replica to consider.
        moe: whether experts can be spread (EP > 1); a dense FFN has EP 1.
        max_tpa: largest attention TP.
        max_kvp: largest KV parallelism; 1 turns Helix off.
        max_pp: largest pipeline depth.
        max_ep: largest expert parallelism.

    Returns:
        Distinct layouts in a fixed order (GPUs, then the factors).

    Raises:
        InvalidValueError: a count or limit that is no whole number from 1 to ``MAX_GPUS``, or no count at all.
    """
    gpu_counts = whole_list("gpu_counts", gpu_counts, 1, MAX_GPUS)
    limits = {"max_tpa": max_tpa, "max_kvp": max_kvp, "max_pp": max_pp, "max_ep": max_ep}
    max_tpa, max_kvp, max_pp, max_ep = (whole(name, limit, 1, MAX_GPUS) for name, limit in limits.items())
    rows: set[tuple[int, ...]] = set()
    for gpus in gpu_counts:
        for pp in _divisors(gpus):
            stage = gpus // pp
            if pp > max_pp:
                continue
            attention = [
                (tpa, kvp, stage // (tpa * kvp))
                for tpa in _divisors(stage)
                for kvp in _divisors(stage // tpa)
                if tpa <= max_tpa and kvp <= max_kvp
            ]
            ffn = [(stage // ep, ep) for ep in _divisors(stage) if ep == 1 or (moe and ep <= max_ep)]
            rows |= {(gpus, *a, *f, pp) for a in attention for f in ffn}
    return LayoutBatch.from_layouts([Layout(*row[1:]) for row in sorted(rows)])


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]
