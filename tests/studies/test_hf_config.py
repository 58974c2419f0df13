import csv
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapefront.costmodel.errors import InvalidValueError, ShapefrontError
from shapefront.costmodel.models import load_model
from shapefront.studies.hf_config import parse_config, read_config
from shapefront.studies.hf_config_families import FAMILIES
from shapefront.studies.hf_config_json import MAX_CONFIG_BYTES

REFERENCE = Path(__file__).parents[1] / "reference"
CONFIGS = REFERENCE / "configs"
NAMED = (
    "llama",
    "mistral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "gemma2",
    "gemma3",
)


def _counts() -> list[dict[str, str]]:
    with (REFERENCE / "model_params.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", _counts(), ids=lambda r: r["config"])
def test_totals_equal_the_real_classes_exactly(row: dict[str, str]) -> None:
    # counted by make_model_params.py on the classes of the transformers library, weights on the meta device
    assert read_config(CONFIGS / row["config"]).total_params == int(row["total_params"])


def test_every_named_family_has_a_counted_config() -> None:
    seen = set()
    for row in _counts():
        table = json.loads((CONFIGS / row["config"]).read_text(encoding="utf-8"))
        seen.add(table["model_type"])
    assert set(NAMED) <= seen
    assert set(NAMED) <= set(FAMILIES)


@pytest.mark.parametrize(
    "name",
    (
        "Llama-3.1-8B Qwen3-8B Qwen3-30B-A3B Mixtral-8x7B gpt-oss-20b DeepSeek-V3 Mistral-7B-v0.3 Phi-3-mini Phi-4-mini "
        "Qwen2.5-7B Qwen2.5-0.5B DeepSeek-V2-Lite Gemma-2-9B Gemma-3-1B SmolLM2-135M"
    ).split(),
)
def test_a_config_and_the_built_in_model_are_the_same_shape(name: str) -> None:
    assert read_config(CONFIGS / f"{name}.json").with_(name="") == load_model(name).with_(name="")


def test_features_are_read() -> None:
    windowed = read_config(CONFIGS / "qwen3-windowed.json")
    assert (windowed.sliding_window, windowed.num_sliding_window_layers) == (512, 8)  # layers 4-11 of 12
    assert windowed.qkv_bias and windowed.output_bias and windowed.qk_norm == "head"
    biased = read_config(CONFIGS / "llama-biased.json")
    assert biased.ffn_bias and biased.head_dim == 96
    leading = read_config(CONFIGS / "qwen3-moe-leading-dense.json")
    assert (leading.first_k_dense_replace, leading.intermediate_size) == (2, 3072)
    nested = read_config(CONFIGS / "Gemma-3-4B.json")
    assert (nested.num_attention_heads, nested.vocab_size, nested.tie_word_embeddings) == (8, 262208, True)
    assert nested.num_sliding_window_layers == 29  # 34 layers, every sixth full: 34 - 5


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert read_config(CONFIGS / "Phi-4-mini.json").sliding_window == 0


LLAMA: dict[str, Any] = json.loads((CONFIGS / "Llama-3.1-8B.json").read_text(encoding="utf-8"))


