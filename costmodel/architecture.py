"""One model architecture: scalar, validated, hashable, for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from . import parameters
from .checks import whole
from .errors import InvalidValueError, check_keys, shown

MAX_DIMENSION = 1 << 20  # bound of any single dimension: keeps every product inside int64
INTEGER_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "num_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "sliding_window",
    "num_sliding_window_layers",
    "vocab_size",
)


@dataclass(frozen=True, slots=True)
class ArchitectureKind:
    """What all designs of one batch share: everything about a design that is not a size."""

    attention: str = "gqa"
    moe: bool = False
    gated_ffn: bool = True
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    router_bias: bool = False
    qk_norm: str = "none"
    attention_sinks: bool = False
    norms_per_layer: int = 2

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("attention", self.attention, ("gqa", "mla")),
            ("qk_norm", self.qk_norm, ("none", "head", "full")),
        ):
            if value not in allowed:
                raise InvalidValueError(f"{name} must be one of {', '.join(allowed)}, got {shown(value)}")
        whole("norms_per_layer", self.norms_per_layer, 0, 8)


_KIND_FIELDS = tuple(f.name for f in fields(ArchitectureKind) if f.name != "moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder-only transformer's shape; names as in Hugging Face configs; 0 means absent.

    Attributes:
        hidden_size: H.
        intermediate_size: H′ of the dense FFN layers (all layers of a dense model, the leading ones of a MoE).
        moe_intermediate_size: H′e, inner width of one routed expert.
        shared_expert_intermediate_size: inner width of one shared expert.
        num_hidden_layers: L.
        first_k_dense_replace: leading dense layers of a MoE model.
        num_attention_heads: query heads.
        num_key_value_heads: KV heads; equal to the query heads under MLA.
        head_dim: head size of MHA/GQA/MQA; 0 under MLA.
        q_lora_rank: MLA query rank; 0 = full-rank queries.
        kv_lora_rank: MLA key-value rank.
        qk_nope_head_dim: MLA head size without position.
        qk_rope_head_dim: MLA rotary head size, shared by all heads.
        v_head_dim: MLA value head size.
        num_experts: E, routed experts; 0 = dense.
        num_experts_per_tok: k.
        n_shared_experts: shared experts, always active.
        sliding_window: keys a windowed layer attends to; 0 = no windowed layers.
        num_sliding_window_layers: layers that use the window.
        vocab_size: rows of the embedding table.
        tie_word_embeddings: LM head shares the embedding table.
        attention: ``gqa`` (MHA, GQA, MQA) or ``mla``.
        gated_ffn: three FFN matrices (gate, up, down) instead of two.
        qkv_bias, output_bias, ffn_bias, router_bias: which projections carry a bias.
        qk_norm: query/key norm: ``none``, ``head`` (one vector of head_dim each) or ``full``.
        attention_sinks: one learned sink logit a head.
        norms_per_layer: RMS norms of width H a layer.
        name: for people; not part of the shape.

    Raises:
        InvalidValueError: a rule is broken; the message names it, the value and the way out.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    n_shared_experts: int = 0
    sliding_window: int = 0
    num_sliding_window_layers: int = 0
    tie_word_embeddings: bool = False
    attention: str = "gqa"
    gated_ffn: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    router_bias: bool = False
    qk_norm: str = "none"
    attention_sinks: bool = False
    norms_per_layer: int = 2
    name: str = ""

    def __post_init__(self) -> None:
        for field in INTEGER_FIELDS:
            most = MAX_DIMENSION * (64 if field == "sliding_window" else 1)
            object.__setattr__(self, field, whole(field, getattr(self, field), 0, most))
        set_ = object.__setattr__
        if self.num_key_value_heads == 0 or self.attention == "mla":
            set_(self, "num_key_value_heads", self.num_attention_heads)
        if self.attention == "gqa" and self.head_dim == 0 and self.num_attention_heads > 0:
            if self.hidden_size % self.num_attention_heads:
                raise InvalidValueError(
                    f"hidden_size must be a multiple of num_attention_heads when head_dim is not given, got "
                    f"hidden_size={self.hidden_size}, num_attention_heads={self.num_attention_heads}; give head_dim"
                )
            set_(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.n_shared_experts and not self.shared_expert_intermediate_size:
            set_(self, "shared_expert_intermediate_size", self.moe_intermediate_size)
        _ = self.kind
        self._check_attention()
        self._check_ffn()

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _check_attention(self) -> None:
        self._positive("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        if self.attention == "mla":
            self._positive("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        else:
            self._positive("head_dim")
            if self.num_attention_heads % self.num_key_value_heads:
                raise InvalidValueError(
                    f"n_kv_heads must divide n_heads, got n_heads={self.num_attention_heads}, "
                    f"n_kv_heads={self.num_key_value_heads}"
                )
        if self.num_sliding_window_layers > self.num_hidden_layers:
            raise InvalidValueError(
                f"num_sliding_window_layers must be at most num_hidden_layers={self.num_hidden_layers}, "
                f"got {self.num_sliding_window_layers}"
            )
        if bool(self.sliding_window) != bool(self.num_sliding_window_layers):
            raise InvalidValueError(
                f"sliding_window and num_sliding_window_layers go together, got {self.sliding_window} "
                f"and {self.num_sliding_window_layers}"
            )

    def _check_ffn(self) -> None:
        if self.num_experts:
            self._positive("moe_intermediate_size", "num_experts_per_tok")
            if self.num_experts_per_tok > self.num_experts:
                raise InvalidValueError(
                    f"top_k must be at most num_experts, got top_k={self.num_experts_per_tok}, num_experts={self.num_experts}"
                )
            if self.first_k_dense_replace > self.num_hidden_layers:
                raise InvalidValueError(
                    f"first_k_dense_replace must be at most num_hidden_layers={self.num_hidden_layers}, "
                    f"got {self.first_k_dense_replace}"
                )
            if self.first_k_dense_replace:
                self._positive("intermediate_size")
        else:
            self._positive("intermediate_size")
            for name in ("num_experts_per_tok", "n_shared_experts", "first_k_dense_replace", "moe_intermediate_size"):
                if getattr(self, name):
                    raise InvalidValueError(f"{name} must be 0 in a dense model (num_experts=0), got {getattr(self, name)}")

    @property
    def kind(self) -> ArchitectureKind:
        """The statics of this design."""
        return ArchitectureKind(moe=self.num_experts > 0, **{name: getattr(self, name) for name in _KIND_FIELDS})

    @property
    def attention_label(self) -> str:
        """``MLA``, ``MHA``, ``MQA`` or ``GQA``."""
        if self.attention == "mla":
            return "MLA"
        return (
            "MHA" if self.num_key_value_heads == self.num_attention_heads else "MQA" if self.num_key_value_heads == 1 else "GQA"
        )

    @property
    def total_params(self) -> int:
        """Every stored weight, tied embeddings once."""
        return int(parameters.total_params(self.kind, self))

    @property
    def active_params(self) -> int:
        """Parameters of the matrices that multiply a token, LM head included, input look-up excluded."""
        return int(parameters.active_params(self.kind, self))

    @property
    def active_params_with_embedding(self) -> int:
        """Active parameters plus the input look-up table (nothing to add when tied)."""
        return int(parameters.active_params_with_embedding(self.kind, self))

    def parameter_parts(self) -> dict[str, int]:
        """Stored parameters by part."""
        return {name: int(count) for name, count in parameters.parameter_parts(self.kind, self).items()}

    def with_(self, **changes: Any) -> Architecture:
        """A copy with some dimensions changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields by their stable names."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "architecture") -> Architecture:
        """Build from a dict of the stable names.

        Raises:
            InvalidValueError: an unknown key, or a rule is broken.
        """
        check_keys(table, [f.name for f in fields(cls)], where)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
            if key not in table:
                raise InvalidValueError(f"{where}: {key} is missing; add it")
        return cls(**table)
