"""Attention of one pass on the distinct work of a plan: decode, prefill, and both in one mixed step.

MLA decodes on the absorbed latent (two batched products of a head's K and V up-projection around the kernel, on the
tokens of the rank) and prefills with keys and values up-projected for new *and* past tokens, chunk after chunk.

References:
    [1] DeepSeek-V2, arXiv 2405.04434, section 2.1 (absorbed decode, materialised prefill).
    [2] Helix Parallelism, arXiv 2507.07120 (KVP).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import attention_decode_seconds, attention_prefill_seconds
from .batch import ArchitectureBatch
from .gemm import bmm_seconds, gemm_seconds
from .memory import ceil_div
from .mla import mla_decode_seconds, mla_prefill_seconds
from .step_forward import AttentionKernel
from .step_options import StepOptions
from .step_parts import column
from .step_plan import Keyed

FloatArray = NDArray[np.float64]


def _gqa_shape(b: ArchitectureBatch, key: Keyed, heads: FloatArray) -> dict[str, Any]:
    kv_heads = ceil_div(column(b.num_key_value_heads), key["tpa"])
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": column(b.head_dim)}


def decode_attention(context: float) -> AttentionKernel:
    """One new token a sequence over ``context`` KV tokens: full and windowed layers, heads over TPA, tokens over KVP.

    Parts: ``attention`` and, under MLA, ``absorbed_gemm``.
    """

    def price(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> dict[str, FloatArray]:
        rows, read = key["rows"], np.maximum(context / key["kvp"], 1.0)
        heads = ceil_div(column(b.num_attention_heads), key["tpa"])
        kv_format, layers, profile = options.formats.kv, column(b.num_hidden_layers), options.profile
        if b.kind.attention == "mla":
            c, nope, v = column(b.kv_lora_rank), column(b.qk_nope_head_dim), column(b.v_head_dim)
            each = mla_decode_seconds(
                rows, read, heads=heads, kv_lora_rank=c, qk_rope_head_dim=column(b.qk_rope_head_dim), kv_format=kv_format,
                profile=profile,
            )
            number = options.absorbed_format or options.formats.attention
            into = bmm_seconds(heads, rows, c, nope, format=number, profile=profile)
            heads_out = ceil_div(column(b.num_attention_heads), key["tpa"] * key["kvp"])
            out = bmm_seconds(heads_out, rows, v, c, format=number, profile=profile)
            return {"attention": layers * each, "absorbed_gemm": layers * (into + out)}
        shape = _gqa_shape(b, key, heads)
        full = attention_decode_seconds(rows, read, kv_format=kv_format, profile=profile, **shape)
        windowed = column(b.num_sliding_window_layers)
        if not np.any(windowed):
            return {"attention": layers * full}
        held = np.maximum(np.minimum(column(b.sliding_window), context) / key["kvp"], 1.0)
        held = np.where(windowed > 0, held, 1.0)
        short = attention_decode_seconds(rows, held, kv_format=kv_format, profile=profile, **shape)
        return {"attention": (layers - windowed) * full + windowed * short}

    return price


def prefill_attention(new_tokens: FloatArray, past_tokens: FloatArray, sequences: float = 1.0) -> AttentionKernel:
    """``new_tokens`` of each of ``sequences`` prompts after ``past_tokens``; both ``(C,)``, indexed by the key's load.

    KVP ranks share the keys, hence the work, of every query. Parts: ``attention`` and, under MLA, ``up_gemm``.
    """

    def price(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> dict[str, FloatArray]:
        load = key["load"][0].astype(np.intp)
        new, past = new_tokens[load][None], past_tokens[load][None]
        heads = ceil_div(column(b.num_attention_heads), key["tpa"])
        formats, profile, layers = options.formats, options.profile, column(b.num_hidden_layers) / key["kvp"]
        common: dict[str, Any] = {"format": formats.attention, "kv_format": formats.kv, "profile": profile}
        if b.kind.attention == "mla":
            c, nope, v = column(b.kv_lora_rank), column(b.qk_nope_head_dim), column(b.v_head_dim)
            each = mla_prefill_seconds(
                sequences, new, past, heads=heads, kv_lora_rank=c, qk_nope_head_dim=nope,
                qk_rope_head_dim=column(b.qk_rope_head_dim), v_head_dim=v, **common,
            )
            up = gemm_seconds(sequences * (new + past), heads * (nope + v), c, format=formats.qkv, profile=profile)
            return {"attention": layers * each, "up_gemm": layers * up}
        shape = _gqa_shape(b, key, heads) | common
        full = attention_prefill_seconds(sequences, new, past, **shape)
        windowed = column(b.num_sliding_window_layers)
        if not np.any(windowed):
            return {"attention": layers * full}
        window = np.where(windowed > 0, column(b.sliding_window), 1.0)
        short = attention_prefill_seconds(sequences, new, past, window=window, **shape)
        return {"attention": layers * full + windowed / key["kvp"] * (short - full)}

    return price


def mixed_attention(decode: AttentionKernel, prefill: AttentionKernel) -> AttentionKernel:
    """Both kernels in one step (in-flight batching): their parts added by name."""

    def price(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> dict[str, FloatArray]:
        found = decode(b, key, options)
        for name, seconds in prefill(b, key, options).items():
            found[name] = found[name] + seconds if name in found else seconds
        return found

    return price
