"""Chunked pipeline parallelism: layers over stages, chunks through them, by the recurrence.

Chunk c on stage s (both from 0) takes t[s, c] and starts when the chunk has arrived and the stage is free::

    start[s, c]  = max(finish[s - 1, c] + hop, finish[s, c - 1])                                       (1)
    finish[s, c] = start[s, c] + t[s, c]

Equal chunks t on equal stages, no hop: the last chunk of C leaves P stages at (C + P - 1)·t, bubble
(P - 1)/(C + P - 1); none when requests follow each other. Growing prefixes and unequal stages only change t[s, c].

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), Fig. 8 and 9, guideline 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .architecture import MAX_DIMENSION
from .checks import common_shape, numbers, whole
from .errors import InvalidValueError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def stage_layers(num_hidden_layers: int, stages: int, *, balanced_only: bool = False) -> IntArray:
    """Layers of each stage: as even as whole layers allow, the fuller stages first (the last one also has the head).

    Args:
        num_hidden_layers: L.
        stages: PP.
        balanced_only: refuse an uneven split.

    Raises:
        InvalidValueError: more stages than layers, or an uneven split under ``balanced_only``.
    """
    num_hidden_layers = whole("num_hidden_layers", num_hidden_layers, 1, MAX_DIMENSION)
    stages = whole("pp", stages, 1, MAX_DIMENSION)
    if stages > num_hidden_layers:
        raise InvalidValueError(f"pp must be between 1 and the {num_hidden_layers} layers, got pp={stages}: each stage needs one")
    least, rest = divmod(num_hidden_layers, stages)
    if rest and balanced_only:
        even = [n for n in range(1, num_hidden_layers + 1) if num_hidden_layers % n == 0]
        raise InvalidValueError(
            f"pp must divide num_hidden_layers={num_hidden_layers}, got pp={stages}: the fullest stage would have {least + 1} "
            f"layers, {stage_imbalance(num_hidden_layers, stages) - 1:.1%} more than the mean of "
            f"{num_hidden_layers / stages:.2f}; use pp in {even[:12]}, another depth, or allow uneven stages"
        )
    layers = np.full(stages, least, dtype=np.int64)
    layers[:rest] += 1
    return layers


def stage_imbalance(num_hidden_layers: ArrayLike, stages: ArrayLike) -> FloatArray:
    """Layers of the fullest stage over the mean: ceil(L/P)·P/L; 1 = balanced. DeepSeek-R1 (61 layers) on 4: 64/61.

    Args:
        num_hidden_layers: L, any shape; both broadcast.
        stages: PP.

    Raises:
        InvalidValueError: one is below 1 or not finite, or the shapes do not broadcast.
    """
    layers = numbers("num_hidden_layers", num_hidden_layers, "finite and >= 1", low=1.0)
    p = numbers("stages", stages, "finite and >= 1", low=1.0)
    common_shape({"num_hidden_layers": layers, "stages": p})
    return np.asarray(np.ceil(layers / p) * p / layers)


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """When each chunk is on each stage; arrays of shape ``(..., S, C)``, s.

    Attributes:
        start: when the stage begins the chunk.
        finish: when it is done.
    """

    start: FloatArray
    finish: FloatArray

    @property
    def makespan_seconds(self) -> FloatArray:
        """Last chunk off the last stage, shape ``(...)``."""
        return np.asarray(self.finish[..., -1, -1])

    @property
    def bubble(self) -> FloatArray:
        """Idle share of the stages until the makespan, shape ``(...)``; (P - 1)/(C + P - 1) for equal chunks and stages."""
        busy = (self.finish - self.start).sum(axis=(-2, -1))
        return np.asarray(1.0 - busy / (self.makespan_seconds * self.finish.shape[-2]))

    def rows(self) -> list[dict[str, float]]:
        """One ``stage, chunk, start_seconds, end_seconds`` a block, for a picture; one pipeline only."""
        if self.start.ndim != 2:
            raise InvalidValueError(f"rows need one pipeline of shape (S, C), got {self.start.shape}")
        stages, count = self.start.shape
        return [
            {"stage": s, "chunk": c, "start_seconds": float(self.start[s, c]), "end_seconds": float(self.finish[s, c])}
            for c in range(count)
            for s in range(stages)
        ]


def schedule(seconds: ArrayLike, hop_seconds: ArrayLike = 0.0) -> Schedule:
    """Equation (1) for ``seconds`` of shape ``(..., S, C)``; ``hop_seconds`` broadcasts to ``(...)``.

    The loops run over stages and chunks only, every other axis is an array.

    Args:
        seconds: time of each chunk on each stage, ``(..., S, C)``, s.
        hop_seconds: time from stage to stage, s, broadcast to ``(...)``.

    Raises:
        InvalidValueError: a negative or endless time, or shapes that do not fit.
    """
    t = numbers("seconds", seconds, "finite and >= 0")
    if t.ndim < 2 or 0 in t.shape[-2:]:
        raise InvalidValueError(f"a schedule needs seconds of shape (..., stages, chunks), got {t.shape}")
    hop = numbers("hop_seconds", hop_seconds, "finite and >= 0")
    if common_shape({"seconds": t[..., 0, 0], "hop_seconds": hop}) != t.shape[:-2]:
        raise InvalidValueError(f"hop_seconds must broadcast to {t.shape[:-2]}, got {hop.shape}; one hop a pipeline")
    start, finish = np.empty_like(t), np.empty_like(t)
    for c in range(t.shape[-1]):
        for s in range(t.shape[-2]):
            arrived = finish[..., s - 1, c] + hop if s else np.zeros(t.shape[:-2])
            free = finish[..., s, c - 1] if c else arrived
            start[..., s, c] = np.maximum(arrived, free)
            finish[..., s, c] = start[..., s, c] + t[..., s, c]
    return Schedule(start, finish)


def equal_chunk_seconds(chunks: int, stages: int, seconds: float) -> float:
    """First-token latency of equal chunks on equal stages without hops: (C + P - 1)·t, s [1]."""
    return (chunks + stages - 1) * seconds
