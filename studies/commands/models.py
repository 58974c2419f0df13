"""``shapefront models``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...constraints.quality import delta_loss_shape
from ...costmodel.architecture import INTEGER_FIELDS
from ...costmodel.memory import kv_bytes_per_token
from ...costmodel.models import ModelRow, model_row, model_rows
from ..output import count, number, print_json, print_table

UNITS = {
    "active_params_with_embedding": "parameters",
    "kv_bytes_per_token": "bytes (FP8 KV cache, all layers)",
    "delta_loss_shape": "nats/token",
    "sliding_window": "tokens",
    "vocab_size": "tokens",
}


def models(
    name: Annotated[str | None, typer.Argument(help="Model to show in full.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in models with their sizes, or show one with its source."""
    rows = model_rows() if name is None else (model_row(name),)
    if json:
        print_json([_plain(row) for row in rows])
        return
    if name is not None:
        _print_one(rows[0])
        return
    table = []
    for row in rows:
        d = row.architecture
        width = d.moe_intermediate_size if d.num_experts else d.intermediate_size
        experts = f"{d.num_experts} top-{d.num_experts_per_tok}" if d.num_experts else "–"
        heads = f"{d.num_attention_heads}/{d.num_key_value_heads} {d.attention_label}"
        sizes = [d.hidden_size, d.num_hidden_layers, heads, width, experts, d.vocab_size]
        table.append([row.name, row.family, count(d.total_params), count(d.active_params), *sizes])
    columns = ["name", "family", "total", "active", "H", "L", "heads/KV", "H' or H'e", "experts", "vocabulary"]
    print_table(columns, table, title="active: matrices that multiply a token, LM head in, input look-up out")


def _print_one(row: ModelRow) -> None:
    """The fields that say something: no dimension the model does not have, no empty note."""
    plain = {key: value for key, value in _plain(row).items() if value or value is False}
    table = []
    for key, value in plain.items():
        text = ", ".join(value) if isinstance(value, list) else number(value)
        table.append([key, text, "parameters" if key.endswith("params") else UNITS.get(key, "")])
    print_table(["what", "value", "unit"], table, title=row.name)


def _plain(row: ModelRow) -> dict[str, Any]:
    d = row.architecture
    return {
        "name": row.name,
        "family": row.family,
        "total_params": d.total_params,
        "active_params": d.active_params,
        "active_params_with_embedding": d.active_params_with_embedding,
        "kv_bytes_per_token": float(kv_bytes_per_token(d)[0]),
        "delta_loss_shape": float(delta_loss_shape(d.hidden_size, d.num_hidden_layers)),
        **{field: getattr(d, field) for field in (*INTEGER_FIELDS, "tie_word_embeddings", "attention")},
        "published_total": row.published_total.text if row.published_total else None,
        "published_active": row.published_active.text if row.published_active else None,
        "active_convention": row.active_convention or None,
        "not_covered": list(row.not_covered),
        "reason": row.reason or None,
        "source": row.source,
        "published_source": row.published_source or None,
        "notes": row.notes or None,
    }
