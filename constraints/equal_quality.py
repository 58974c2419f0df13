"""Equal quality, or it is no win: when a design may be compared with a reference model as its equal.

A design is at equal quality with the reference when all of these hold (the project's definition):

* total and active parameters within [−0.5, +1] % of the reference's;
* ΔL_shape ≤ the reference's + 0.002 nats;
* L_size ≤ the reference's + 0.002 nats (the MoE law, which sees granularity, sharing and active share; the dense law in a
  dense study);
* the same attention kind, KV heads × head size per layer no smaller (under MLA: no rank or head size smaller), and no larger a
  share of windowed layers (our reading of "the same or on the safer side" for what the rule does not name);
* E/k no larger (no sparser) and k·H′e/H no smaller.

Fewer layers at the same KV per layer count as a fair win.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch
from .quality import DEFAULT_TRAIN_TOKENS, delta_loss_shape, size_loss

FloatArray = NDArray[np.float64]
LOW_SHARE, HIGH_SHARE = -0.005, 0.010  # allowed change of the parameter counts
LOSS_SLACK = 0.002  # nats/token, on each of ΔL_shape and L_size
_ROUNDING = 1e-9

# what a broken condition means, for people
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "kind": "another attention or FFN kind",
        "total_params_low": "fewer parameters",
        "total_params_high": "more parameters",
        "active_params_low": "fewer active parameters",
        "active_params_high": "more active parameters",
        "delta_loss_shape": "a worse width-to-depth split",
        "size_loss": "a higher predicted loss from its size and expert split",
        "kv_width": "a smaller KV cache a layer",
        "kv_lora_rank": "a smaller MLA key-value rank",
        "q_lora_rank": "a smaller MLA query rank",
        "head_dim": "a smaller head",
        "window": "more windowed layers or a smaller window",
        "experts_per_active_expert": "a sparser expert choice (E/k)",
        "active_ffn_over_hidden": "a narrower active FFN (k*H'e/H)",
    }
)


def loss_terms(
    batch: ArchitectureBatch, reference: Architecture, *, train_tokens: float = DEFAULT_TRAIN_TOKENS
) -> tuple[FloatArray, FloatArray, str]:
    """The two loss terms that equal quality limits to :data:`LOSS_SLACK`, as changes from the reference, and the size law.

    Args:
        batch: the designs.
        reference: the model they are compared with.
        train_tokens: D of the size law.

    Returns:
        change of ΔL_shape ``(A,)`` and of L_size ``(A,)``, nats/token; the law: ``zhao`` among mixtures of experts, ``dense``
        among dense models, ``joint`` between the two.
    """
    own = float(delta_loss_shape(reference.hidden_size, reference.num_hidden_layers))
    shape = np.asarray(delta_loss_shape(batch.hidden_size, batch.num_hidden_layers) - own, dtype=np.float64)
    law = "zhao" if reference.num_experts and batch.kind.moe else "joint" if reference.num_experts or batch.kind.moe else "dense"
    one = ArchitectureBatch.from_architectures([reference])
    size = np.asarray(size_loss(batch, train_tokens, law) - float(size_loss(one, train_tokens, law)[0]), dtype=np.float64)
    return shape, size, law


def equal_quality_violations(
    batch: ArchitectureBatch, reference: Architecture, *, train_tokens: float = DEFAULT_TRAIN_TOKENS
) -> dict[str, FloatArray]:
    """Each condition as a dimensionless number, ≤ 0 when met, shape ``(A,)``.

    Args:
        batch: the designs.
        reference: the model they are compared with.
        train_tokens: D of the size law.
    """
    count = len(batch)
    found: dict[str, FloatArray] = {}
    same_kind = batch.kind.attention == reference.attention and batch.kind.moe == (reference.num_experts > 0)
    found["kind"] = np.full(count, -1.0 if same_kind else 1.0)
    for name in ("total_params", "active_params"):
        change = getattr(batch, name) / getattr(reference, name) - 1.0
        found[f"{name}_low"] = (LOW_SHARE - change) / -LOW_SHARE
        found[f"{name}_high"] = (change - HIGH_SHARE) / HIGH_SHARE
    shape, size, _ = loss_terms(batch, reference, train_tokens=train_tokens)
    found["delta_loss_shape"] = shape / LOSS_SLACK - 1.0
    found["size_loss"] = size / LOSS_SLACK - 1.0
    if same_kind:
        found |= _attention_violations(batch, reference)
        if batch.kind.moe:
            sparsity = batch.num_experts / batch.num_experts_per_tok
            found["experts_per_active_expert"] = sparsity * reference.num_experts_per_tok / reference.num_experts - 1.0
            own = reference.num_experts_per_tok * reference.moe_intermediate_size / reference.hidden_size
            found["active_ffn_over_hidden"] = (
                1.0 - batch.num_experts_per_tok * batch.moe_intermediate_size / batch.hidden_size / own
            )
    return {name: value - _ROUNDING for name, value in found.items()}


def _attention_violations(batch: ArchitectureBatch, reference: Architecture) -> dict[str, FloatArray]:
    """KV width a layer, head sizes, ranks and windows: the same or on the safer side."""
    found: dict[str, FloatArray] = {}
    if reference.attention == "mla":
        found["kv_lora_rank"] = 1.0 - batch.kv_lora_rank / reference.kv_lora_rank
        if reference.q_lora_rank:
            found["q_lora_rank"] = np.where(batch.q_lora_rank > 0, 1.0 - batch.q_lora_rank / reference.q_lora_rank, -1.0)
        else:
            found["q_lora_rank"] = np.where(batch.q_lora_rank > 0, 1.0, -1.0)
        found["head_dim"] = np.maximum.reduce(
            [1.0 - getattr(batch, n) / getattr(reference, n) for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
        )
    else:
        width = reference.num_key_value_heads * reference.head_dim
        found["kv_width"] = 1.0 - batch.num_key_value_heads * batch.head_dim / width
    share = reference.num_sliding_window_layers / reference.num_hidden_layers
    more_windows = batch.num_sliding_window_layers / batch.num_hidden_layers - share
    smaller = np.where(batch.num_sliding_window_layers > 0, 1.0 - batch.sliding_window / max(reference.sliding_window, 1), -1.0)
    # one layer of rounding is allowed: a pattern over another depth cannot keep the share exactly
    found["window"] = np.where(share > 0, np.maximum(more_windows - 1.0 / batch.num_hidden_layers, smaller), more_windows)
    return found


def equal_quality(
    batch: ArchitectureBatch, reference: Architecture, *, train_tokens: float = DEFAULT_TRAIN_TOKENS
) -> NDArray[np.bool_]:
    """Whether each design is at equal quality with ``reference`` (see the module's rules), shape ``(A,)``.

    Args:
        batch: the designs.
        reference: the model they are compared with.
        train_tokens: D of the size law.
    """
    worst = np.maximum.reduce(list(equal_quality_violations(batch, reference, train_tokens=train_tokens).values()))
    return np.asarray(worst <= 0.0, dtype=np.bool_)


def gives_up(batch: ArchitectureBatch, reference: Architecture, *, train_tokens: float = DEFAULT_TRAIN_TOKENS) -> list[list[str]]:
    """What each design gives up against ``reference``, in words; an empty list at equal quality.

    More parameters than allowed are listed too: they are no loss of quality but make the comparison unfair.
    """
    violations = equal_quality_violations(batch, reference, train_tokens=train_tokens)
    return [[REASONS[name] for name, value in violations.items() if value[i] > 0] for i in range(len(batch))]
