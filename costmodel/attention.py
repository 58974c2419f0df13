"""Attention of the GQA family on one GPU: the face of :mod:`.attention_prefill` and :mod:`.attention_decode`.

MLA has kernels of its own in :mod:`.mla`.
"""

from __future__ import annotations

from .attention_common import BOUNDS, AttentionCost, kv_bytes_per_token
from .attention_decode import DecodeParameters, attention_decode_cost, attention_decode_seconds
from .attention_prefill import PrefillParameters, attention_prefill_cost, attention_prefill_seconds, causal_scores

__all__ = [
    "BOUNDS",
    "AttentionCost",
    "DecodeParameters",
    "PrefillParameters",
    "attention_decode_cost",
    "attention_decode_seconds",
    "attention_prefill_cost",
    "attention_prefill_seconds",
    "causal_scores",
    "kv_bytes_per_token",
]
