"""One good call of every public function and class of the cost model, by keyword: what the refusal tests start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from shapefront import costmodel
from shapefront.costmodel import (
    Architecture,
    ArchitectureBatch,
    ArchitectureKind,
    Hardware,
    LayoutBatch,
    NumberFormat,
    Workload,
    attention,
    collectives,
    gemm,
    memory,
    mla,
    moe,
    moe_load,
    operating,
    pipeline,
    regimes,
    scaling,
)
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates

DENSE = load_model("Llama-3.1-8B")
MOE = load_model("gpt-oss-20b")
LAYOUT = costmodel.Layout(tpa=2, tpf=2)
LAYOUTS = LayoutBatch.from_layouts([LAYOUT])
SETUP = ServingSetup(workload=Workload(), layouts=LAYOUTS, profile="ideal", concurrency=(1.0, 8.0))
PROFILE: Mapping[str, Any] = MappingProxyType({"profile": "gb300-trtllm"})


@dataclass(frozen=True)
class Call:
    """A public callable with arguments that work; ``numeric``: those that are numbers, ``rows``: those that may be arrays."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    numeric: tuple[str, ...]

    def __call__(self, **changes: Any) -> Any:
        return self.function(**{**self.arguments, **changes})


def call(function: Callable[..., Any], *others: str, **arguments: Any) -> Call:
    """``others`` are arguments that are no numbers."""
    return Call(function, arguments, tuple(name for name in arguments if name not in others))


