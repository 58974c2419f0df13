"""Read an architecture: a Hugging Face ``config.json``, a file of ours, or a built-in model's name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from ..costmodel.architecture import Architecture
from ..costmodel.errors import InvalidValueError
from ..costmodel.hardware import read_toml
from ..costmodel.models import load_model
from .hf_config_families import FAMILIES, Fields
from .hf_config_json import read_json_object

_OURS = tuple(f.name for f in fields(Architecture))
_NEEDED = (
    "hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, vocab_size, intermediate_size "
    "(and for experts moe_intermediate_size, num_experts, num_experts_per_tok)"
)


def parse_config(table: dict[str, Any], where: str) -> Architecture:
    """Turn a parsed Hugging Face config into an architecture.

    A multimodal config is read for its ``text_config``. Weights outside the language model (a vision encoder, prediction
    modules) are not counted.

    Args:
        table: the config's fields.
        where: file name, for messages.

    Raises:
        InvalidValueError: unknown family (names the supported ones and the fields a file of ours needs), a missing field, a
            value that breaks a rule or that the family's shape here cannot express.
    """
    family = table.get("model_type")
    if family is not None and not isinstance(family, str):
        raise InvalidValueError(f"{where}: model_type must be a name, got {family!r:.60}")
    nested = table.get("text_config")
    if isinstance(nested, dict):
        inner = nested.get("model_type", family)
        if isinstance(inner, str) and inner in FAMILIES:
            outer = {k: table[k] for k in ("tie_word_embeddings",) if k in table}
            return _build(inner, outer | nested, f"{where}: text_config")
    if family in FAMILIES:
        return _build(str(family), table, where)
    if family is None:
        found = "model_type is missing"
    else:
        found = f"the model family '{family[:60]}' is not supported"
    raise InvalidValueError(
        f"{where}: {found}; supported are {', '.join(FAMILIES)}. For another family write a file of ours (JSON or TOML) with "
        f"{_NEEDED}"
    )


def _build(family: str, table: dict[str, Any], where: str) -> Architecture:
    shape = FAMILIES[family](Fields(table, where))
    try:
        return Architecture(**shape)
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from None


def read_config(source: str | Path) -> Architecture:
    """Architecture from a file or by name; its ``name`` is the built-in name or the file's (the folder's for config.json).

    Args:
        source: path of a Hugging Face ``config.json``, of a ``.json`` or ``.toml`` file with our own field names
            (:meth:`Architecture.to_dict`), a folder that holds ``config.json``, or a built-in model's name.

    Raises:
        UnknownKeyError: neither a file nor a built-in model; the message names the nearest.
        InvalidValueError: the file cannot be read or breaks a rule.
    """
    text = str(source)
    path = Path(text)
    try:
        folder = path.is_dir()
        if folder and (path / "config.json").exists():
            path, folder = path / "config.json", False
        is_file = folder or path.exists() or path.suffix.lower() in (".json", ".toml")
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        return load_model(text)
    design = _read_file(path)
    if design.name:
        return design
    stem = path.absolute().parent.name if path.name == "config.json" else path.stem
    return design.with_(name=stem[:80])


def _read_file(path: Path) -> Architecture:
    where = str(path)[:300]
    if path.suffix.lower() == ".toml":
        table = read_toml(path)
        if set(table) == {"architecture"} and isinstance(table["architecture"], dict):
            table = table["architecture"]
        return _ours(table, where)
    table = read_json_object(path)
    if "model_type" not in table and set(table) <= set(_OURS) and "hidden_size" in table:
        return _ours(table, where)
    return parse_config(table, where)


def _ours(table: dict[str, Any], where: str) -> Architecture:
    """A file with our own field names."""
    for key in ("name", "attention", "qk_norm"):
        if key in table and not isinstance(table[key], str):
            raise InvalidValueError(f"{where}: {key} must be text, got {table[key]!r:.40}")
    flags = ("tie_word_embeddings", "gated_ffn", "qkv_bias", "output_bias", "ffn_bias", "router_bias", "attention_sinks")
    for key in flags:
        if key in table and not isinstance(table[key], bool):
            raise InvalidValueError(f"{where}: {key} must be true or false, got {table[key]!r:.40}")
    if not isinstance(table.get("norms_per_layer", 2), int):
        raise InvalidValueError(f"{where}: norms_per_layer must be a whole number, got {table['norms_per_layer']!r:.40}")
    try:
        return Architecture.from_dict(table, where)
    except InvalidValueError as error:
        message = str(error)
        raise type(error)(message if message.startswith(where) else f"{where}: {message}") from None
