"""Quantisation recipes: read and applied by the real tools where they are installed."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel.architecture import Architecture
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.formats import TensorFormats
from shapefront.studies.exporters.huggingface import export_config
from shapefront.studies.exporters.recipes import llm_compressor_recipe, modelopt_recipe, write_recipe

# Small enough to be built and quantised on a CPU; widths are multiples of every block size (16, 32, 128).
DENSE = Architecture(
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=512,
    intermediate_size=512,
)
MOE = DENSE.with_(intermediate_size=0, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, qk_norm="head")
MLA = Architecture(
    hidden_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    vocab_size=512,
    attention="mla",
    q_lora_rank=128,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    n_shared_experts=1,
    first_k_dense_replace=1,
    intermediate_size=512,
)
DEFAULT = TensorFormats()
MIXED = TensorFormats(qkv="fp8", attention_output="fp8")
EXPERTS_ONLY = TensorFormats(qkv="bf16", attention_output="bf16", ffn="bf16", kv="bf16")
CASES = [(DENSE, DEFAULT), (MOE, DEFAULT), (MOE, MIXED), (MOE, EXPERTS_ONLY), (MLA, DEFAULT), (MLA, MIXED)]
IDS = ["dense", "moe", "moe-mixed", "moe-experts-only", "mla", "mla-mixed"]


def _yaml(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _model(design: Architecture) -> Any:
    transformers = pytest.importorskip("transformers")
    config = export_config(design)
    return transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config))


def _class_of(module: str) -> str:
    """Tensor class of a module by its Hugging Face name."""
    if ".experts." in module:
        return "experts"
    if re.search(r"self_attn\.(q_|k_|v_|kv_)", module):
        return "qkv"
    if "self_attn.o_proj" in module:
        return "attention_output"
    if re.search(r"mlp\.(shared_experts\.)?(gate|up|down)_proj", module):
        return "ffn"
    return "lm_head" if "lm_head" in module else "other"


@pytest.mark.parametrize(("design", "formats"), CASES, ids=IDS)
def test_modelopt_loads_and_applies_the_recipe(design: Architecture, formats: TensorFormats, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe_module = pytest.importorskip("modelopt.recipe", reason="nvidia-modelopt is not installed")
        mtq = importlib.import_module("modelopt.torch.quantization")
        torch = importlib.import_module("torch")
        path = tmp_path / "modelopt.yaml"
        path.write_text(modelopt_recipe(design, formats))
        recipe = recipe_module.load_recipe(path)
        assert recipe.metadata.recipe_type.value == "ptq"
        model = _model(design)
        tokens = torch.randint(0, design.vocab_size, (1, 16))
        mtq.quantize(model, recipe.quantize.model_dump(), forward_loop=lambda m: m(tokens))
    bits = {"nvfp4": (2, 1), "fp8": (4, 3)}
    seen = set()
    for name, module in model.named_modules():
        kind = _class_of(name)
        if not re.search(r"weight_quantizers?(\.\d+)?$", name) or type(module).__name__ == "ModuleList":
            continue
        wanted = "bf16" if kind in ("other", "lm_head") else getattr(formats, kind)
        assert module.is_enabled == (wanted != "bf16"), name
        if wanted != "bf16":
            assert tuple(module.num_bits) == bits[wanted], name
            seen.add(kind)
    assert seen == {kind for kind in ("qkv", "attention_output", "ffn", "experts") if getattr(formats, kind) != "bf16"} - (
        {"experts"} if not design.num_experts else set() if design.first_k_dense_replace else {"ffn"}
    )


@pytest.mark.parametrize(("design", "formats"), CASES, ids=IDS)
def test_llm_compressor_reads_and_applies_the_recipe(design: Architecture, formats: TensorFormats) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("llmcompressor", reason="llmcompressor is not installed")
        apply_quantization_config = importlib.import_module("compressed_tensors.quantization").apply_quantization_config
        recipe = importlib.import_module("llmcompressor.recipe").Recipe.create_instance(llm_compressor_recipe(design, formats))
        (modifier,) = recipe.modifiers
        config = modifier.resolved_config
        assert type(modifier).__name__ == "QuantizationModifier"
        assert bool(config.kv_cache_scheme) == (formats.kv == "fp8")
        model = _linear_experts(_model(design))
        apply_quantization_config(model, config)
    wanted_bits = {"nvfp4": 4, "fp8": 8}
    for name, module in model.named_modules():
        if type(module).__name__ != "Linear":
            continue
        kind = _class_of(name)
        wanted = "bf16" if kind in ("other", "lm_head") else getattr(formats, kind)
        scheme = getattr(module, "quantization_scheme", None)
        assert (scheme is not None) == (wanted != "bf16"), name
        if scheme is not None:
            assert scheme.weights.num_bits == wanted_bits[wanted], name


def _linear_experts(model: Any) -> Any:
    """Experts as one Linear each, as LLM Compressor unpacks them before it quantises (names .experts.0.gate_proj, …)."""
    nn = importlib.import_module("torch").nn
    for name, module in list(model.named_modules()):
        if name.endswith(".experts"):
            for index in range(4):
                expert = nn.Module()
                for part in ("gate_proj", "up_proj", "down_proj"):
                    expert.add_module(part, nn.Linear(128, 128))
                module.add_module(str(index), expert)
    return model


def test_each_class_gets_its_own_format() -> None:
    recipe = _yaml(modelopt_recipe(MLA, MIXED))
    rules = {rule["quantizer_name"]: rule for rule in recipe["quantize"]["quant_cfg"] if "quantizer_name" in rule}
    assert rules["*self_attn.kv_b_proj*weight_quantizer"]["cfg"] == {"$import": "fp8"}
    assert rules["*.experts.*weight_quantizer"]["cfg"] == {"$import": "nvfp4"}
    assert rules["*router*"]["enable"] is False
    schemes = _yaml(llm_compressor_recipe(MLA, MIXED))["quantization_stage"]["quantization_modifiers"]["QuantizationModifier"][
        "scheme"
    ]
    assert set(schemes) == {"FP8", "NVFP4"} and len(schemes["FP8"]) == len(schemes["NVFP4"]) == 2


def test_weight_only_formats_leave_activations_alone() -> None:
    text = modelopt_recipe(DENSE, TensorFormats.uniform("int4_g128", kv="bf16"))
    assert "input_quantizer" not in text and "weight_quantizer" in text
    assert _yaml(text)["quantize"]["algorithm"] is None  # nothing to calibrate


def test_what_a_tool_lacks_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="nothing to quantise"):
        modelopt_recipe(DENSE, TensorFormats.uniform("bf16", kv="bf16"))
    with pytest.raises(InvalidValueError, match="ModelOpt has no recipe for the format 'fp8_block'"):
        modelopt_recipe(DENSE, TensorFormats.uniform("fp8_block"))
    with pytest.raises(InvalidValueError, match="no KV-cache scheme for the format 'nvfp4'"):
        llm_compressor_recipe(DENSE, TensorFormats(kv="nvfp4"))
    with pytest.raises(UnknownKeyError, match=r"unknown quantisation tool 'model-opt' \(did you mean 'modelopt'\?\)"):
        write_recipe("model-opt", DENSE, DEFAULT)
