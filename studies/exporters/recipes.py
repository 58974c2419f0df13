"""Quantisation recipes that give a checkpoint the design's number formats: ModelOpt and LLM Compressor.

Both name modules as Hugging Face models do. A recipe covers the tensor classes of the design (query/key/value,
attention output, dense and shared FFN, experts, LM head) each in its own format; router, norms and embeddings stay BF16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...costmodel.architecture import Architecture
from ...costmodel.errors import InvalidValueError, UnknownKeyError, did_you_mean
from ...costmodel.formats import TensorFormats
from .deployment import linear_formats
from .yaml_text import to_yaml

MODELOPT_VERSION = "0.47.0"
LLM_COMPRESSOR_VERSION = "0.14.0"

# Module names (last part) of each tensor class in Hugging Face models.
QKV_GQA = ("q_proj", "k_proj", "v_proj")
QKV_MLA = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
FFN = ("gate_proj", "up_proj", "down_proj")

# Format → (ModelOpt numerics, whether activations are quantised too).
_MODELOPT: dict[str, tuple[str, bool]] = {
    "nvfp4": ("configs/numerics/nvfp4", True),
    "fp8": ("configs/numerics/fp8", True),
    "mxfp8": ("configs/numerics/mxfp8", True),
    "mxfp4": ("configs/numerics/mxfp4", True),
    "w4a16_mxfp4": ("configs/numerics/mxfp4", False),
    "int4_g128": ("configs/numerics/int4_per_block", False),
}
_MODELOPT_KV: dict[str, str | None] = {"bf16": None, "fp8": "configs/ptq/units/kv_fp8", "nvfp4": "configs/ptq/units/kv_nvfp4"}
# Format → preset scheme of compressed-tensors.
_SCHEMES = {
    "nvfp4": "NVFP4",
    "fp8": "FP8",
    "fp8_block": "FP8_BLOCK",
    "mxfp8": "MXFP8",
    "mxfp4": "MXFP4",
    "w4a16_mxfp4": "MXFP4A16",
    "int4_g128": "W4A16",
}


def class_formats(architecture: Architecture, formats: TensorFormats) -> dict[str, str]:
    """Low-precision tensor classes of the design: class → format; BF16 classes are left out.

    Raises:
        InvalidValueError: nothing to quantise.
    """
    found = linear_formats(architecture, formats) | {"lm_head": formats.lm_head}
    low = {name: number_format for name, number_format in found.items() if number_format != "bf16"}
    if not low and formats.kv == "bf16":
        raise InvalidValueError(
            "every tensor class and the KV cache are bf16: there is nothing to quantise, serve the checkpoint as trained"
        )
    return low


def modelopt_recipe(architecture: Architecture, formats: TensorFormats, *, name: str = "design") -> str:
    """A recipe file for NVIDIA ModelOpt (``modelopt.recipe.load_recipe``).

    Args:
        architecture: the design.
        formats: number format of each tensor class.
        name: for the description.

    Returns:
        YAML text.

    Raises:
        InvalidValueError: a format has no ModelOpt numerics, or nothing is quantised.
    """
    low = class_formats(architecture, formats)
    imports = {"base_disable_all": "configs/ptq/units/base_disable_all"}
    rules: list[dict[str, Any]] = [{"$import": "base_disable_all"}]
    for tensor_class, number_format in low.items():
        path, activations = _pick(_MODELOPT, number_format, "ModelOpt")
        imports[number_format] = path
        for pattern in _modelopt_patterns(architecture, tensor_class):
            for quantizer in ("weight_quantizer", "input_quantizer") if activations else ("weight_quantizer",):
                rules.append({"quantizer_name": f"{pattern}*{quantizer}", "cfg": {"$import": number_format}})
    kv = _pick(_MODELOPT_KV, formats.kv, "ModelOpt")
    if kv:
        imports["kv_cache"] = kv
        rules.append({"$import": "kv_cache"})
    for pattern in ("*mlp.gate.*", "*router*"):  # after the classes: the router stays BF16 whatever a pattern caught
        rules.append({"quantizer_name": pattern, "enable": False})
    weight_only = all(not _MODELOPT[number_format][1] for number_format in low.values()) and not kv
    recipe = {
        "imports": imports,
        "metadata": {"recipe_type": "ptq", "description": f"{name}: {_summary(low, formats)}"},
        "quantize": {"algorithm": None if weight_only else "max", "quant_cfg": rules},
    }
    return to_yaml(
        recipe, comments=[f"{name}: quantisation recipe for NVIDIA ModelOpt {MODELOPT_VERSION}", _summary(low, formats)]
    )


def llm_compressor_recipe(architecture: Architecture, formats: TensorFormats, *, name: str = "design") -> str:
    """A recipe file for LLM Compressor (``llmcompressor.oneshot(recipe=...)``).

    Args:
        architecture: the design.
        formats: number format of each tensor class.
        name: for the head of the file.

    Returns:
        YAML text.

    Raises:
        InvalidValueError: a format has no preset scheme, the KV cache is neither BF16 nor FP8, or nothing is quantised.
    """
    low = class_formats(architecture, formats)
    schemes: dict[str, list[str]] = {}
    for tensor_class, number_format in low.items():
        scheme = _pick(_SCHEMES, number_format, "LLM Compressor")
        schemes.setdefault(scheme, []).append(_regex(architecture, tensor_class))
    modifier: dict[str, Any] = {"scheme": schemes, "ignore": _ignored(low)}
    if formats.kv not in ("bf16", "fp8"):
        raise InvalidValueError(f"LLM Compressor has no KV-cache scheme for the format '{formats.kv}'; it has bf16, fp8")
    if formats.kv == "fp8":
        modifier["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    recipe = {"quantization_stage": {"quantization_modifiers": {"QuantizationModifier": modifier}}}
    head = [f"{name}: quantisation recipe for LLM Compressor {LLM_COMPRESSOR_VERSION}", _summary(low, formats)]
    return to_yaml(recipe, comments=head)


def _modelopt_patterns(architecture: Architecture, tensor_class: str) -> list[str]:
    if tensor_class == "qkv":
        return [f"*self_attn.{name}" for name in (QKV_MLA if architecture.attention == "mla" else QKV_GQA)]
    if tensor_class == "attention_output":
        return ["*self_attn.o_proj"]
    if tensor_class == "experts":
        return ["*.experts."]
    if tensor_class == "lm_head":
        return ["*lm_head"]
    return [f"*mlp.{name}" for name in FFN] + [f"*mlp.shared_experts.{name}" for name in FFN if architecture.n_shared_experts]


def _regex(architecture: Architecture, tensor_class: str) -> str:
    if tensor_class == "qkv":
        return rf"re:.*self_attn\.({'|'.join(QKV_MLA if architecture.attention == 'mla' else QKV_GQA)})$"
    if tensor_class == "attention_output":
        return r"re:.*self_attn\.o_proj$"
    if tensor_class == "experts":
        return rf"re:.*\.experts\.\d+\.({'|'.join(FFN)})$"
    if tensor_class == "lm_head":
        return "re:.*lm_head$"
    shared = r"(shared_experts\.)?" if architecture.n_shared_experts else ""
    return rf"re:.*mlp\.{shared}({'|'.join(FFN)})$"


def _ignored(low: dict[str, str]) -> list[str]:
    router = [r"re:.*mlp\.gate$", r"re:.*router.*"]
    return router if "lm_head" in low else ["lm_head", *router]


def _pick(table: dict[str, Any], number_format: str, tool: str) -> Any:
    if number_format not in table:
        raise InvalidValueError(f"{tool} has no recipe for the format '{number_format}'; it has {', '.join(sorted(table))}")
    return table[number_format]


def _summary(low: dict[str, str], formats: TensorFormats) -> str:
    classes = ", ".join(f"{name} {number_format}" for name, number_format in low.items()) or "weights bf16"
    return f"{classes}; KV cache {formats.kv}; router, norms and embeddings bf16"


RECIPES: dict[str, Callable[..., str]] = {"modelopt": modelopt_recipe, "llmcompressor": llm_compressor_recipe}


def write_recipe(tool: str, architecture: Architecture, formats: TensorFormats, *, name: str = "design") -> dict[str, str]:
    """File name → content for ``modelopt`` or ``llmcompressor``.

    Raises:
        UnknownKeyError: no such tool.
        InvalidValueError: the tool lacks a format.
    """
    if tool not in RECIPES:
        raise UnknownKeyError(f"unknown quantisation tool '{tool[:40]}'{did_you_mean(tool, RECIPES)}")
    return {f"{tool}.yaml": RECIPES[tool](architecture, formats, name=name)}
