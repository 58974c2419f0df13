"""Hardware as data: one TOML file a GPU, every number with unit, source and status.

A new GPU goes into ``data/hardware/`` (or a user's own ``.toml``), never into code; ``load_profile(name, hardware=...)`` carries
a profile's kernel numbers to it until it has its own.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .checks import number, whole
from .errors import InvalidValueError, UnknownKeyError, check_keys, did_you_mean, shown
from .formats import NumberFormat, get_format

STATUSES = ("datasheet", "measured", "fitted", "inferred")
_MAX_FILE_BYTES = 1_000_000
_MAX_KEY_DEPTH = 64
_MAX_QUANTITY = 1e30
# key in the file → (unit the file must state, field of Hardware)
_QUANTITIES = MappingProxyType(
    {
        "bf16_flop_per_second": "FLOP/s",
        "fp8_flop_per_second": "FLOP/s",
        "nvfp4_flop_per_second": "FLOP/s",
        "memory_bytes_per_second": "B/s",
        "memory_bytes": "B",
        "sm_count": "1",
        "exp2_per_second": "1/s",
        "scale_up_gpus": "1",
        "scale_up_bytes_per_second": "B/s",
        "scale_out_bytes_per_second": "B/s",
    }
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, source and status."""

    value: float
    unit: str
    source: str
    status: str


@dataclass(frozen=True)
class Hardware:
    """One GPU and its links; SI units; dense peaks per GPU.

    Attributes:
        name: short name, e.g. ``gb300``.
        title: full name.
        bf16_flop_per_second: dense BF16/FP16 tensor peak, FLOP/s.
        fp8_flop_per_second: dense FP8 tensor peak, FLOP/s.
        nvfp4_flop_per_second: dense NVFP4 tensor peak, FLOP/s; 0 where the GPU has none.
        memory_bytes_per_second: HBM bandwidth, B/s.
        memory_bytes: HBM capacity as the driver reports it, B.
        sm_count: enabled streaming multiprocessors.
        exp2_per_second: exp2 evaluations per second.
        scale_up_gpus: GPUs in one scale-up (NVLink) domain.
        scale_up_bytes_per_second: scale-up link per GPU and direction, B/s.
        scale_out_bytes_per_second: scale-out link per GPU, B/s.
        quantities: every number with unit, source and status.
    """

    name: str
    title: str
    bf16_flop_per_second: float
    fp8_flop_per_second: float
    nvfp4_flop_per_second: float
    memory_bytes_per_second: float
    memory_bytes: float
    sm_count: int
    exp2_per_second: float
    scale_up_gpus: int
    scale_up_bytes_per_second: float
    scale_out_bytes_per_second: float
    quantities: MappingProxyType[str, Quantity] = field(compare=False, hash=False, repr=False)

    def __post_init__(self) -> None:
        for key in _QUANTITIES:
            value = getattr(self, key)
            if key in ("sm_count", "scale_up_gpus"):
                whole(key, value, 1, int(_MAX_QUANTITY))
            else:
                none = key == "nvfp4_flop_per_second"  # the one unit a GPU may lack
                number(key, value, "finite and positive", above=not none, high=_MAX_QUANTITY)

    def number_format(self, name: str) -> NumberFormat:
        """The format called ``name`` as this GPU runs it.

        Without FP4 units 4-bit floats are weight-only: the kernel (Marlin in vLLM and SGLang) expands them beside
        16-bit activations at the BF16 rate.

        Raises:
            UnknownKeyError: no such format.
        """
        found = get_format(name)
        if found.math != "nvfp4" or self.nvfp4_flop_per_second:
            return found
        return replace(found, activation_bits=get_format("bf16").activation_bits, math="bf16")

    def peak_flop_per_second(self, math_format: str) -> float:
        """Dense tensor peak at ``math_format`` (``bf16``, ``fp8``, ``nvfp4``), FLOP/s.

        Where the GPU has no FP4 units this is the FP8 peak (see :meth:`number_format` for what runs there).
        """
        peak = float(getattr(self, f"{math_format}_flop_per_second"))
        return peak if peak > 0 else self.fp8_flop_per_second