_GQA = {"heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0, "kv_format": "fp8", **PROFILE}
_MLA = {"heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "kv_format": "fp8", **PROFILE}
_EXPERTS = {"hidden_size": 2048, "num_experts": 128, "top_k": 8, "format": "nvfp4", "load": 1.5, **PROFILE}
_NAMES = ("profile", "format", "kv_format", "output_format")
_PREFILL = {"batch": 2, "new_tokens": 512, "past_tokens": 256, "format": "bf16"}
_HARDWARE = {f.name: getattr(costmodel.load_hardware("gb300"), f.name) for f in fields(Hardware)}
_DESIGN = {k: v for k, v in MOE.to_dict().items() if isinstance(v, int) and not isinstance(v, bool) and k != "n_shared_experts"}
_STATICS = {k: v for k, v in MOE.to_dict().items() if k not in _DESIGN}

PUBLIC: Mapping[str, Call] = MappingProxyType(
    {
        "Architecture": call(Architecture, *_STATICS, **_DESIGN, **_STATICS),
        "ArchitectureKind": call(ArchitectureKind, norms_per_layer=2),
        "ArchitectureBatch": call(
            ArchitectureBatch.from_arrays, "kind", kind=DENSE.kind, hidden_size=4096, num_hidden_layers=32, head_dim=128,
            num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256,
        ),
        "Hardware": call(Hardware, "name", "title", "quantities", **_HARDWARE),
        "Layout": call(costmodel.Layout, tpa=1, kvp=1, dpa=1, tpf=1, ep=1, pp=1),
        "LayoutBatch": call(LayoutBatch.from_arrays, tpa=[1, 1], kvp=1, dpa=1, tpf=[1, 1], ep=1, pp=1),
        "NumberFormat": call(
            NumberFormat, "name", "math", "source", name="mine", activation_bits=8.0, weight_bits=4.5, math="fp8", source="x", k_multiple=16
        ),
        "Workload": call(
            Workload, input_tokens=8192, output_tokens=1024, prefix_cache_share=0.1, load=1.5, max_ttft_seconds=1.0,
            max_itl_seconds=0.1,
        ),
        "all_reduce_seconds": call(costmodel.all_reduce_seconds, *_NAMES, bytes=1e6, ranks=8, **PROFILE),
        "all_to_all_seconds": call(costmodel.all_to_all_seconds, *_NAMES, bytes_per_gpu=1e6, ranks=8, **PROFILE),
        "attention_decode_seconds": call(costmodel.attention_decode_seconds, *_NAMES, batch=8, context=4096, **_GQA),
        "attention_prefill_seconds": call(costmodel.attention_prefill_seconds, *_NAMES, **_PREFILL, **_GQA),
        "decode": call(
            costmodel.decode, "architectures", "layouts", *_NAMES, architectures=MOE, layouts=LAYOUT, concurrency=8.0, context=4096,
            load=1.5, overlap=0.1, host_seconds=1e-4, shared_expert_overlap=0.5, static_scales=0.5, **PROFILE,
        ),
        "enumerate_layouts": call(
            costmodel.enumerate_layouts, "moe", gpu_counts=(8,), moe=True, max_tpa=8, max_kvp=2, max_pp=2, max_ep=8
        ),
        "frontier": call(costmodel.frontier, "architecture", "setup", architecture=DENSE, setup=SETUP),
        "gemm_seconds": call(costmodel.gemm_seconds, *_NAMES, "tile", m=256, n=8192, k=512, format="nvfp4", **PROFILE),
        "get_format": call(costmodel.get_format, name="bf16"),
        "load_hardware": call(costmodel.load_hardware, name="gb300"),
        "load_profile": call(costmodel.load_profile, name="ideal"),
        "moe_seconds": call(
            costmodel.moe_seconds, *_NAMES, tokens=256, moe_intermediate_size=768, ep=8, tp=1, **_EXPERTS
        ),
        "prefill": call(
            costmodel.prefill, "architectures", "layouts", *_NAMES, architectures=DENSE, layouts=LAYOUT, input_tokens=4096,
            chunk_tokens=2048, prefix_cache_share=0.1, sequences=1, overlap=0.1, **PROFILE,
        ),
        # beyond __all__: what the kernels' own modules, memory and serving offer
        "gemm_cost": call(gemm.gemm_cost, *_NAMES, m=256, n=8192, k=512, batch=2, format="nvfp4", **PROFILE),
        "bmm_seconds": call(gemm.bmm_seconds, *_NAMES, batch=16, m=8, n=512, k=128, format="bf16", **PROFILE),
        "gemm tile": call(
            lambda tile_m, tile_n, cluster_m, cluster_n: gemm.gemm_seconds(
                256, 8192, 512, format="nvfp4", profile="gb300-blog", tile=(tile_m, tile_n, cluster_m, cluster_n)
            ),
            tile_m=256, tile_n=128, cluster_m=2, cluster_n=4,
        ),
        "kv_bytes_per_token": call(attention.kv_bytes_per_token, *_NAMES, kv_heads=8, head_dim=128, kv_format="fp8"),
        "mla_decode_seconds": call(mla.mla_decode_seconds, *_NAMES, batch=8, context=4096, **_MLA),
        "mla_prefill_seconds": call(
            mla.mla_prefill_seconds, *_NAMES, **_PREFILL, **_MLA, qk_nope_head_dim=128, v_head_dim=128
        ),
        "moe_dispatch_seconds": call(collectives.moe_dispatch_seconds, *_NAMES, tokens_per_gpu=16, ep=8, **_EXPERTS),
        "moe_combine_seconds": call(collectives.moe_combine_seconds, *_NAMES, tokens_per_gpu=16, ep=8, **_EXPERTS),
        "distinct_remote_ranks": call(collectives.distinct_remote_ranks, ep=8, top_k=8),
        "dispatch_bytes_per_token": call(collectives.dispatch_bytes_per_token, *_NAMES, hidden_size=7168, format="nvfp4"),
        "all_gather_seconds": call(collectives.all_gather_seconds, *_NAMES, total_bytes=1e6, ranks=8, **PROFILE),
        "reduce_scatter_seconds": call(collectives.reduce_scatter_seconds, *_NAMES, total_bytes=1e6, ranks=8, **PROFILE),
        "send_seconds": call(collectives.send_seconds, *_NAMES, bytes=1e6, **PROFILE),
        "experts_touched": call(moe.experts_touched, tokens=64, num_experts=128, top_k=8),
        "tokens_per_expert": call(moe.tokens_per_expert, tokens=64, num_experts=128, top_k=8),
        "imbalance_factor": call(moe.imbalance_factor, load=1.5, ep=8, num_experts=128, top_k=8, tokens=64),
        "imbalance_factor random": call(
            moe.imbalance_factor, "load", load="uniform_random", ep=8, num_experts=128, top_k=8, tokens=64
        ),
        "check_load": call(moe_load.check_load, load=1.5),
        "weight_bytes_per_gpu": call(memory.weight_bytes_per_gpu, "architectures", "layouts", architectures=DENSE, layouts=LAYOUT),
        "kv_bytes_per_sequence_per_gpu": call(
            memory.kv_bytes_per_sequence_per_gpu, "architectures", "layouts", architectures=DENSE, layouts=LAYOUT, context=4096
        ),
        "max_concurrency": call(
            memory.max_concurrency, "architectures", "layouts", "hardware", architectures=DENSE, layouts=LAYOUT, context=4096,
            usable_fraction=0.9, hardware="gb300",
        ),
        "gpus_needed": call(
            memory.gpus_needed, "architecture", "hardware", architecture=DENSE, context=4096, concurrency=8, usable_fraction=0.9,
            hardware="gb300",
        ),
        "ServingSetup": call(
            ServingSetup, "workload", "layouts", *_NAMES, workload=Workload(), layouts=LAYOUTS, concurrency=(1.0, 8.0), overlap=0.1,
            usable_fraction=0.9, chunk_tokens=8192, prefill_efficiency=0.9, decode_efficiency=0.9, gpu_budget=8, **PROFILE,
        ),
        "throughput_at_rates": call(throughput_at_rates, "architectures", "setup", architectures=DENSE, setup=SETUP, rates=[20, 100]),
        "frontier_area": call(operating.frontier_area, throughput=[2.0, 1.0], rates=[20, 100]),
        "log_rates": call(operating.log_rates, low=10.0, high=200.0, count=17),
        "stage_layers": call(pipeline.stage_layers, num_hidden_layers=61, stages=4),
        "stage_imbalance": call(pipeline.stage_imbalance, num_hidden_layers=61, stages=4),
        "schedule": call(pipeline.schedule, seconds=[[1.0, 1.0]], hop_seconds=0.1),
        "regime_setup": call(regimes.regime_setup, "setup", setup=SETUP, context=2048),
        "expert_parallel_table": call(
            scaling.expert_parallel_table, "architecture", *_NAMES, architecture=MOE, ep=(8,), tokens_per_gpu=(8.0,), context=4096,
            loads=("balanced",), **PROFILE,
        ),
    }
)  # fmt: skip
BAD: Mapping[str, Any] = MappingProxyType(
    {
        "NaN": math.nan,
        "infinity": math.inf,
        "minus one": -1,
        "zero": 0,
        "10^400": 10**400,
        "10^5000": 10**5000,
        "text": "many",
        "digits": "8",
        "nothing at all": [],
        "None in a list": [None],
        "mismatched shape": np.full((3, 5, 7), 2.0),
        "complex": 1j,
    }
)
