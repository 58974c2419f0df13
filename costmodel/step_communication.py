"""Communication of one forward pass on the distinct work of a plan: inside the attention group, to the experts and back.

Every function returns seconds of *all* layers, shape ``(A, U)`` over the distinct combinations of its key (see
:class:`~.step_plan.StepPlan`); each collective is priced for the layouts that have it alone.

References:
    [1] NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design (10 July 2026), guidelines 5 and 7.
    [2] Helix Parallelism, arXiv 2507.07120, section 2: exchange of partial outputs and log-sum-exps.
    [3] SGLang, python/sglang/srt/layers/communicator.py (attention group: reduce-scatter, expert exchange, all-gather);
        vLLM pull requests 24134, 24982 and 46635 (tokens split over the group; reduce-scatter in place of the all-reduce).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import ArchitectureBatch
from .collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    moe_combine_seconds,
    moe_dispatch_seconds,
    reduce_scatter_seconds,
)
from .memory import ceil_div
from .parameters import moe_layers
from .profile import KernelProfile
from .step_options import StepOptions
from .step_parts import FloatArray, Parts, column
from .step_plan import DISPATCH, GATHER, Keyed

_BF16_BYTES = 2.0
_FP32_BYTES = 4.0


@lru_cache(maxsize=64)
def _library(profile: KernelProfile) -> KernelProfile | None:
    """The profile with the general library's (NCCL's) all-reduce in place of the stack's own kernel."""
    fits = profile.families.get("collective", {})
    if "all_reduce" not in fits or not profile.families.get("all_reduce"):
        return None
    families = {**profile.families, "all_reduce": MappingProxyType({"default": fits["all_reduce"]})}
    return replace(profile, families=MappingProxyType(families))


def reduce_seconds(message: FloatArray, ranks: FloatArray, profile: KernelProfile) -> FloatArray:
    """All-reduce by the faster of the stack's own kernel (mostly the shorter messages) and the general library, each message
    by itself: what else is priced in the same call changes nothing.
    """
    seconds, library = all_reduce_seconds(message, ranks, profile=profile), _library(profile)
    if library is None:
        return seconds
    return np.minimum(seconds, all_reduce_seconds(message, ranks, profile=library))


def on_columns(where: NDArray[np.bool_], b: ArchitectureBatch, price: Callable[[NDArray[np.intp]], FloatArray]) -> FloatArray:
    """``price`` of the columns at ``where``, 0 elsewhere, ``(A, U)``: work that few layouts have is priced for those alone."""
    index = np.flatnonzero(where)
    if len(index) == len(where):
        return price(index)
    out = np.zeros((len(b), len(where)))
    if len(index):
        out[:, index] = price(index)
    return out


