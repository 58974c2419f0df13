"""Numbers that cannot be: every kernel refuses them in words, none returns NaN or a traceback."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from shapefront.costmodel import InvalidValueError, Layout, Workload
from shapefront.costmodel.attention import attention_decode_seconds, attention_prefill_seconds
from shapefront.costmodel.checks import as_floats
from shapefront.costmodel.collectives import all_gather_seconds, all_reduce_seconds, all_to_all_seconds
from shapefront.costmodel.gemm import gemm_seconds
from shapefront.costmodel.layout import LayoutBatch
from shapefront.costmodel.moe import moe_seconds
from shapefront.costmodel.serving import ServingSetup

BAD = {"NaN": math.nan, "infinity": math.inf, "negative": -1.0, "beyond a float": 10**400, "text": "many"}
HEADS: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "profile": "ideal"}
EXPERTS: dict[str, Any] = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "top_k": 8, "format": "nvfp4"}
KERNELS: dict[str, Callable[[Any], Any]] = {
    "gemm m": lambda x: gemm_seconds(x, 128, 128, format="bf16", profile="ideal"),
    "gemm k": lambda x: gemm_seconds(128, 128, x, format="bf16", profile="ideal"),
    "decode batch": lambda x: attention_decode_seconds(x, 8192, **HEADS),
    "decode window": lambda x: attention_decode_seconds(1, 8192, window=x, **HEADS),
    "prefill past": lambda x: attention_prefill_seconds(1, 128, x, **HEADS),
    "moe tokens": lambda x: moe_seconds(x, profile="ideal", **EXPERTS),
    "moe experts": lambda x: moe_seconds(64, profile="ideal", **(EXPERTS | {"num_experts": x})),
    "all-reduce bytes": lambda x: all_reduce_seconds(x, 8, profile="ideal"),
    "all-gather ranks": lambda x: all_gather_seconds(1e6, x, profile="ideal"),
    "all-to-all bytes": lambda x: all_to_all_seconds(x, 8, profile="ideal"),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", BAD)
def test_a_kernel_refuses_what_is_no_size(kernel: str, bad: str) -> None:
    with pytest.raises(InvalidValueError):
        KERNELS[kernel](BAD[bad])


@pytest.mark.parametrize("value", [[1, [2, 3]], object(), "x", 1j])
def test_only_numbers_are_read(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="width must be numbers"):
        as_floats("width", value)


def test_numbers_are_kept() -> None:
    assert as_floats("width", [1, 2.5]).tolist() == [1.0, 2.5]


@pytest.mark.parametrize("text", ["tpa=²", "tpa=", "tpa=1.0", "tpa=-1", "tpa"])
def test_a_layout_factor_is_a_decimal_number(text: str) -> None:
    """'²' counts as a digit to ``str.isdigit`` but is no number."""
    with pytest.raises(InvalidValueError, match="a layout reads like"):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("name", "value"), [("chunk_tokens", 10**400), ("chunk_tokens", 0), ("gpu_budget", 10**25), ("gpu_budget", -1)]
)
def test_a_deployment_has_bounds(name: str, value: int) -> None:
    """A budget of 10^25 GPUs would be counted up one by one."""
    choice: dict[str, Any] = {name: value}
    with pytest.raises(InvalidValueError, match=name):
        ServingSetup(workload=Workload(), layouts=LayoutBatch.from_layouts([Layout()]), profile="ideal", **choice)
