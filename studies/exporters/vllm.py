"""Launch scripts for vLLM.

How a layout maps (vLLM 0.33): tensor parallelism TP = TPA·KVP, decode context parallelism DCP = KVP inside it, data
parallelism DP = DPA, pipeline PP. Experts lie on all TP·DP GPUs: whole experts with ``--enable-expert-parallel``
(EP = TP·DP), slices without (TPF = TP·DP). A dense FFN is sliced over TP and repeated over DP.
"""

from __future__ import annotations

import json

from ...costmodel.architecture import Architecture
from .deployment import Deployment, Pool, checkpoint_format, choose_value, require, script, uneven_heads

VERSION = "0.33.0"
SERVER = f"vLLM {VERSION}"
QUANTIZATION: dict[str, str | None] = {
    "bf16": None,
    "nvfp4": "modelopt_fp4",
    "fp8": "modelopt",
    "fp8_block": "fp8",
    "mxfp8": "modelopt_mxfp8",
    "w4a16_mxfp4": "mxfp4",
    "int4_g128": "compressed-tensors",
    "mixed": "modelopt_mixed",
}
KV_DTYPE: dict[str, str | None] = {"bf16": None, "fp8": "fp8", "nvfp4": "nvfp4"}
KV_DTYPE_MLA: dict[str, str | None] = {"bf16": None, "fp8": "fp8", "nvfp4": "nvfp4_ds_mla"}
KV_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def refusals(architecture: Architecture, pool: Pool, disaggregated: bool = False) -> list[str]:
    """Why vLLM cannot run this pool; empty where it can."""
    layout = pool.layout
    tensor = layout.tpa * layout.kvp
    reasons = uneven_heads(architecture, tensor)
    if architecture.num_experts:
        if layout.tpf > 1 and layout.ep > 1:
            reasons.append(
                f"its experts are either whole (EP = TP*DP) or sliced (TP*DP), not tpf={layout.tpf} with ep={layout.ep}"
            )
    elif layout.dpa > 1:
        reasons.append(
            f"it repeats a dense FFN over data-parallel ranks (dpa={layout.dpa}), the layout slices it over tpf={layout.tpf}"
        )
    if layout.kvp > 1 and architecture.attention == "gqa":
        kv_heads = architecture.num_key_value_heads
        if tensor <= kv_heads or layout.kvp > tensor // kv_heads:
            reasons.append(
                f"a KV cache shared by kvp={layout.kvp} needs {layout.kvp * kv_heads} or more tensor-parallel GPUs, not {tensor}"
            )
        if architecture.num_attention_heads // kv_heads % layout.kvp:
            reasons.append(
                f"{architecture.num_attention_heads // kv_heads} query heads a KV head do not split over kvp={layout.kvp}"
            )
        if disaggregated:
            reasons.append("with prefill and decode apart it shards the KV cache of MLA models only")
    if disaggregated and architecture.attention == "mla" and layout.kvp not in (1, tensor):
        reasons.append(f"with prefill and decode apart kvp is 1 or all {tensor} tensor-parallel GPUs, not {layout.kvp}")
    partly = 0 < architecture.num_sliding_window_layers < architecture.num_hidden_layers
    if partly and not architecture.attention_sinks and not architecture.num_experts:
        reasons.append("its Qwen3 model takes a window for all layers or for none")
    return reasons


def arguments(deployment: Deployment, pool: Pool) -> list[str]:
    """The command and its options, one a line.

    Raises:
        InvalidValueError: vLLM cannot run the layout or has no option for a format.
    """
    architecture, layout = deployment.architecture, pool.layout
    require(refusals(architecture, pool, deployment.disaggregated), SERVER, pool)
    role = deployment.serving_role(pool)
    tensor = layout.tpa * layout.kvp
    options = [f"--tensor-parallel-size {tensor}"]
    if layout.kvp > 1:
        options.append(f"--decode-context-parallel-size {layout.kvp}")
    if layout.dpa > 1:
        options.append(f"--data-parallel-size {layout.dpa}")
    if layout.pp > 1:
        options.append(f"--pipeline-parallel-size {layout.pp}")
    if layout.ep > 1:
        options.append("--enable-expert-parallel")
    options += _nodes(deployment, pool, tensor * layout.pp)
    quantization = choose_value(QUANTIZATION, checkpoint_format(architecture, deployment.formats), "--quantization", SERVER)
    kv_dtype = choose_value(
        KV_DTYPE_MLA if architecture.attention == "mla" else KV_DTYPE, deployment.formats.kv, "--kv-cache-dtype", SERVER
    )
    options += [f"--quantization {quantization}"] if quantization else []
    options += [f"--kv-cache-dtype {kv_dtype}"] if kv_dtype else []
    options.append(f"--max-model-len {deployment.max_tokens}")
    options.append(f"--max-num-seqs {pool.sequences_per_attention_rank}")  # of one data-parallel rank
    if role != "decode":
        options += [
            "--enable-chunked-prefill",
            f"--max-num-batched-tokens {max(deployment.chunk_tokens, pool.sequences_per_attention_rank)}",
        ]
    if deployment.disaggregated:
        options.append(f"--kv-transfer-config '{json.dumps(KV_TRANSFER)}'")
    options += ["--host 0.0.0.0", f"--port {8100 if role == 'prefill' else 8200 if role == 'decode' else 8000}"]
    return ['vllm serve "$MODEL"', *options]


def _nodes(deployment: Deployment, pool: Pool, engine_gpus: int) -> list[str]:
    """Options of a replica that spans nodes: data-parallel ranks a node where one fits, else torch's own rendezvous."""
    nodes = deployment.nodes(pool)
    if nodes == 1:
        return []
    if engine_gpus <= deployment.gpus_per_node:
        local = deployment.gpus_per_node // engine_gpus
        return [
            f"--data-parallel-size-local {local}",
            f'--data-parallel-start-rank "$((NODE_RANK * {local}))"',
            '--data-parallel-address "$HEAD"',
            "--data-parallel-rpc-port 13345",
            '$([ "$NODE_RANK" = 0 ] || echo --headless)',
        ]
    return [
        f"--nnodes {nodes}",
        '--node-rank "$NODE_RANK"',
        '--master-addr "$HEAD"',
        '$([ "$NODE_RANK" = 0 ] || echo --headless)',
    ]


def launch_files(deployment: Deployment) -> dict[str, str]:
    """File name → content.

    Raises:
        InvalidValueError: vLLM cannot run the deployment.
    """
    proxy = [
        "A router that hands each request first to a prefill, then to a decode replica stands in front (NIXL moves the KV cache)."
    ]
    return {
        f"vllm{_suffix(deployment, pool)}.sh": script(
            deployment, pool, SERVER, arguments(deployment, pool), proxy if deployment.disaggregated else None
        )
        for pool in deployment.pools
    }


def _suffix(deployment: Deployment, pool: Pool) -> str:
    return f"-{pool.role}" if deployment.disaggregated else ""