def _changed(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (LLAMA | changes).items() if v is not ...}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (_changed(hidden_size=...), "hidden_size is missing; add it"),
        (_changed(num_hidden_layers=...), "num_hidden_layers is missing; add it"),
        (_changed(intermediate_size=...), "intermediate_size is missing; add it"),
        (_changed(vocab_size=...), "vocab_size is missing; add it"),
        (_changed(hidden_size=float("nan")), "hidden_size must be a whole number, got nan"),
        (_changed(hidden_size="4096"), "hidden_size must be a whole number, got '4096'"),
        (_changed(hidden_size=4096.0), "hidden_size must be a whole number"),
        (_changed(hidden_size=True), "hidden_size must be a whole number, got True"),
        (_changed(hidden_size=None), "hidden_size is null"),
        (_changed(hidden_size=-1), "hidden_size must be a whole number from 0 to"),
        (_changed(hidden_size=0), "hidden_size must be at least 1"),
        (_changed(hidden_size=10**17), "hidden_size must be a whole number from 0 to"),
        (_changed(num_hidden_layers=[32]), "num_hidden_layers must be a whole number"),
        (_changed(hidden_size=4100), "hidden_size must be a multiple of num_attention_heads"),
        (_changed(num_key_value_heads=12), "n_kv_heads must divide n_heads, got n_heads=32, n_kv_heads=12"),
        (_changed(tie_word_embeddings="yes"), "tie_word_embeddings must be true or false"),
        (_changed(model_type="nemotron_h"), "family 'nemotron_h' is not supported; supported are llama, mistral"),
        (_changed(model_type=...), "model_type is missing"),
        (_changed(model_type=7), "model_type must be a name"),
        (_changed(model_type="x" * 5000), "is not supported"),
        (_changed(model_type="gemma2", layer_types=["full_attention"]), "layer_types must list the 32 layers"),
        (_changed(model_type="gemma2", layer_types=["chunked_attention"] * 32), "layer_types may hold"),
        (_changed(model_type="gemma2", layer_types=5), "layer_types must list"),
        (_changed(model_type="gemma3_text", sliding_window_pattern=0), "sliding_window_pattern must be at least 1"),
        (_changed(model_type="qwen3_moe", moe_intermediate_size=512, mlp_only_layers=[3]), "mlp_only_layers must be the leading"),
        (
            _changed(model_type="qwen3_moe", moe_intermediate_size=512, decoder_sparse_step=2),
            "decoder_sparse_step=2 is not supported",
        ),
        (_changed(model_type="mixtral", num_local_experts=8, num_experts_per_tok=9), "top_k must be at most num_experts"),
        (_changed(model_type="deepseek_v3", attention_bias=True), "attention_bias=True is not supported"),
        (_changed(model_type="deepseek_v3"), "moe_intermediate_size is missing"),
        ({}, "model_type is missing"),
        ({"text_config": {"model_type": "gemma3_text"}, "model_type": "gemma3"}, "text_config: hidden_size is missing"),
    ],
)
def test_bad_fields_are_one_clear_message(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        parse_config(table, "config.json")
    assert str(caught.value).startswith("config.json")
    assert len(str(caught.value)) < 1000


def test_an_unknown_family_names_the_fields_a_file_of_ours_needs() -> None:
    with pytest.raises(InvalidValueError, match=r"write a file of ours.*hidden_size, num_hidden_layers.*num_experts_per_tok"):
        parse_config(_changed(model_type="rwkv"), "config.json")


BAD_FILES = {
    "truncated": (b'{"model_type": "llama", "hidden_size": 40', "not valid JSON.*cut off"),
    "empty": (b"", "not valid JSON, line 1"),
    "array": (b'[{"model_type": "llama"}]', "must hold one JSON object.*got an array"),
    "string": (b'"llama"', "must hold one JSON object"),
    "number": (b"4096", "must hold one JSON object"),
    "nan": (b'{"model_type": "llama", "hidden_size": NaN}', "hidden_size must be a whole number, got nan"),
    "infinity": (b'{"model_type": "llama", "hidden_size": -Infinity}', "hidden_size must be a whole number"),
    "huge number": (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "has 5000 digits"),
    "huge float": (b'{"model_type": "llama", "hidden_size": 1e999}', "hidden_size must be a whole number, got inf"),
    "duplicate": (b'{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}', "key 'hidden_size' stands twice"),
    "deep": (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "not utf-8": (b'\xff\xfe{"a": 1}', "not UTF-8"),
    "binary": (bytes(range(256)), "not UTF-8|not valid JSON"),
    "comment": (b'{"model_type": "llama", // the family\n}', "not valid JSON, line 1"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_are_one_clear_message(tmp_path: Path, kind: str) -> None:
    content, message = BAD_FILES[kind]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidValueError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))


def test_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**9)  # sparse: a 1 GB string costs nothing to make, and must cost nothing to refuse
    start = time.process_time()
    with pytest.raises(InvalidValueError, match=f"1000000000 bytes is more than the {MAX_CONFIG_BYTES}"):
        read_config(path)
    assert time.process_time() - start < 0.5


def test_what_is_not_a_plain_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no such file"):
        read_config(tmp_path / "missing.json")
    with pytest.raises(InvalidValueError, match="is a folder"):
        read_config(tmp_path)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)  # reading it would wait for ever
    with pytest.raises(InvalidValueError, match="not a plain file"):
        read_config(pipe)
    with pytest.raises(ShapefrontError):
        read_config("a\0b.json")
    with pytest.raises(ShapefrontError, match="unknown model"):
        read_config("x" * 10_000)


def test_names_of_what_was_read(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_config(folder).name == "my-model"
    assert read_config(folder / "config.json").name == "my-model"
    (folder / "other.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_config(folder / "other.json").name == "other"
    assert read_config("qwen3-8b").name == "Qwen3-8B"


def test_a_file_of_ours_in_json_and_toml(tmp_path: Path) -> None:
    design = load_model("gpt-oss-20b")
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(design.to_dict()), encoding="utf-8")
    assert read_config(path) == design
    lines = [f"{k} = {json.dumps(v)}" for k, v in design.to_dict().items()]
    (tmp_path / "ours.toml").write_text("[architecture]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert read_config(tmp_path / "ours.toml") == design


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_sise": 1}, "unknown key 'hidden_sise'.*did you mean 'hidden_size'"),
        ({"gated_ffn": "yes"}, "gated_ffn must be true or false"),
        ({"attention": 3}, "attention must be text"),
        ({"norms_per_layer": "2"}, "norms_per_layer must be a whole number"),
        ({"hidden_size": 1.5}, "hidden_size must be a whole number"),
    ],
)
def test_bad_files_of_ours(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "ours.toml"
    table = {
        "hidden_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "vocab_size": 10,
        "intermediate_size": 128,
    } | changes
    path.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in table.items()), encoding="utf-8")
    with pytest.raises(InvalidValueError, match=message):
        read_config(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([*FAMILIES, "other"]),
    st.dictionaries(st.sampled_from([*LLAMA, "layer_types", "num_experts", "mlp_only_layers"]), _JSON),
)
def test_no_config_makes_a_traceback(family: str, changes: dict[str, Any]) -> None:
    try:
        parse_config(LLAMA | changes | {"model_type": family}, "config.json")
    except InvalidValueError as error:
        assert "config.json" in str(error)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_no_bytes_make_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidValueError):
        read_config(path)
