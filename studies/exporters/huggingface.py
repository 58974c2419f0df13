"""Hugging Face ``config.json`` of a design, in a real family of the ``transformers`` library.

Only the shape is a result of the search. What the cost model does not price (rotary base, norm epsilon, maximum
length, token ids) is filled with the family's usual value and is the trainer's to change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...costmodel.architecture import Architecture
from ...costmodel.errors import InvalidValueError, UnknownKeyError, did_you_mean
from .hf_deepseek import DEEPSEEK_V3, GLM4_MOE
from .hf_exaone import EXAONE_MOE
from .hf_family import Family
from .hf_gpt_oss import GPT_OSS
from .hf_llama import LLAMA, MISTRAL
from .hf_mixtral import MIXTRAL
from .hf_qwen import QWEN2, QWEN3, QWEN3_MOE

# In the order they are tried: the most widely served family first.
FAMILIES: tuple[Family, ...] = (LLAMA, QWEN3, QWEN3_MOE, MIXTRAL, DEEPSEEK_V3, GPT_OSS, MISTRAL, QWEN2, GLM4_MOE, EXAONE_MOE)
_BY_NAME = {family.name: family for family in FAMILIES}


def get_family(name: str) -> Family:
    """The family with this ``model_type``.

    Raises:
        UnknownKeyError: no such family is exported; the message names the nearest.
    """
    try:
        return _BY_NAME[name]
    except (KeyError, TypeError):
        raise UnknownKeyError(f"unknown model family '{str(name)[:60]}'{did_you_mean(str(name), _BY_NAME)}") from None


def choose_family(architecture: Architecture) -> str:
    """The first family that expresses every feature of the design.

    Args:
        architecture: the design.

    Returns:
        Its ``model_type``.

    Raises:
        InvalidValueError: none does; the message gives the nearest family's reasons.
    """
    refused = {}
    for family in FAMILIES:
        reasons = family.refusals(architecture)
        if not reasons:
            return family.name
        refused[family.name] = reasons
    # the nearest family: experts where the design has them, then the one whose layers fit, then the fewest reasons
    nearest = min(
        refused,
        key=lambda name: (
            bool(architecture.num_experts) == ("num_experts" in get_family(name).needs),
            not _layers_fit(get_family(name), architecture),
            len(refused[name]),
        ),
    )
    raise InvalidValueError(
        f"no Hugging Face family expresses this design; the nearest is {nearest}, but {'; '.join(refused[nearest])}. "
        "Change the design, or export it as json (our own file)"
    )


def without_family(designs: Iterable[Architecture]) -> str:
    """A note on the designs that no family expresses, with the first one's reason; empty where all have one."""
    total, reasons = 0, []
    for design in designs:
        total += 1
        try:
            choose_family(design)
        except InvalidValueError as error:
            reasons.append(str(error))
    if not reasons:
        return ""
    return (
        f"{len(reasons)} of {total} designs looked at get architecture.json (our own file) and no Hugging Face config.json; the "
        f"first: {reasons[0]}"
    )


def _layers_fit(family: Family, architecture: Architecture) -> bool:
    """Whether the family's layers hold the same weights; what it refuses beyond that is a matter of sizes."""
    one_switch = not {"qkv_bias", "output_bias"} & set(family.needs)
    if one_switch and architecture.qkv_bias != architecture.output_bias:
        return False
    return all(getattr(architecture, name) in allowed for name, allowed in family.needs.items())


def export_config(
    architecture: Architecture, family: str | None = None, *, max_position_embeddings: int | None = None, tokens: int = 0
) -> dict[str, Any]:
    """The ``config.json`` of a design.

    Args:
        architecture: the design.
        family: its ``model_type``; None chooses (:func:`choose_family`).
        max_position_embeddings: longest context, tokens (not priced); None takes the family's (:class:`.hf_family.Family`).
        tokens: longest request the design was priced for, tokens; the config allows at least that.

    Returns:
        The content of config.json: plain JSON values.

    Raises:
        UnknownKeyError: the family is unknown.
        InvalidValueError: the family cannot express the design; the message says why.
    """
    chosen = get_family(choose_family(architecture) if family is None else family)
    reasons = chosen.refusals(architecture)
    if reasons:
        raise InvalidValueError(f"{chosen.name} cannot express this design: {'; '.join(reasons)}. Leave family out to choose one")
    # a window as long as the longest context would be none
    longest = max(max_position_embeddings or chosen.max_position_embeddings, 2 * architecture.sliding_window, tokens)
    return {
        "architectures": [chosen.model_class],
        "model_type": chosen.name,
        "hidden_size": architecture.hidden_size,
        "num_hidden_layers": architecture.num_hidden_layers,
        **chosen.fields(architecture),
        "vocab_size": architecture.vocab_size,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        "max_position_embeddings": longest,
        "rms_norm_eps": chosen.rms_norm_eps,
        "rope_theta": chosen.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": chosen.rope_theta},
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def write_config(architecture: Architecture, path: str | Path, family: str | None = None, *, tokens: int = 0) -> Path:
    """Write :func:`export_config` to ``path`` (a folder gets ``config.json`` in it).

    Raises:
        InvalidValueError: the family cannot express the design.
        OSError: the file cannot be written.
    """
    target = Path(path)
    config = export_config(architecture, family, tokens=tokens)
    if target.suffix != ".json":
        target.mkdir(parents=True, exist_ok=True)
        target = target / "config.json"
    target.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return target


def canonical(architecture: Architecture) -> Architecture:
    """The same design with fields that no layer uses set to 0 and without its name.

    A mixture of experts with no dense layer does not use ``intermediate_size``; without shared experts
    ``shared_expert_intermediate_size`` says nothing.
    """
    changes: dict[str, Any] = {"name": ""}
    if architecture.num_experts and not architecture.first_k_dense_replace:
        changes["intermediate_size"] = 0
    if not architecture.n_shared_experts:
        changes["shared_expert_intermediate_size"] = 0
    if architecture.attention == "mla":
        changes["head_dim"] = 0
    return replace(architecture, **changes)


def same_design(first: Architecture, second: Architecture) -> bool:
    """Whether two designs have the same layers, whatever they are called."""
    return canonical(first) == canonical(second)
