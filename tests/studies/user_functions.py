"""User functions of the tests; imported by name in processes of their own."""

from __future__ import annotations

import os
import time
from typing import Any

from shapefront.costmodel import Architecture


def depth(architecture: Architecture, point: dict[str, Any]) -> float:
    """Prefer deep designs; note each call where a test asks for it."""
    log = os.environ.get("SHAPEFRONT_TEST_CALLS")
    if log:
        with open(log, "a") as file:
            file.write(f"{architecture.num_hidden_layers} {architecture.hidden_size} {architecture.num_attention_heads}\n")
    assert point["total_params"] == architecture.total_params
    assert {"tokens_per_second_per_gpu", "concurrency", "layout"} <= set(point["operating_points"][0])
    return architecture.num_hidden_layers


def slow(architecture: Architecture, point: dict[str, Any]) -> float:
    """Half a second a call, or as long as a test says."""
    time.sleep(float(os.environ.get("SHAPEFRONT_TEST_SECONDS", "0.5")))
    return architecture.num_hidden_layers


def shallow_only(architecture: Architecture, point: dict[str, Any]) -> float:
    """A constraint: at most 36 layers."""
    return architecture.num_hidden_layers / 36 - 1


def fails_on_odd_depth(architecture: Architecture, point: dict[str, Any]) -> float:
    """Raise for odd depths."""
    if architecture.num_hidden_layers % 2:
        raise RuntimeError(f"no data for {architecture.num_hidden_layers} layers")
    return 1.0 * architecture.hidden_size


def hangs_on_odd_depth(architecture: Architecture, point: dict[str, Any]) -> float:
    """Overrun for odd depths."""
    if architecture.num_hidden_layers % 2:
        time.sleep(60)
    return 1.0 * architecture.hidden_size


def ends_the_process(architecture: Architecture, point: dict[str, Any]) -> float:
    """Crash."""
    os._exit(7)


def prints(architecture: Architecture, point: dict[str, Any]) -> float:
    """Print to standard output, which belongs to the protocol."""
    print("epoch 1: loss 2.3")
    os.write(1, b"raw\n")
    return 1.0


def not_finite(architecture: Architecture, point: dict[str, Any]) -> float:
    """Return no number."""
    return float("nan")


def nothing(architecture: Architecture, point: dict[str, Any]) -> None:
    """Return nothing at all."""


class Speechless(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError


def fails_without_words(architecture: Architecture, point: dict[str, Any]) -> float:
    """Raise what has no text."""
    raise Speechless


_calls = [0]


def fails_every_second_time(architecture: Architecture, point: dict[str, Any]) -> float:
    """Raise on the second, the fourth, ... call of this process."""
    _calls[0] += 1
    if _calls[0] % 2 == 0:
        raise RuntimeError(f"call {_calls[0]}")
    return 1.0 * architecture.hidden_size