def local_communication(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Collectives of the attention group that do not depend on the FFN: ``head_gather kv_all_to_all``.

    head_gather: all-gather of the logits and one all-reduce for the embedding of a sharded vocabulary. KVP: each GPU
    holds rows·(n_h/TPA)·d_o partial outputs (BF16) and as many log-sum-exps as heads (FP32) and sends (KVP-1)/KVP of
    them [2]; d_o is the head size, or the latent before an absorbed value up-projection.
    """
    profile, rows = options.profile, key["rows"]
    tpa, kvp = key["tpa"], key["kvp"]
    group = tpa * kvp

    def head(at: NDArray[np.intp]) -> FloatArray:
        logits = key["head_rows"][:, at] * (column(b.vocab_size) * _BF16_BYTES)
        embedding = reduce_seconds(rows[:, at] * (column(b.hidden_size) * _BF16_BYTES), group[:, at], profile)
        return all_gather_seconds(logits, group[:, at], profile=profile) + embedding

    parts = {"head_gather": on_columns(group[0] > 1, b, head)}
    if np.any(kvp > 1):
        width = column(b.kv_lora_rank if b.kind.attention == "mla" else b.head_dim)

        def outputs(at: NDArray[np.intp]) -> FloatArray:
            heads = ceil_div(column(b.num_attention_heads), tpa[:, at])
            held = rows[:, at] * heads * (width * _BF16_BYTES + _FP32_BYTES)
            return column(b.num_hidden_layers) * all_to_all_seconds(held, kvp[:, at], profile=profile)

        parts["kv_all_to_all"] = on_columns(kvp[0] > 1, b, outputs)
    return parts


def exchange(b: ArchitectureBatch, key: Keyed, options: StepOptions) -> Parts:
    """Communication between attention and FFN and back; the modes of :mod:`.step_plan`, each on its own columns.

    ``attention_all_reduce``: partial outputs of the attention group's TPA·KVP ranks are summed, every layer.
    REDUCE: ``ffn_all_reduce`` of the partial sums over the same ranks.
    GATHER: ``ffn_gather``: all-gather of the tokens, reduce-scatter of the sums, over all ranks.
    DISPATCH: expert all-to-all, ``dispatch`` and ``combine``, on each GPU's share of its group's tokens. A MoE layer of a
    TPA·KVP group therefore scatters its sums over the group before (``attention_reduce_scatter``) and gathers the tokens
    after (``ffn_all_gather``) instead of two all-reduces [3], each by the faster of that kernel and the all-reduce that
    contains it. Dense layers stay on their group: two all-reduces.
    """
    mode, parts = key["mode"][0], dict[str, FloatArray]()
    sparse = np.asarray(moe_layers(b), dtype=np.float64)[:, None]
    layers, profile, group = column(b.num_hidden_layers), options.profile, key["group"]
    message, total = key["rows"] * (column(b.hidden_size) * _BF16_BYTES), key["tokens"] * (column(b.hidden_size) * _BF16_BYTES)
    scattered, grouped = mode == DISPATCH, group[0] > 1

    reduce = on_columns(grouped, b, lambda at: reduce_seconds(message[:, at], group[:, at], profile))
    parts["attention_all_reduce"] = np.where(scattered, layers - sparse, layers) * reduce
    if np.any(mode != GATHER):  # the FFN's sums go over the same ranks, in messages of the same size
        parts["ffn_all_reduce"] = np.where(mode == GATHER, 0.0, parts["attention_all_reduce"])
    if np.any(mode == GATHER):
        n = key["ranks"]
        parts["ffn_gather"] = layers * on_columns(
            mode == GATHER,
            b,
            lambda at: all_gather_seconds(total[:, at], n[:, at], profile=profile)
            + reduce_scatter_seconds(total[:, at], n[:, at], profile=profile),
        )
    if not b.kind.moe or not np.any(scattered):
        return parts
    for name, phase in _PHASES.items():
        parts[name] = sparse * on_columns(scattered, b, partial(phase, b, key, options))
    if np.any(scattered & grouped):
        for name, move in _MOVES.items():
            # an all-reduce does it too: each rank keeps its slice of the sum, or adds its slice to zeros
            def moved(at: NDArray[np.intp], move: Callable[..., FloatArray] = move) -> FloatArray:
                return np.asarray(np.minimum(move(message[:, at], group[:, at], profile=profile), reduce[:, at]))

            parts[name] = sparse * on_columns(scattered & grouped, b, moved)
    return parts


_MOVES = MappingProxyType({"attention_reduce_scatter": reduce_scatter_seconds, "ffn_all_gather": all_gather_seconds})


def _dispatch(b: ArchitectureBatch, key: Keyed, options: StepOptions, at: NDArray[np.intp]) -> FloatArray:
    """One layer's tokens to their experts' ranks; inside an expert's TPF ranks the arriving tokens are gathered."""
    number = options.formats.experts
    seconds = moe_dispatch_seconds(format=number, **_exchanged(b, key, at, options))
    tpf = key["tpf"][:, at]
    if np.any(tpf > 1):
        arrived = _arrived(b, key, at) * options.profile.hardware.number_format(number).activation_bytes
        seconds = seconds + all_gather_seconds(arrived, tpf, profile=options.profile)
    return seconds


def _combine(b: ArchitectureBatch, key: Keyed, options: StepOptions, at: NDArray[np.intp]) -> FloatArray:
    """One layer's outputs back; inside an expert's TPF ranks the partial sums are scattered."""
    seconds = moe_combine_seconds(**_exchanged(b, key, at, options))
    tpf = key["tpf"][:, at]
    if np.any(tpf > 1):
        seconds = seconds + reduce_scatter_seconds(_arrived(b, key, at) * _BF16_BYTES, tpf, profile=options.profile)
    return seconds


_PHASES = MappingProxyType({"dispatch": _dispatch, "combine": _combine})


def _exchanged(b: ArchitectureBatch, key: Keyed, at: NDArray[np.intp], options: StepOptions) -> dict[str, Any]:
    """What both directions of the expert all-to-all share."""
    return {
        "tokens_per_gpu": key["rows"][:, at] / key["group"][:, at],
        "ep": key["ep"][:, at],
        "hidden_size": column(b.hidden_size),
        "top_k": column(b.num_experts_per_tok),
        "num_experts": column(b.num_experts),
        "load": options.load,
        "kernel": options.all_to_all_kernel,
        "profile": options.profile,
    }


def _arrived(b: ArchitectureBatch, key: Keyed, at: NDArray[np.intp]) -> FloatArray:
    """Values that reach an expert's TPF ranks: copies of a token over the EP groups, its own included, EP·(1 - (1 - 1/EP)^k)."""
    ep, tpf = key["ep"][:, at], key["tpf"][:, at]
    copies = ep * (1.0 - (1.0 - 1.0 / ep) ** column(b.num_experts_per_tok))
    return np.asarray(key["rows"][:, at] / key["group"][:, at] * copies * tpf * column(b.hidden_size))
