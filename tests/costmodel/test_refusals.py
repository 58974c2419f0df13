"""Every numeric argument of every public function, replaced by what cannot be: an error in words or a finite result, soon."""

from __future__ import annotations

import inspect
import time
import warnings
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from shapefront import costmodel
from shapefront.costmodel import (
    Architecture,
    ArchitectureBatch,
    InvalidValueError,
    LayoutBatch,
    ShapefrontError,
    Workload,
    group_by_kind,
)
from shapefront.costmodel.memory import as_batch, as_layouts

from .public_calls import BAD, DENSE, LAYOUT, MOE, PUBLIC

SECONDS = 2.0
WITHOUT_NUMBERS = {
    "ArchitectureKind", "KernelProfile", "TensorFormats", "ShapefrontError", "InvalidValueError", "UnknownKeyError",
    "hardware_names", "profile_names", "group_by_kind",
}  # fmt: skip


def numbers_in(value: Any) -> list[np.ndarray[Any, Any]]:
    """Every array of numbers inside a result; a workload's goals may be endless."""
    if isinstance(value, np.ndarray | int | float):
        array = np.asarray(value)
        return [array] if array.dtype.kind in "iuf" else []
    if isinstance(value, list | tuple):
        return [array for item in value for array in numbers_in(item)]
    if is_dataclass(value) and not isinstance(value, type | Workload):
        return [array for f in fields(value) if not f.name.startswith("_") for array in numbers_in(getattr(value, f.name))]
    return []


def test_every_public_function_with_numbers_has_a_call() -> None:
    callables = {name for name in costmodel.__all__ if callable(getattr(costmodel, name))}
    assert callables - WITHOUT_NUMBERS <= set(PUBLIC)
    for name in callables & set(PUBLIC):
        function = PUBLIC[name].function
        known = set(inspect.signature(function).parameters)
        keywords = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
        assert keywords or set(PUBLIC[name].arguments) <= known
        annotated = {
            p.name
            for p in inspect.signature(function).parameters.values()
            if any(word in str(p.annotation) for word in ("ArrayLike", "float", "int")) and "str" not in str(p.annotation)
        }
        assert annotated <= set(PUBLIC[name].arguments), f"{name} lacks {annotated - set(PUBLIC[name].arguments)}"


@pytest.mark.parametrize("name", PUBLIC)
def test_the_call_itself_works(name: str) -> None:
    """Else a refusal below would prove nothing."""
    assert PUBLIC[name]() is not None


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", PUBLIC)
def test_an_impossible_number_is_refused_in_words(name: str, bad: str) -> None:
    """Zero, infinity or digits as text may be good for one argument (no window, no goal): then the result must be finite."""
    call = PUBLIC[name]
    for argument in call.numeric:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                result = call(**{argument: BAD[bad]})
            except ShapefrontError as error:
                assert isinstance(error, InvalidValueError)
                assert 10 < len(str(error)) < 600, f"{name}({argument}): {error}"
            else:
                assert all(np.all(np.isfinite(array)) for array in numbers_in(result)), f"{name}({argument})"
                assert bad not in ("NaN", "text", "10^400", "10^5000", "complex", "None in a list"), f"{name}({argument}) accepts it"
        assert time.perf_counter() - start < SECONDS, f"{name}({argument}={bad})"


@pytest.mark.parametrize("bad", ["DeepSeek-R1", None, 3, 10**400, [MOE, DENSE]])
def test_what_is_no_design_or_layout_is_refused(bad: Any) -> None:
    for read in (as_batch, as_layouts):
        with pytest.raises(InvalidValueError, match="must be a"):
            read(bad)
    with pytest.raises(InvalidValueError):
        ArchitectureBatch.from_architectures(bad)
    with pytest.raises(InvalidValueError):
        LayoutBatch.from_layouts(bad)


def test_a_mixed_list_of_other_things_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="got 3 at index 1"):
        group_by_kind([DENSE, 3])  # type: ignore[list-item]


def test_a_batch_names_the_design_the_field_and_the_way_out() -> None:
    arrays = {name: np.full(5, getattr(DENSE, name)) for name in costmodel.architecture.INTEGER_FIELDS}
    arrays["vocab_size"][3] = 0
    with pytest.raises(InvalidValueError, match=r"^vocab_size must be at least 1, got vocab_size=0 in design 3 of 5; give it"):
        ArchitectureBatch.from_arrays(DENSE.kind, **arrays)
    arrays["vocab_size"][3], arrays["num_key_value_heads"][4] = 8, 12
    message = r"n_kv_heads must divide n_heads, got num_attention_heads=32, num_key_value_heads=12 in design 4 of 5; take"
    with pytest.raises(InvalidValueError, match=message):
        ArchitectureBatch.from_arrays(DENSE.kind, **arrays)


def test_a_batch_names_the_lengths_that_do_not_fit() -> None:
    with pytest.raises(InvalidValueError, match=r"shapes must broadcast, got hidden_size \(2,\), head_dim \(3,\)"):
        ArchitectureBatch.from_arrays(DENSE.kind, hidden_size=[1, 2], head_dim=[1, 2, 3])


def test_a_batch_of_layouts_names_the_layout() -> None:
    with pytest.raises(InvalidValueError, match=r"layout 1 of the batch: attention and FFN use the same GPUs"):
        LayoutBatch.from_arrays(tpa=[2, 2], tpf=[2, 4])


def test_an_array_names_the_index() -> None:
    with pytest.raises(InvalidValueError, match=r"GEMM size n must be finite and positive, got nan at index 1, 2; leave out"):
        costmodel.gemm_seconds(8, np.array([[1, 2, 3], [4, 5, np.nan]]), 128, format="bf16", profile="ideal")


def test_only_what_exists_is_indexed() -> None:
    batch = ArchitectureBatch.from_architectures([DENSE])
    assert batch.architecture(-1) == Architecture(**{**DENSE.to_dict(), "name": ""})
    for bad in (1, 10**400, 0.5, "first"):
        with pytest.raises(InvalidValueError, match="design must be a whole number from -1 to 0"):
            batch.architecture(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="layout must be a whole number"):
            as_layouts(LAYOUT).layout(bad)  # type: ignore[arg-type]
