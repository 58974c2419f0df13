"""Exported config.json files: accepted by the real transformers library, same parameter count, refused with a reason."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapefront.costmodel.architecture import Architecture
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.models import load_model
from shapefront.studies.exporters.hf_family import layer_types
from shapefront.studies.exporters.huggingface import (
    FAMILIES,
    canonical,
    choose_family,
    export_config,
    same_design,
    without_family,
    write_config,
)
from shapefront.studies.hf_config import parse_config, read_config
from shapefront.studies.preflight import export_note
from tests.studies.small import small_study

# Five designs a family: small, wide, deep, other head sizes, and each feature the family can switch.
_BASE = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
_MOE = {
    **{"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    **{"vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
}
_OSS = {**_MOE, "qkv_bias": True, "output_bias": True, "ffn_bias": True, "router_bias": True, "attention_sinks": True}
_MLA = {
    **{"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "attention": "mla"},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1},
    **{"first_k_dense_replace": 3, "intermediate_size": 18432},
}
DESIGNS: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {**_BASE, "intermediate_size": 14336},
        {**_BASE, "intermediate_size": 14336, "tie_word_embeddings": True},
        {**_BASE, "intermediate_size": 11008, "qkv_bias": True, "output_bias": True, "ffn_bias": True},
        {**_BASE, "hidden_size": 8192, "num_hidden_layers": 20, "num_attention_heads": 64, "intermediate_size": 12288},
        {**_BASE, "head_dim": 64, "num_hidden_layers": 80, "num_key_value_heads": 1, "intermediate_size": 5120},
    ],
    "mistral": [
        {**_BASE, "num_attention_heads": 24, "head_dim": 128, "intermediate_size": 14336},
        {**_BASE, "intermediate_size": 14336, "sliding_window": 4096, "num_sliding_window_layers": 32},
        {**_BASE, "num_attention_heads": 48, "head_dim": 128, "intermediate_size": 9728},
        {**_BASE, "num_attention_heads": 40, "head_dim": 128, "intermediate_size": 12288, "tie_word_embeddings": True},
        {**_BASE, "num_attention_heads": 24, "head_dim": 256, "num_key_value_heads": 4, "intermediate_size": 8192},
    ],
    "qwen2": [
        {**_BASE, "intermediate_size": 14336, "qkv_bias": True},
        {**_BASE, "intermediate_size": 14336, "qkv_bias": True, "tie_word_embeddings": True},
        {**_BASE, "hidden_size": 5120, "num_attention_heads": 40, "intermediate_size": 13824, "qkv_bias": True},
        {**_BASE, "num_key_value_heads": 32, "intermediate_size": 11008, "qkv_bias": True},
        {**_BASE, "intermediate_size": 8192, "qkv_bias": True, "sliding_window": 512, "num_sliding_window_layers": 16},
    ],
    "qwen3": [
        {**_BASE, "intermediate_size": 12288, "qk_norm": "head"},
        {**_BASE, "intermediate_size": 12288, "qk_norm": "head", "head_dim": 64, "tie_word_embeddings": True},
        {**_BASE, "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "head_dim": 128}
        | {"intermediate_size": 25600, "qk_norm": "head"},
        {**_BASE, "intermediate_size": 9728, "qk_norm": "head", "qkv_bias": True, "output_bias": True},
        {**_BASE, "intermediate_size": 9728, "qk_norm": "head", "sliding_window": 1024, "num_sliding_window_layers": 24},
    ],
    "qwen3_moe": [
        {**_MOE, "qk_norm": "head"},
        {**_MOE, "qk_norm": "head", "first_k_dense_replace": 2, "intermediate_size": 6144},
        {
            **_MOE,
            "qk_norm": "head",
            "hidden_size": 4096,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "moe_intermediate_size": 1536,
        },
        {
            **_MOE,
            "qk_norm": "head",
            "num_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "tie_word_embeddings": True,
        },
        {
            **_MOE,
            "qk_norm": "head",
            "sliding_window": 4096,
            "num_sliding_window_layers": 48,
            "qkv_bias": True,
            "output_bias": True,
        },
    ],
    "mixtral": [
        {**_BASE, "vocab_size": 32000, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14336},
        {**_MOE},
        {**_MOE, "head_dim": 64, "tie_word_embeddings": True},
        {**_MOE, "num_experts": 256, "moe_intermediate_size": 384},
        {**_BASE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7168}
        | {"sliding_window": 4096, "num_sliding_window_layers": 32},
    ],
    "deepseek_v3": [
        {**_MLA},
        {**_MLA, "q_lora_rank": 0},
        {
            **_MLA,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
        },
        {**_MLA, "hidden_size": 6144, "qk_nope_head_dim": 192, "v_head_dim": 256, "num_attention_heads": 64, "q_lora_rank": 2048},
        {**_MLA, "num_experts": 128, "moe_intermediate_size": 4096, "num_experts_per_tok": 4, "first_k_dense_replace": 0},
    ],
    "gpt_oss": [
        {**_OSS, "sliding_window": 128, "num_sliding_window_layers": 24},
        {**_OSS},
        {
            **_OSS,
            "hidden_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
        }
        | {"moe_intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128, "num_sliding_window_layers": 18},
        {**_OSS, "sliding_window": 512, "num_sliding_window_layers": 36},
        {**_OSS, "sliding_window": 128, "num_sliding_window_layers": 48, "tie_word_embeddings": True},
    ],
    "glm4_moe": [
        {**_MOE, "n_shared_experts": 1, "qk_norm": "head"},
        {**_MOE, "n_shared_experts": 1, "first_k_dense_replace": 1, "intermediate_size": 6912},
        {**_MOE, "n_shared_experts": 2, "first_k_dense_replace": 3, "intermediate_size": 6144, "qkv_bias": True},
        {**_MOE, "n_shared_experts": 1, "tie_word_embeddings": True, "qk_norm": "head"},
        {**_MOE, "first_k_dense_replace": 1, "intermediate_size": 6144, "head_dim": 64},
    ],
    "exaone_moe": [
        {**_MOE, "qk_norm": "head", "sliding_window": 1024, "num_sliding_window_layers": 36},
        {**_MOE, "qk_norm": "head", "sliding_window": 128, "num_sliding_window_layers": 24, "n_shared_experts": 1},
        {**_MOE, "qk_norm": "head", "sliding_window": 128, "num_sliding_window_layers": 1, "n_shared_experts": 2}
        | {"first_k_dense_replace": 2, "intermediate_size": 6144},
        {**_MOE, "qk_norm": "head", "sliding_window": 512, "num_sliding_window_layers": 40, "head_dim": 64},
        {**_MOE, "qk_norm": "head", "sliding_window": 512, "num_sliding_window_layers": 47, "tie_word_embeddings": True},
    ],
}
CASES = [(family, index) for family, designs in DESIGNS.items() for index in range(len(designs))]


def _design(family: str, index: int) -> Architecture:
    return Architecture(**DESIGNS[family][index])


def test_every_exported_family_has_five_designs() -> None:
    assert set(DESIGNS) == {family.name for family in FAMILIES}
    assert all(len({_design(family, i) for i in range(5)}) == 5 for family in DESIGNS)


@pytest.mark.parametrize(("family", "index"), CASES)
def test_the_first_family_that_fits_is_chosen(family: str, index: int) -> None:
    assert choose_family(_design(family, index)) == family


@pytest.mark.parametrize(("family", "index"), CASES)
def test_transformers_builds_it_with_exactly_our_parameter_count(family: str, index: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the check against transformers needs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        design = _design(family, index)
        config = json.loads(json.dumps(export_config(design)))
        loaded = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(loaded)
    assert type(model).__name__ == config["architectures"][0]
    assert sum(parameter.numel() for parameter in model.parameters()) == design.total_params


@pytest.mark.parametrize(("family", "index"), CASES)
def test_an_export_read_back_is_the_same_design(family: str, index: int, tmp_path: Path) -> None:
    design = _design(family, index)
    path = write_config(design, tmp_path / "rank-01")
    assert same_design(read_config(path), design)


_SIZES = st.sampled_from([256, 384, 1024, 2880, 4096, 5120, 7168])


@st.composite
def _any_design(draw: st.DrawFn) -> Architecture:
    """Any combination of features, most of which no family has."""
    layers = draw(st.integers(1, 40))
    kv = draw(st.sampled_from([1, 2, 8]))
    values: dict[str, Any] = {
        "hidden_size": draw(_SIZES),
        "num_hidden_layers": layers,
        "num_attention_heads": kv * draw(st.integers(1, 8)),
        "vocab_size": draw(st.integers(1, 200_000)),
        "num_key_value_heads": kv,
        "head_dim": draw(st.sampled_from([32, 64, 96, 128])),
        "intermediate_size": draw(_SIZES),
        "qk_norm": draw(st.sampled_from(["none", "head", "full"])),
    }
    for flag in ("tie_word_embeddings", "qkv_bias", "output_bias", "ffn_bias", "router_bias", "attention_sinks"):
        values[flag] = draw(st.booleans())
    windowed = draw(st.integers(0, layers))
    if windowed:
        values |= {"num_sliding_window_layers": windowed, "sliding_window": draw(st.sampled_from([1, 128, 4096, 200_000]))}
    if draw(st.booleans()):
        experts = draw(st.integers(1, 256))
        values |= {"num_experts": experts, "num_experts_per_tok": draw(st.integers(1, min(8, experts)))}
        values |= {"moe_intermediate_size": draw(_SIZES), "first_k_dense_replace": draw(st.integers(0, layers))}
        values |= {"n_shared_experts": draw(st.integers(0, 2))}
    if draw(st.integers(0, 3)) == 0:
        values |= {"attention": "mla", "kv_lora_rank": 512, "q_lora_rank": draw(st.sampled_from([0, 1536]))}
        values |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 0}
    return Architecture(**values)


@settings(max_examples=300, deadline=None)
@given(_any_design())
def test_any_design_is_either_refused_with_a_reason_or_comes_back_the_same(design: Architecture) -> None:
    try:
        family = choose_family(design)
    except InvalidValueError as error:
        assert "the nearest is" in str(error)
        return
    config = json.loads(json.dumps(export_config(design)))
    assert config["model_type"] == family
    assert same_design(parse_config(config, "config.json"), design)


def test_a_design_no_family_expresses_is_refused_with_the_reason() -> None:
    design = _design("llama", 0).with_(gated_ffn=False)
    with pytest.raises(InvalidValueError, match=r"nearest is llama, but its gated_ffn is always True, the design has False"):
        choose_family(design)


def test_a_named_family_says_everything_it_cannot_express() -> None:
    design = _design("qwen3", 4)
    with pytest.raises(
        InvalidValueError, match=r"llama cannot express.*qk_norm is always none.*no sliding-window layers, the design has 24"
    ):
        export_config(design, "llama")
    with pytest.raises(UnknownKeyError, match=r"unknown model family 'qwen3moe' \(did you mean 'qwen3_moe'\?\)"):
        export_config(design, "qwen3moe")


def test_heads_that_do_not_divide_the_hidden_size_leave_llama_for_mistral() -> None:
    # 4096 / 24 is no whole number: the Llama config class refuses it, Mistral's takes any head size
    design = _design("mistral", 0)
    assert design.hidden_size % design.num_attention_heads != 0
    with pytest.raises(InvalidValueError, match="hidden_size to be a multiple of num_attention_heads"):
        export_config(design, "llama")


def test_shared_experts_of_another_width_are_refused() -> None:
    design = _design("deepseek_v3", 0).with_(shared_expert_intermediate_size=4096)
    with pytest.raises(InvalidValueError, match=r"as wide as its routed ones \(2048\), the design's are 4096"):
        choose_family(design)


def test_window_pattern_is_even_and_starts_windowed() -> None:
    half = Architecture(**DESIGNS["gpt_oss"][2])
    assert layer_types(half)[:4] == ["sliding_attention", "full_attention"] * 2  # 18 of 36: every other layer, as gpt-oss
    third = half.with_(num_sliding_window_layers=12)
    assert layer_types(third).count("sliding_attention") == 12
    assert layer_types(third)[:6] == ["sliding_attention", "full_attention", "full_attention"] * 2
    assert set(layer_types(half.with_(num_sliding_window_layers=0, sliding_window=0))) == {"full_attention"}


def test_unused_fields_do_not_make_two_designs() -> None:
    design = _design("qwen3_moe", 0)
    assert same_design(design, design.with_(intermediate_size=6144, name="other"))
    assert not same_design(design, design.with_(moe_intermediate_size=1024))
    assert canonical(design).total_params == design.total_params


def test_written_file_is_the_config(tmp_path: Path) -> None:
    design = _design("llama", 0)
    assert write_config(design, tmp_path / "a" / "b") == tmp_path / "a" / "b" / "config.json"
    assert json.loads(write_config(design, tmp_path / "x.json").read_text()) == export_config(design)


def test_the_nearest_family_is_the_one_whose_layers_fit() -> None:
    """Qwen2 biases query, key and value but not the output; its head size is what servers cannot take from this design."""
    qwen = load_model("Qwen2.5-14B")
    assert choose_family(qwen) == "qwen2"  # 40 heads of 128 = 5120
    with pytest.raises(InvalidValueError, match="nearest is qwen2, but servers read its head size as hidden_size"):
        choose_family(qwen.with_(num_attention_heads=48))


def test_a_study_says_at_its_start_that_designs_have_no_family() -> None:
    note = without_family([load_model("Qwen2.5-14B"), load_model("Qwen2.5-14B").with_(num_attention_heads=48)])
    assert note.startswith("1 of 2 designs looked at get architecture.json") and "nearest is qwen2" in note
    assert without_family([load_model("Qwen2.5-14B"), load_model("Llama-3.1-8B")]) == ""
    assert export_note(small_study().problem()) == ""  # Llama's shapes: all have a family
    biased = export_note(small_study(reference="Qwen2.5-7B").problem())
    assert "get architecture.json" in biased and "qwen2" in biased


@pytest.mark.parametrize("model", ["Qwen3-30B-A3B", "Qwen3-8B", "DeepSeek-V3", "gpt-oss-20b", "Llama-3.1-8B"])
def test_what_is_not_priced_is_the_released_models(model: str) -> None:
    released = json.loads((Path(__file__).parents[1] / "reference" / "configs" / f"{model}.json").read_text())
    ours = export_config(load_model(model))
    assert ours["rms_norm_eps"] == released["rms_norm_eps"]
    assert ours["max_position_embeddings"] == released["max_position_embeddings"]


def test_a_config_allows_the_requests_it_was_priced_for() -> None:
    assert export_config(load_model("Qwen3-8B"), tokens=100_000)["max_position_embeddings"] == 100_000
    assert export_config(load_model("Qwen3-8B"), tokens=9_216)["max_position_embeddings"] == 40_960
