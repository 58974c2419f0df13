"""The Hugging Face model families that can be read, and how each one's fields become an :class:`Architecture`.

A field that a config leaves out takes the default of the family's configuration class in ``transformers`` (5.18, status:
datasheet); biases, norms and sinks follow the modelling code. What an architecture here cannot express is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..costmodel.errors import InvalidValueError

REQUIRED = object()
Shape = dict[str, Any]


@dataclass(frozen=True)
class Fields:
    """Typed access to a config's fields.

    Attributes:
        table: the parsed config.
        where: file, for messages.
    """

    table: Mapping[str, Any]
    where: str

    def integer(self, *names: str, default: Any = REQUIRED, null: Any = REQUIRED) -> int:
        """The first of ``names`` that is given, as a whole number.

        Args:
            names: the field and its other spellings.
            default: where none is given; a missing required field is an error.
            null: where it is given as null; ``default`` when left out.

        Raises:
            InvalidValueError: missing, or not a whole number.
        """
        for name in names:
            if name in self.table:
                value = self.table[name]
                if value is None:
                    fallback = default if null is REQUIRED else null
                    if fallback is REQUIRED:
                        raise InvalidValueError(f"{self.where}: {name} is null; give a whole number")
                    return int(fallback)
                if isinstance(value, bool) or not isinstance(value, int):
                    raise InvalidValueError(f"{self.where}: {name} must be a whole number, got {value!r:.60}")
                return value
        if default is REQUIRED:
            raise InvalidValueError(f"{self.where}: {names[0]} is missing; add it")
        return int(default)

    def flag(self, name: str, default: bool) -> bool:
        """A true/false field.

        Raises:
            InvalidValueError: given, and neither true, false nor null.
        """
        value = self.table.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidValueError(f"{self.where}: {name} must be true or false, got {value!r:.60}")
        return value

    def refuse(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse a field whose value this project cannot express.

        Raises:
            InvalidValueError: given with a value that is neither null nor in ``allowed``.
        """
        value = self.table.get(name)
        if value is not None and value not in allowed:
            raise InvalidValueError(f"{self.where}: {name}={value!r:.60} is not supported: {why}")


