"""The built-in models: shapes of released language models with their source and the vendor's published counts.

The rows live in ``data/models/models.csv``. Vendors count active parameters differently, so each row that publishes a count
names its convention: ``with`` or ``without`` the input look-up table, or ``tied`` (one table, nothing to choose).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from .architecture import INTEGER_FIELDS, Architecture
from .errors import InvalidValueError, UnknownKeyError, did_you_mean
from .hardware import data_directory

_FLAGS = ("gated_ffn", "tie_word_embeddings", "qkv_bias", "output_bias", "ffn_bias", "router_bias", "attention_sinks")
_SUFFIXES = MappingProxyType({"M": 1e6, "B": 1e9, "T": 1e12})


@dataclass(frozen=True, slots=True)
class PublishedCount:
    """A parameter count as a vendor prints it.

    Attributes:
        text: the printed figure, e.g. ``8.03B``.
        value: the same in parameters.
        half_digit: half a unit of its last printed digit, in parameters.
    """

    text: str
    value: float
    half_digit: float

    @classmethod
    def parse(cls, text: str) -> PublishedCount:
        """Read ``8.03B``, ``405B`` or ``1T``.

        Raises:
            InvalidValueError: not a number with a suffix M, B or T.
        """
        number, suffix = text[:-1], text[-1:]
        if suffix not in _SUFFIXES or not number.replace(".", "", 1).isdecimal():
            raise InvalidValueError(f"a published count reads like '8.03B', got {text[:40]!r}")
        decimals = len(number.partition(".")[2])
        return cls(text, float(number) * _SUFFIXES[suffix], 0.5 * 10.0**-decimals * _SUFFIXES[suffix])


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One released model.

    Attributes:
        name: the name used on the command line.
        family: Hugging Face ``model_type`` or the nearest to it.
        architecture: its shape.
        published_total: vendor's total, None where none is known.
        published_active: vendor's active count, None where none is known.
        active_convention: ``with``, ``without`` (the input look-up table) or ``tied``; empty without a published active count.
        other_params: parameters of the published total that are not the language model's (a vision encoder).
        not_covered: which of ``total``, ``active``, ``shape`` the plain formula does not cover.
        reason: why.
        published_source: where the counts come from.
        source: where the shape comes from.
        notes: remarks.
    """

    name: str
    family: str
    architecture: Architecture
    published_total: PublishedCount | None
    published_active: PublishedCount | None
    active_convention: str
    other_params: float
    not_covered: tuple[str, ...]
    reason: str
    published_source: str
    source: str
    notes: str

    @property
    def published_active_share(self) -> float | None:
        """Active over total as published; None where one of them is not."""
        if self.published_total is None or self.published_active is None:
            return None
        return self.published_active.value / self.published_total.value

    @property
    def vendor_active_params(self) -> int:
        """This project's active count under the vendor's convention."""
        design = self.architecture
        return design.active_params if self.active_convention == "without" else design.active_params_with_embedding


def _row(cells: dict[str, str]) -> ModelRow:
    shape: dict[str, Any] = {name: cells[name] for name in ("name", "attention", "qk_norm")}
    shape |= {name: int(cells[name]) for name in (*INTEGER_FIELDS, "norms_per_layer")}
    shape |= {name: cells[name] == "true" for name in _FLAGS}
    architecture = Architecture(**shape)
    count = {
        key: PublishedCount.parse(cells[key]) if cells[key] else None
        for key in ("published_total", "published_active", "other_params")
    }
    other = count["other_params"]
    return ModelRow(
        name=cells["name"],
        family=cells["family"],
        architecture=architecture,
        published_total=count["published_total"],
        published_active=count["published_active"],
        active_convention=cells["active_convention"],
        other_params=other.value if other else 0.0,
        not_covered=tuple(cells["not_covered"].split()),
        reason=cells["reason"],
        published_source=cells["published_source"],
        source=cells["source"],
        notes=cells["notes"],
    )


@lru_cache(maxsize=1)
def model_rows() -> tuple[ModelRow, ...]:
    """Every built-in model, in the order of the data file."""
    path = data_directory("models") / "models.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_row(cells) for cells in csv.DictReader(file))


def model_names() -> list[str]:
    """Names of the built-in models, in the order of the data file."""
    return [row.name for row in model_rows()]


def _key(name: str) -> str:
    """Spelling that does not matter: case, an organisation's prefix, ``Meta-``, blanks."""
    return "".join(name.rsplit("/", 1)[-1].lower().removeprefix("meta-").split())


def model_row(name: str) -> ModelRow:
    """The row of a built-in model; ``Qwen/Qwen3-8B`` and ``qwen3-8b`` mean the same.

    Raises:
        UnknownKeyError: no such model; the message names the nearest.
    """
    wanted = _key(str(name)[:200])
    for row in model_rows():
        if _key(row.name) == wanted:
            return row
    names = {_key(n): n for n in model_names()}
    hint = did_you_mean(wanted, names)
    for key, shown in names.items():
        hint = hint.replace(f"'{key}'", f"'{shown}'")
    raise UnknownKeyError(
        f"unknown model '{str(name)[:80]}'{hint}; `shapefront models` lists them, a file must end in .json or .toml"
    )


def load_model(name: str) -> Architecture:
    """Shape of a built-in model.

    Raises:
        UnknownKeyError: no such model.
    """
    return model_row(name).architecture