def parse_hardware(table: dict[str, Any], where: str) -> Hardware:
    """Build a :class:`Hardware` from a parsed TOML table.

    Raises:
        UnknownKeyError: unknown or missing keys.
        InvalidValueError: a number is not finite and positive, or lacks unit, source or status.
    """
    check_keys(table, ["name", "title", *_QUANTITIES], where, required=["name", "title", *_QUANTITIES])
    quantities: dict[str, Quantity] = {}
    for key, unit in _QUANTITIES.items():
        entry = table[key]
        if not isinstance(entry, dict):
            raise InvalidValueError(f"{where}: '{key}' must be a table with value, unit, source and status, got {entry!r:.60}")
        parts = ("value", "unit", "source", "status")
        check_keys(entry, parts, f"{where}: {key}", required=parts)
        value = entry["value"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf or value < 0:
            raise InvalidValueError(f"{where}: {key}.value must be a finite number >= 0, got {value!r:.60}")
        if not 1 <= value <= _MAX_QUANTITY and not (value == 0 and key == "nvfp4_flop_per_second"):
            raise InvalidValueError(
                f"{where}: {key}.value must be positive (1 to {_MAX_QUANTITY:g} {unit}), got {value!r:.40}"
            )
        if entry["unit"] != unit:
            raise InvalidValueError(f"{where}: {key}.unit must be '{unit}', got {entry['unit']!r:.40}")
        if entry["status"] not in STATUSES:
            raise InvalidValueError(f"{where}: {key}.status must be one of {', '.join(STATUSES)}, got {entry['status']!r:.40}")
        if not isinstance(entry["source"], str) or not entry["source"].strip():
            raise InvalidValueError(f"{where}: {key}.source must name where the number comes from")
        quantities[key] = Quantity(float(value), unit, entry["source"], entry["status"])
    numbers: dict[str, Any] = {k: q.value for k, q in quantities.items()}
    for key in ("sm_count", "scale_up_gpus"):
        if numbers[key] != int(numbers[key]):
            raise InvalidValueError(f"{where}: {key}.value must be a whole number, got {numbers[key]}")
        numbers[key] = int(numbers[key])
    return Hardware(str(table["name"]), str(table["title"]), quantities=MappingProxyType(quantities), **numbers)


def _key_depth(line: str) -> int:
    """Dots before the ``=`` of a line; the parser's time grows with their square."""
    head = line.partition("=")[0]
    return 0 if "," in head else head.count(".")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file of bounded size.

    Raises:
        InvalidValueError: the file is missing, too large, not UTF-8 or not TOML; the message names the line.
    """
    try:
        if not path.is_file():
            what = "is not a plain file; give a TOML file" if path.exists() else "no such file"
            raise InvalidValueError(f"{path}: {what}")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidValueError(
                f"{path}: {path.stat().st_size} bytes is more than the {_MAX_FILE_BYTES} a TOML file may have"
            )
        text = path.read_bytes().decode("utf-8-sig")  # some editors write a byte-order mark
        if any(_key_depth(line) > _MAX_KEY_DEPTH for line in text.splitlines()):
            raise InvalidValueError(f"{path}: a key is nested deeper than {_MAX_KEY_DEPTH} tables; flatten it")
        return tomllib.loads(text)
    except OSError as error:
        raise InvalidValueError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except InvalidValueError:
        raise
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or an integer beyond Python's digit limit
        raise InvalidValueError(f"{path}: is not valid TOML: {error}") from None


def data_directory(kind: str) -> Path:
    """Folder of the package's own data files of ``kind`` (``hardware``, ``profiles``, ``models``)."""
    return Path(str(resources.files(__package__))) / "data" / kind


def hardware_names() -> list[str]:
    """Names of the built-in hardware files."""
    return sorted(path.stem for path in data_directory("hardware").glob("*.toml"))


def load_hardware(name: str | Path | Hardware) -> Hardware:
    """Return hardware by built-in name (``gb300``) or from a user's file (a path ending in ``.toml``).

    Raises:
        UnknownKeyError: no such built-in.
        InvalidValueError: the file breaks a rule.
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str | Path):
        raise InvalidValueError(f"hardware must be a name or a file, got {shown(name)}; hardware_names() lists the names")
    return _load_hardware(str(name))


@lru_cache(maxsize=64)
def _load_hardware(name: str) -> Hardware:
    if name.endswith(".toml"):
        return parse_hardware(read_toml(Path(name)), name)
    if name not in hardware_names():
        raise UnknownKeyError(
            f"unknown hardware '{name[:80]}'{did_you_mean(name, hardware_names())}; a file of your own must end in .toml"
        )
    return parse_hardware(read_toml(data_directory("hardware") / f"{name}.toml"), name)
