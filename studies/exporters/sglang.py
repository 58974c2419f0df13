"""Launch scripts for SGLang.

How a layout maps (SGLang 0.5.23): TP counts all GPUs of a pipeline stage. Attention data parallelism DPA and decode
context parallelism KVP divide it (attention TP = TP/DPA), and so does expert parallelism (expert TP = TP/EP).
"""

from __future__ import annotations

from ...costmodel.architecture import Architecture
from .deployment import Deployment, Pool, checkpoint_format, choose_value, require, script, uneven_heads

VERSION = "0.5.23"
SERVER = f"SGLang {VERSION}"
QUANTIZATION: dict[str, str | None] = {
    "bf16": None,
    "nvfp4": "modelopt_fp4",
    "fp8": "modelopt_fp8",
    "fp8_block": "fp8",
    "mxfp8": "mxfp8",
    "w4a16_mxfp4": "mxfp4",
    "int4_g128": "compressed-tensors",
    "mixed": "modelopt_mixed",
}
KV_DTYPE: dict[str, str | None] = {"bf16": None, "fp8": "fp8_e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


def refusals(architecture: Architecture, pool: Pool, disaggregated: bool = False) -> list[str]:
    """Why SGLang cannot run this pool; empty where it can."""
    layout = pool.layout
    tensor = layout.tpa * layout.kvp
    reasons = uneven_heads(architecture, tensor)
    if architecture.num_experts and architecture.num_experts % layout.ep:
        reasons.append(f"{architecture.num_experts} experts do not split over ep={layout.ep}")
    if layout.kvp > 1 and layout.dpa > 1:
        reasons.append("decode context parallelism and attention data parallelism are not combined here")
    if layout.kvp > 1 and architecture.attention == "gqa" and architecture.num_key_value_heads > tensor // layout.kvp:
        reasons.append(
            f"each GPU of a kvp={layout.kvp} group must hold the group's KV heads: {architecture.num_key_value_heads} KV heads "
            f"need tpa >= {architecture.num_key_value_heads}, not {layout.tpa}"
        )
    return reasons


def arguments(deployment: Deployment, pool: Pool) -> list[str]:
    """The command and its options, one a line.

    Raises:
        InvalidValueError: SGLang cannot run the layout or has no option for a format.
    """
    architecture, layout = deployment.architecture, pool.layout
    require(refusals(architecture, pool), SERVER, pool)
    role, nodes = deployment.serving_role(pool), deployment.nodes(pool)
    options = [f"--tp-size {layout.stage_gpus}"]
    if layout.dpa > 1:
        options.append(f"--attn-dp-size {layout.dpa}")
    if layout.kvp > 1:
        options.append(f"--dcp-size {layout.kvp}")
    if layout.ep > 1:
        options.append(f"--ep-size {layout.ep}")
    if layout.pp > 1:
        options.append(f"--pp-size {layout.pp}")
    if nodes > 1:
        options += [f"--nnodes {nodes}", '--node-rank "$NODE_RANK"', '--dist-init-addr "$HEAD:20000"']
    quantization = choose_value(QUANTIZATION, checkpoint_format(architecture, deployment.formats), "--quantization", SERVER)
    kv_dtype = choose_value(KV_DTYPE, deployment.formats.kv, "--kv-cache-dtype", SERVER)
    options += [f"--quantization {quantization}"] if quantization else []
    options += [f"--kv-cache-dtype {kv_dtype}"] if kv_dtype else []
    options.append(f"--context-length {deployment.max_tokens}")
    options.append(f"--max-running-requests {pool.sequences_per_attention_rank * layout.dpa}")  # of the whole replica
    if role != "decode":
        options.append(f"--chunked-prefill-size {deployment.chunk_tokens}")
    if deployment.disaggregated:
        options += [f"--disaggregation-mode {role}", "--disaggregation-transfer-backend nixl"]
    options += ["--host 0.0.0.0", f"--port {30100 if role == 'prefill' else 30200 if role == 'decode' else 30000}"]
    return ['python3 -m sglang.launch_server --model-path "$MODEL"', *options]


def launch_files(deployment: Deployment) -> dict[str, str]:
    """File name → content.

    Raises:
        InvalidValueError: SGLang cannot run the deployment.
    """
    router = ["A router in prefill-decode mode stands in front of both pools (NIXL moves the KV cache)."]
    return {
        f"sglang{f'-{pool.role}' if deployment.disaggregated else ''}.sh": script(
            deployment, pool, SERVER, arguments(deployment, pool), router if deployment.disaggregated else None
        )
        for pool in deployment.pools
    }
