"""The value types of a study file: counts, dimensions, formats; bounded, each with its JSON schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ..constraints.budget import parse_count
from ..constraints.space import MAX_VALUES, lattice
from ..costmodel import FORMATS, ShapefrontError
from ..costmodel.errors import did_you_mean
from ..costmodel.layout import MAX_GPUS

MAX_DIMENSION_VALUE = 1 << 20


def short(value: Any, length: int = 40) -> str:
    """A value as text for a message, never longer than ``length`` and never failing (integers of any size)."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    return str(value)[:length]


def _message(call: Any, *args: Any) -> Any:
    """Run a reader; turn its error into the ValueError that pydantic collects."""
    try:
        return call(*args)
    except ShapefrontError as error:
        raise ValueError(str(error)) from None


def _count(value: Any) -> float:
    if isinstance(value, int) and abs(value) >= 10**30:
        raise ValueError(f"a parameter count must be above 0 and at most 1e14, got {short(value)}")
    return float(_message(parse_count, value))


def read_values(value: Any) -> tuple[int, ...]:
    """One whole number, a rising list of them, or ``{low, high, step}`` (multiples of step)."""
    if isinstance(value, dict):
        unknown = [key for key in value if key not in ("low", "high", "step")]
        if unknown:
            raise ValueError(f"unknown key '{str(unknown[0])[:60]}'{did_you_mean(str(unknown[0]), ('low', 'high', 'step'))}")
        missing = [key for key in ("low", "high", "step") if key not in value]
        if missing:
            raise ValueError(f"a range needs low, high and step; '{missing[0]}' is missing")
        low, high, step = (_whole(value[key], key) for key in ("low", "high", "step"))
        return tuple(_message(lattice, low, high, step))
    values = [_whole(item, "a value") for item in value] if isinstance(value, list | tuple) else [_whole(value, "a value")]
    if not 1 <= len(values) <= MAX_VALUES:
        raise ValueError(f"a dimension has 1 to {MAX_VALUES} values, got {len(values)}")
    if sorted(set(values)) != values:
        raise ValueError(f"the values must rise and differ, got {values[:12]}")
    return tuple(values)


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} must be a whole number, got {short(value)!r}")
    if not 0 <= value <= MAX_DIMENSION_VALUE * 64:
        raise ValueError(f"{what} must be between 0 and {MAX_DIMENSION_VALUE * 64}, got {short(value)}")
    return value


def _format(value: Any) -> str:
    if not isinstance(value, str) or value not in FORMATS:
        raise ValueError(f"unknown number format {str(value)[:40]!r}{did_you_mean(str(value)[:40], FORMATS)}")
    return value


Count = Annotated[
    float,
    BeforeValidator(_count),
    WithJsonSchema({"anyOf": [{"type": "string", "examples": ["30.5B"]}, {"type": "number", "exclusiveMinimum": 0}]}),
]
Values = Annotated[
    tuple[int, ...],
    BeforeValidator(read_values),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {
                    "type": "object",
                    "properties": {key: {"type": "integer"} for key in ("low", "high", "step")},
                    "required": ["low", "high", "step"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Format = Annotated[str, BeforeValidator(_format), WithJsonSchema({"enum": sorted(FORMATS)})]
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Gpus = Annotated[int, Field(strict=True, ge=1, le=MAX_GPUS)]
Rate = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, max_length=400)]


class Section(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