def _layer_types(f: Fields, layers: int) -> int | None:
    """Windowed layers by ``layer_types``; None where the config does not list them."""
    kinds = f.table.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        got = f"{len(kinds)} entries" if isinstance(kinds, list) else f"{kinds!r:.40}"
        raise InvalidValueError(f"{f.where}: layer_types must list the {layers} layers of num_hidden_layers, got {got}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise InvalidValueError(f"{f.where}: layer_types may hold full_attention and sliding_attention, got {kind!r:.40}")
    return kinds.count("sliding_attention")


def _window(f: Fields, layers: int, *, default: int, count: Callable[[Fields, int], int]) -> Shape:
    """Window and the number of layers that use it; a window as long as the longest context is none."""
    window = f.integer("sliding_window", default=default, null=0)
    listed = _layer_types(f, layers)
    windowed = count(f, layers) if listed is None else listed
    longest = f.integer("max_position_embeddings", default=0)
    if window <= 0 or windowed <= 0 or (longest and window >= longest):
        return {}
    return {"sliding_window": window, "num_sliding_window_layers": windowed}


def _all_layers(_: Fields, layers: int) -> int:
    return layers


def _every_other(_: Fields, layers: int) -> int:
    return -(-layers // 2)  # the first layer is windowed


def _qwen_layers(f: Fields, layers: int) -> int:
    """Qwen2 and Qwen3: the layers from max_window_layers on, if the window is switched on."""
    if not f.flag("use_sliding_window", False):
        return 0
    return max(0, layers - f.integer("max_window_layers", default=28))


def _gemma3_layers(f: Fields, layers: int) -> int:
    pattern = f.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    if pattern < 1:
        raise InvalidValueError(f"{f.where}: sliding_window_pattern must be at least 1, got {pattern}")
    return layers - layers // pattern


def _base(f: Fields, *, heads: Any = REQUIRED, vocab: Any = REQUIRED, tie: bool = False) -> Shape:
    return {
        "hidden_size": f.integer("hidden_size"),
        "num_hidden_layers": f.integer("num_hidden_layers"),
        "num_attention_heads": f.integer("num_attention_heads", default=heads),
        "vocab_size": f.integer("vocab_size", default=vocab),
        "tie_word_embeddings": f.flag("tie_word_embeddings", tie),
    }


def _gqa(f: Fields, *, kv: int = 0, head_dim: int = 0, **base: Any) -> Shape:
    """GQA families; ``kv`` 0 means as many KV heads as heads, ``head_dim`` 0 means H/heads (both are 0 = derived).

    Raises:
        InvalidValueError: the config itself says 0, which no model can mean.
    """
    for name in ("num_key_value_heads", "head_dim"):
        if name in f.table and f.integer(name, default=1) == 0:
            raise InvalidValueError(f"{f.where}: {name} must be at least 1, got 0; leave it out to take the family's default")
    shape = _base(f, **base)
    kv_heads = f.integer("num_key_value_heads", default=kv, null=0)
    return shape | {"num_key_value_heads": kv_heads, "head_dim": f.integer("head_dim", default=head_dim, null=0)}


def _both_biases(f: Fields, default: bool = False) -> Shape:
    bias = f.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def _llama(f: Fields) -> Shape:
    return (
        _gqa(f) | _both_biases(f) | {"intermediate_size": f.integer("intermediate_size"), "ffn_bias": f.flag("mlp_bias", False)}
    )


def _mistral(f: Fields) -> Shape:
    shape = _gqa(f, kv=8)
    window = _window(f, shape["num_hidden_layers"], default=4096, count=_all_layers)
    return shape | {"intermediate_size": f.integer("intermediate_size")} | window


def _phi3(f: Fields) -> Shape:
    shape = _gqa(f)
    window = _window(f, shape["num_hidden_layers"], default=0, count=_all_layers)
    return shape | {"intermediate_size": f.integer("intermediate_size")} | window


def _qwen2(f: Fields) -> Shape:
    shape = _gqa(f, kv=32)
    window = _window(f, shape["num_hidden_layers"], default=4096, count=_qwen_layers)
    return shape | {"qkv_bias": True, "intermediate_size": f.integer("intermediate_size")} | window


def _qwen3(f: Fields) -> Shape:
    shape = _gqa(f, kv=32, head_dim=128) | _both_biases(f)
    window = _window(f, shape["num_hidden_layers"], default=4096, count=_qwen_layers)
    return shape | {"qk_norm": "head", "intermediate_size": f.integer("intermediate_size")} | window


def _qwen3_moe(f: Fields) -> Shape:
    shape = _gqa(f, kv=4) | _both_biases(f)
    f.refuse("decoder_sparse_step", (1,), "every layer must hold experts")
    dense = f.table.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise InvalidValueError(f"{f.where}: mlp_only_layers must be the leading layers 0, 1, ..., got {dense!r:.60}")
    window: Shape = {}
    if f.flag("use_sliding_window", False):
        window = _window(f, shape["num_hidden_layers"], default=4096, count=_all_layers)
    experts = {
        "num_experts": f.integer("num_experts", "num_local_experts", default=128),
        "num_experts_per_tok": f.integer("num_experts_per_tok", default=8),
        "moe_intermediate_size": f.integer("moe_intermediate_size"),
        "first_k_dense_replace": len(dense),
        "intermediate_size": f.integer("intermediate_size") if dense else 0,
    }
    return shape | {"qk_norm": "head"} | experts | window


def _mixtral(f: Fields) -> Shape:
    shape = _gqa(f, kv=8)
    window = _window(f, shape["num_hidden_layers"], default=0, count=_all_layers)
    experts = {
        "num_experts": f.integer("num_local_experts", "num_experts", default=8),
        "num_experts_per_tok": f.integer("num_experts_per_tok", default=2),
        "moe_intermediate_size": f.integer("intermediate_size"),
    }
    return shape | experts | window


def _gpt_oss(f: Fields) -> Shape:
    shape = _gqa(f, kv=8, head_dim=64) | _both_biases(f, True)
    window = _window(f, shape["num_hidden_layers"], default=128, count=_every_other)
    experts = {
        "num_experts": f.integer("num_local_experts", "num_experts", default=128),
        "num_experts_per_tok": f.integer("num_experts_per_tok", "experts_per_token", default=4),
        "moe_intermediate_size": f.integer("intermediate_size"),
    }
    return shape | {"ffn_bias": True, "router_bias": True, "attention_sinks": True} | experts | window


def _shared_experts(f: Fields) -> Shape:
    f.refuse("moe_layer_freq", (1,), "every layer after first_k_dense_replace must hold experts")
    leading = f.integer("first_k_dense_replace", default=0)
    width = f.integer("moe_intermediate_size")
    shared = f.integer("n_shared_experts", "num_shared_experts", default=0)
    return {
        "num_experts": f.integer("n_routed_experts", "num_experts"),
        "num_experts_per_tok": f.integer("num_experts_per_tok"),
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0,
        "first_k_dense_replace": leading,
        "intermediate_size": f.integer("intermediate_size") if leading else 0,
    }


def _deepseek(f: Fields) -> Shape:
    f.refuse("attention_bias", (False,), "MLA projections have no bias here")
    f.refuse("mlp_bias", (False,), "FFNs of this family have no bias here")
    mla = {
        "attention": "mla",
        "q_lora_rank": f.integer("q_lora_rank", default=1536, null=0),
        "kv_lora_rank": f.integer("kv_lora_rank", default=512),
        "qk_nope_head_dim": f.integer("qk_nope_head_dim", default=128),
        "qk_rope_head_dim": f.integer("qk_rope_head_dim", default=64),
        "v_head_dim": f.integer("v_head_dim", default=128),
    }
    return _base(f) | mla | _shared_experts(f)


def _glm4_moe(f: Fields) -> Shape:
    shape = _gqa(f, kv=8, head_dim=128)
    norm = "head" if f.flag("use_qk_norm", False) else "none"
    return shape | {"qkv_bias": f.flag("attention_bias", False), "qk_norm": norm} | _shared_experts(f)


def _exaone_moe(f: Fields) -> Shape:
    shape = _gqa(f, kv=32, head_dim=0) | {"qk_norm": "head"} | _shared_experts(f)
    return shape | _window(f, shape["num_hidden_layers"], default=4096, count=_all_layers)


def _gemma2(f: Fields) -> Shape:
    shape = _gqa(f, kv=4, head_dim=256, tie=True) | _both_biases(f) | {"norms_per_layer": 4}
    window = _window(f, shape["num_hidden_layers"], default=4096, count=_every_other)
    return shape | {"intermediate_size": f.integer("intermediate_size")} | window


def _gemma3(f: Fields) -> Shape:
    # released configs of the larger models leave heads and vocabulary to the class's defaults
    shape = _gqa(f, kv=4, head_dim=256, tie=True, heads=8, vocab=262208) | _both_biases(f)
    window = _window(f, shape["num_hidden_layers"], default=4096, count=_gemma3_layers)
    return shape | {"norms_per_layer": 4, "qk_norm": "head", "intermediate_size": f.integer("intermediate_size")} | window


FAMILIES: Mapping[str, Callable[[Fields], Shape]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "phi3": _phi3,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "mixtral": _mixtral,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "kimi_k2": _deepseek,
        "gpt_oss": _gpt_oss,
        "glm4_moe": _glm4_moe,
        "exaone_moe": _exaone_moe,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gemma3_text": _gemma3,
    }
)
