"""Launch files for TensorRT-LLM (``trtllm-serve``): a script and a YAML file a pool, one more YAML for a disaggregated pair.

How a layout maps: TP counts TPA·DPA GPUs of a stage, attention data parallelism is all of them or none
(``enable_attention_dp``), experts lie on TP·CP GPUs as EP × expert TP. KVP is Helix context parallelism (CP), which
TensorRT-LLM runs for MLA models on generation servers of a disaggregated deployment.
"""

from __future__ import annotations

from typing import Any

from ...costmodel.architecture import Architecture
from .deployment import Deployment, Pool, choose_value, require, script, uneven_heads
from .yaml_text import to_yaml

VERSION = "1.2.1"
SERVER = f"TensorRT-LLM {VERSION}"
KV_DTYPE: dict[str, str | None] = {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
TOKENS_PER_BLOCK = 32  # page of the KV cache; Helix deals pages out to its ranks
FREE_MEMORY = 0.85  # share of the memory left after loading that the KV cache takes
PORTS = {"both": 8000, "prefill": 18000, "decode": 19000}  # of the first replica, the next ones follow


def refusals(architecture: Architecture, pool: Pool, disaggregated: bool = False) -> list[str]:
    """Why TensorRT-LLM cannot run this pool; empty where it can."""
    layout = pool.layout
    reasons = uneven_heads(architecture, layout.tpa)
    if layout.dpa > 1 and layout.tpa > 1:
        reasons.append(
            f"attention is data parallel on all GPUs of a stage or on none, not tpa={layout.tpa} with dpa={layout.dpa}"
        )
    if not architecture.num_experts and layout.dpa > 1:
        reasons.append(f"with attention data parallelism it repeats a dense FFN, the layout slices it over tpf={layout.tpf}")
    if architecture.num_experts and architecture.num_experts % layout.ep:
        reasons.append(f"{architecture.num_experts} experts do not split over ep={layout.ep}")
    if layout.kvp > 1:
        if architecture.attention != "mla":
            reasons.append("its Helix parallelism (kvp) runs MLA models only")
        if not (disaggregated and pool.role == "decode"):
            reasons.append("its Helix parallelism (kvp) runs on the decode pool of a disaggregated deployment only")
        if layout.dpa > 1:
            reasons.append("Helix and attention data parallelism are not combined here")
    return reasons


def engine(deployment: Deployment, pool: Pool) -> dict[str, Any]:
    """The engine's YAML keys.

    Raises:
        InvalidValueError: TensorRT-LLM cannot run the layout or has no KV-cache type for the format.
    """
    architecture, layout = deployment.architecture, pool.layout
    require(refusals(architecture, pool, deployment.disaggregated), SERVER, pool)
    role = deployment.serving_role(pool)
    batch = pool.sequences_per_attention_rank
    keys: dict[str, Any] = {
        "tensor_parallel_size": layout.tpa * layout.dpa,
        "pipeline_parallel_size": layout.pp,
        "enable_attention_dp": layout.dpa > 1,
        "max_batch_size": batch,  # of one attention rank
        "max_num_tokens": max(batch, deployment.chunk_tokens) if role != "decode" else batch,
        "max_seq_len": deployment.max_tokens,
        "enable_chunked_prefill": role != "decode",
        "kv_cache_config": {
            "dtype": choose_value(KV_DTYPE, deployment.formats.kv, "kv_cache_config.dtype", SERVER),
            "free_gpu_memory_fraction": FREE_MEMORY,
        },
    }
    if architecture.num_experts:
        keys |= {"moe_expert_parallel_size": layout.ep, "moe_tensor_parallel_size": layout.tpf}
    if layout.kvp > 1:
        keys |= {"context_parallel_size": layout.kvp, "cp_config": {"cp_type": "HELIX", "tokens_per_block": TOKENS_PER_BLOCK}}
        keys["kv_cache_config"]["tokens_per_block"] = TOKENS_PER_BLOCK
    if role != "prefill":
        keys["cuda_graph_config"] = {"enable_padding": True, "max_batch_size": batch}
    if deployment.disaggregated:
        buffer = deployment.workload.input_tokens + 1
        keys["cache_transceiver_config"] = {
            "backend": "DEFAULT",
            "max_tokens_in_buffer": -(-buffer // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK,
        }
        if role == "prefill":
            keys["disable_overlap_scheduler"] = True
    return keys


def launch_files(deployment: Deployment) -> dict[str, str]:
    """File name → content.

    Raises:
        InvalidValueError: TensorRT-LLM cannot run the deployment.
    """
    files = {}
    for pool in deployment.pools:
        stem = f"trtllm-{pool.role}" if deployment.disaggregated else "trtllm"
        role = deployment.serving_role(pool)
        nodes = deployment.nodes(pool)
        start = "trtllm-llmapi-launch trtllm-serve" if nodes > 1 else "trtllm-serve"
        run = [
            f'{start} "$MODEL"',
            f'--extra_llm_api_options "$(dirname "$0")/{stem}.yaml"',
            "--host 0.0.0.0",
            f"--port {PORTS[role]}",
        ]
        hint = [f"Under Slurm: {_slurm(deployment, pool)} bash {stem}.sh"] if nodes > 1 else []
        files[f"{stem}.yaml"] = to_yaml(
            engine(deployment, pool), comments=[f"{deployment.name}: engine options, {SERVER}", *_note(deployment)]
        )
        files[f"{stem}.sh"] = script(deployment, pool, SERVER, run, hint)
    if deployment.disaggregated:
        files["trtllm-disaggregated.yaml"] = to_yaml(_router(deployment), comments=_router_comments(deployment))
    return files


def _router(deployment: Deployment) -> dict[str, Any]:
    keys: dict[str, Any] = {"hostname": "0.0.0.0", "port": 8000}
    for name, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        pool = next(pool for pool in deployment.pools if pool.role == role)
        urls = [f"localhost:{PORTS[role] + index}" for index in range(pool.replicas)]
        keys[name] = {"num_instances": pool.replicas, "urls": urls}
    return keys


def _router_comments(deployment: Deployment) -> list[str]:
    return [
        f"{deployment.name}: router of the prefill and decode servers, {SERVER}",
        "Start the servers first and put their addresses below, then run:",
        "  trtllm-serve disaggregated --config_file trtllm-disaggregated.yaml",
        *_note(deployment),
    ]


def _note(deployment: Deployment) -> list[str]:
    return [deployment.note] if deployment.note else []


def _slurm(deployment: Deployment, pool: Pool) -> str:
    per_node = min(deployment.gpus_per_node, pool.layout.gpus)
    return f"srun -N {deployment.nodes(pool)} -n {pool.layout.gpus} --ntasks-per-node={per_node} --mpi=pmix"
