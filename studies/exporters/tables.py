"""A result as tables: csv, parquet, Markdown, and json with its published schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any

from ...costmodel.errors import InvalidValueError
from ..output import number, to_json
from ..ranking import extra_objectives

if TYPE_CHECKING:
    from ..result import Result

SCHEMA_FILE = "result.schema.json"
_MARKDOWN = (
    ("rank", "rank"),
    ("id", "architecture_id"),
    ("equal quality", "equal_quality"),
    ("H", "hidden_size"),
    ("H′", "intermediate_size"),
    ("H′e", "moe_intermediate_size"),
    ("L", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
    ("KV", "num_key_value_heads"),
    ("head size", "head_dim"),
    ("E", "num_experts"),
    ("k", "num_experts_per_tok"),
    ("total", "total_params"),
    ("active", "active_params"),
    ("area ÷ reference", "frontier_area_over_reference"),
    ("ΔL_shape", "delta_loss_shape"),
)


def csv_files(result: Result) -> dict[str, str]:
    """ranked.csv (one row per architecture) and pareto.csv (operating points of both fronts)."""
    return {"ranked.csv": result.ranked_csv(), "pareto.csv": result.pareto_csv()}


def parquet_files(result: Result) -> dict[str, bytes]:
    """The same two tables as Parquet, columns by the same names.

    Raises:
        InvalidValueError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("parquet needs pyarrow: pip install pyarrow (it comes with the 'silicon' extra)") from error
    ranked = result.ranked
    ranked["gives_up"] = ["; ".join(value) if isinstance(value, list) else value for value in ranked["gives_up"]]
    return {"ranked.parquet": ranked.to_parquet(index=False), "pareto.parquet": result.pareto.to_parquet(index=False)}


def json_files(result: Result) -> dict[str, str]:
    """result.json as written by a run, and the JSON schema it follows."""
    return {"result.json": to_json(result.data) + "\n", SCHEMA_FILE: json.dumps(result_schema(), indent=2) + "\n"}


def result_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of result.json; its ``version`` is the result's ``format``."""
    text = package_files(__package__).joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def markdown_files(result: Result) -> dict[str, str]:
    """ranked.md: a table for a page or a pull request, the reference model in its last row."""
    return {"ranked.md": markdown(result)}


def markdown(result: Result) -> str:
    """The ranked table in Markdown; columns that are 0 or empty everywhere are left out."""
    rows = [*result.ranked_rows, {**result.reference, "rank": "", "frontier_area_over_reference": 1.0}]
    columns = [(name, key) for name, key in _MARKDOWN if any(row.get(key) not in (0, None, "") for row in rows)]
    rates = [point["rate"] for point in result.reference["at_rates"]]
    extra = extra_objectives(result)
    head = [name for name, _ in columns] + [heading for heading, _ in extra] + [f"tok/s/GPU @{rate:g}" for rate in rates]
    lines = [f"# {result.data['study']}", "", _settings_line(result), "", _line(head), _line(["---"] * len(head))]
    for row in rows:
        cells = [_cell(key, row) for _, key in columns] + [number(row["objectives"].get(name)) for _, name in extra]
        cells += [number(point["tokens_per_second_per_gpu"]) for point in row["at_rates"]]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _settings_line(result: Result) -> str:
    settings = result.data.get("settings", {})
    return f"Profile {settings.get('profile', '?')}; {settings.get('workload_text', '')}; seed {result.data.get('seed')}."


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row.get(key)
    if key == "architecture_id" and value == "reference":
        return str(row.get("name", value))
    if key.endswith("_params") and value:
        return f"{value / 1e9:.2f}B"
    return value if isinstance(value, str) else number(value)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
