"""Launch files: every option exists in its server's own list, values agree with the layout, what cannot run is refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel.architecture import Architecture
from shapefront.costmodel.errors import InvalidValueError
from shapefront.costmodel.formats import TensorFormats
from shapefront.costmodel.layout import Layout
from shapefront.costmodel.workload import Workload
from shapefront.studies.exporters import sglang, trtllm, vllm
from shapefront.studies.exporters.deployment import Deployment, Pool
from shapefront.studies.exporters.yaml_text import to_yaml

REFERENCE = Path(__file__).parents[1] / "reference"
DENSE = Architecture(
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    intermediate_size=14336,
)
MOE = Architecture(
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    qk_norm="head",
)
MLA = Architecture(
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    vocab_size=129280,
    attention="mla",
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_shared_experts=1,
    first_k_dense_replace=3,
    intermediate_size=18432,
)


def _pool(text: str, concurrency: float = 100, role: str = "both", replicas: int = 1) -> Pool:
    return Pool(layout=Layout.parse(text), concurrency=concurrency, role=role, replicas=replicas)


# Deployments all three servers can run.
DEPLOYMENTS = {
    "dense-1": Deployment(architecture=DENSE, pools=(_pool("tpa=1"),)),
    "dense-tp4": Deployment(architecture=DENSE, pools=(_pool("tpa=4"),), formats=TensorFormats.uniform("fp8")),
    "dense-tp4-pp2": Deployment(
        architecture=DENSE, pools=(_pool("tpa=4,tpf=4,pp=2"),), formats=TensorFormats.uniform("bf16", kv="bf16")
    ),
    "moe-ep8": Deployment(architecture=MOE, pools=(_pool("dpa=8,ep=8", 1000.5),), gpus_per_node=8),
    "moe-ep8-two-nodes": Deployment(architecture=MOE, pools=(_pool("dpa=8,ep=8", 1000.5),)),
    "moe-tp4": Deployment(
        architecture=MOE, pools=(_pool("tpa=4,tpf=4"),), formats=TensorFormats(qkv="bf16", attention_output="bf16")
    ),
    "moe-pools": Deployment(
        architecture=MOE, pools=(_pool("dpa=4,ep=4", 8, "prefill", 3), _pool("dpa=8,ep=8", 512, "decode", 2)), gpus_per_node=8
    ),
    "mla-wide": Deployment(
        architecture=MLA,
        pools=(_pool("dpa=4,ep=4", 4, "prefill", 2), _pool("dpa=32,ep=32", 2048, "decode")),
        workload=Workload(input_tokens=8192, output_tokens=1024),
    ),
    "mla-tp16": Deployment(architecture=MLA, pools=(_pool("tpa=16,ep=16", 8),)),
}
SERVERS: dict[str, Any] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}


def _reference(server: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REFERENCE / f"server_flags_{server}.json").read_text())
    return found


def _options(script: str) -> dict[str, str | bool]:
    """``--flag value`` pairs of the exec line; a flag alone maps to True."""
    command = script[script.index("exec ") :].replace("\\\n", " ")
    command = re.sub(r"\$\(\[.*?--headless\)", "--headless", command)
    words = shlex.split(command)
    found: dict[str, str | bool] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) else "--"
            found[word] = True if following.startswith("--") else following
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("server", SERVERS)
def test_every_option_is_in_the_servers_own_list(server: str, name: str) -> None:
    reference = _reference(server)
    known, choices = set(reference["flags"]), reference["choices"]
    files = SERVERS[server].launch_files(DEPLOYMENTS[name])
    scripts = [text for file, text in files.items() if file.endswith(".sh")]
    assert len(scripts) == len(DEPLOYMENTS[name].pools)
    for script in scripts:
        options = _options(script)
        assert set(options) - {"--model-path"} <= known
        assert not set(options) & set(reference.get("deprecated", []))
        for option in set(options) & set(choices):
            assert options[option] in choices[option]
        assert SERVERS[server].VERSION in reference["version"]
        assert SERVERS[server].VERSION in script


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("server", SERVERS)
def test_scripts_are_valid_shell(server: str, name: str) -> None:
    for file, text in SERVERS[server].launch_files(DEPLOYMENTS[name]).items():
        if file.endswith(".sh"):
            assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_vllm_parallel_sizes_multiply_to_the_gpus(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    for pool, script in zip(deployment.pools, vllm.launch_files(deployment).values(), strict=True):
        options = _options(script)
        tp, dp, pp = (int(options.get(f"--{n}-parallel-size", 1)) for n in ("tensor", "data", "pipeline"))
        assert tp * dp * pp == pool.layout.gpus
        expert_gpus = tp * dp if "--enable-expert-parallel" in options else 1
        assert expert_gpus == pool.layout.ep
        assert int(options["--max-num-seqs"]) * dp >= pool.concurrency  # the limit holds for one data-parallel rank
        assert int(options["--max-num-seqs"]) * dp < pool.concurrency + dp


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_sglang_parallel_sizes_divide_the_gpus(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    for pool, script in zip(deployment.pools, sglang.launch_files(deployment).values(), strict=True):
        options = _options(script)
        tp, pp, dp, ep = (int(options.get(f"--{n}-size", 1)) for n in ("tp", "pp", "attn-dp", "ep"))
        assert tp * pp == pool.layout.gpus
        assert tp // dp == pool.layout.tpa and tp % dp == 0
        assert tp // ep == pool.layout.tpf and tp % ep == 0
        assert pool.concurrency <= int(options["--max-running-requests"]) < pool.concurrency + dp


def _read_yaml(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (it comes with the docs extra)")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_trtllm_yaml_has_known_keys_and_agrees_with_the_layout(name: str) -> None:
    reference, deployment = _reference("trtllm"), DEPLOYMENTS[name]
    files = trtllm.launch_files(deployment)
    for pool in deployment.pools:
        keys = _read_yaml(files[f"trtllm-{pool.role}.yaml" if deployment.disaggregated else "trtllm.yaml"])
        assert set(keys) <= set(reference["yaml_keys"])
        for outer, inner in reference["nested_keys"].items():
            assert set(keys.get(outer, {})) <= set(inner)
        assert keys["kv_cache_config"]["dtype"] in reference["choices"]["kv_cache_config.dtype"]
        tp, cp = keys["tensor_parallel_size"], keys.get("context_parallel_size", 1)
        assert tp * cp * keys["pipeline_parallel_size"] == pool.layout.gpus
        if deployment.architecture.num_experts:
            assert keys["moe_expert_parallel_size"] * keys["moe_tensor_parallel_size"] == tp * cp
        ranks = tp if keys["enable_attention_dp"] else 1
        assert pool.concurrency <= keys["max_batch_size"] * ranks < pool.concurrency + ranks


def test_trtllm_router_names_every_server() -> None:
    reference = _reference("trtllm")
    text = trtllm.launch_files(DEPLOYMENTS["moe-pools"])["trtllm-disaggregated.yaml"]
    keys = _read_yaml(text)
    assert set(keys) <= set(reference["disaggregated_keys"])
    for pool, count in (("context_servers", 3), ("generation_servers", 2)):
        assert set(keys[pool]) <= set(reference["pool_keys"])
        assert keys[pool]["num_instances"] == len(set(keys[pool]["urls"])) == count
    command = re.search(r"trtllm-serve disaggregated (--\S+)", text)
    assert command and command.group(1) in reference["disaggregated_flags"]


def test_disaggregated_pools_say_their_role() -> None:
    deployment = DEPLOYMENTS["moe-pools"]
    modes = [_options(text)["--disaggregation-mode"] for text in sglang.launch_files(deployment).values()]
    assert modes == ["prefill", "decode"]
    transfer = json.loads(str(_options(vllm.launch_files(deployment)["vllm-decode.sh"])["--kv-transfer-config"]))
    reference = _reference("vllm")
    assert transfer["kv_connector"] in reference["kv_connectors"] and transfer["kv_role"] in reference["kv_roles"]


def test_helix_is_written_for_the_decode_pool_of_an_mla_model() -> None:
    pools = (_pool("tpa=4,ep=4", 1, "prefill"), _pool("tpa=2,kvp=4,ep=8", 4, "decode"))
    keys = _read_yaml(trtllm.launch_files(Deployment(architecture=MLA, pools=pools))["trtllm-decode.yaml"])
    assert (keys["tensor_parallel_size"], keys["context_parallel_size"], keys["moe_expert_parallel_size"]) == (2, 4, 8)
    assert keys["cp_config"]["tokens_per_block"] == keys["kv_cache_config"]["tokens_per_block"]
    with pytest.raises(InvalidValueError, match="Helix parallelism \\(kvp\\) runs MLA models only"):
        trtllm.launch_files(Deployment(architecture=MOE, pools=(_pool("tpa=2,kvp=4,ep=8", 4),)))
    # vLLM and SGLang call it decode context parallelism: 8 GPUs of one tensor-parallel group, 4 share a sequence
    single = Deployment(architecture=MLA, pools=(_pool("tpa=2,kvp=4,ep=8", 4),), gpus_per_node=8)
    assert _options(vllm.launch_files(single)["vllm.sh"])["--decode-context-parallel-size"] == "4"
    assert _options(sglang.launch_files(single)["sglang.sh"])["--dcp-size"] == "4"


@pytest.mark.parametrize(
    ("server", "architecture", "layout", "reason"),
    [
        ("vllm", MOE, "tpa=8,tpf=2,ep=4", "not tpf=2 with ep=4"),
        ("vllm", DENSE, "dpa=4,tpf=4", "repeats a dense FFN over data-parallel ranks"),
        ("vllm", DENSE, "tpa=2,kvp=2,tpf=4", "needs 16 or more tensor-parallel GPUs, not 4"),
        ("trtllm", MOE, "tpa=2,dpa=4,ep=8", "not tpa=2 with dpa=4"),
        ("trtllm", DENSE, "dpa=4,tpf=4", "repeats a dense FFN"),
        ("sglang", MOE, "tpa=2,kvp=4,ep=8", "need tpa >= 4, not 2"),
        ("sglang", DENSE, "tpa=24,tpf=24", "32 query heads do not split over 24"),
    ],
)
def test_what_a_server_cannot_run_is_refused_with_the_reason(
    server: str, architecture: Architecture, layout: str, reason: str
) -> None:
    with pytest.raises(InvalidValueError, match=f"cannot run the layout {layout.split(',')[0]}.*{re.escape(reason)}"):
        SERVERS[server].launch_files(Deployment(architecture=architecture, pools=(_pool(layout),)))


def test_formats_reach_the_servers() -> None:
    nvfp4 = _options(vllm.launch_files(DEPLOYMENTS["dense-1"])["vllm.sh"])
    assert (nvfp4["--quantization"], nvfp4["--kv-cache-dtype"]) == ("modelopt_fp4", "fp8")
    assert "--quantization" not in _options(vllm.launch_files(DEPLOYMENTS["dense-tp4-pp2"])["vllm.sh"])
    # attention in BF16, experts in NVFP4: one low-precision format, the checkpoint lists what is left out
    assert _options(sglang.launch_files(DEPLOYMENTS["moe-tp4"])["sglang.sh"])["--quantization"] == "modelopt_fp4"
    mixed = Deployment(architecture=MOE, pools=(_pool("tpa=4,tpf=4"),), formats=TensorFormats(qkv="fp8", attention_output="fp8"))
    assert _options(sglang.launch_files(mixed)["sglang.sh"])["--quantization"] == "modelopt_mixed"
    with pytest.raises(InvalidValueError, match="has no --kv-cache-dtype for the format 'mxfp4'"):
        vllm.launch_files(Deployment(architecture=DENSE, pools=(_pool("tpa=1"),), formats=TensorFormats(kv="mxfp4")))


def test_a_replica_over_two_nodes_asks_for_rank_and_head() -> None:
    script = vllm.launch_files(DEPLOYMENTS["moe-ep8-two-nodes"])["vllm.sh"]
    options = _options(script)
    assert options["--data-parallel-size-local"] == "4" and "NODE_RANK=0.. HEAD=" in script
    sg = _options(sglang.launch_files(DEPLOYMENTS["moe-ep8-two-nodes"])["sglang.sh"])
    assert (sg["--nnodes"], sg["--node-rank"]) == ("2", "$NODE_RANK")
    assert "srun -N 2 -n 8" in trtllm.launch_files(DEPLOYMENTS["moe-ep8-two-nodes"])["trtllm.sh"]


def test_a_name_cannot_leave_its_comment() -> None:
    evil = "design\n$(touch /tmp/owned)\r\nrm -rf x"
    for server in SERVERS.values():
        for text in server.launch_files(Deployment(architecture=DENSE, pools=(_pool("tpa=1"),), name=evil, note=evil)).values():
            assert all(line.startswith("#") for line in text.splitlines() if "owned" in line or "rm -rf" in line)


def test_a_deployment_is_one_pool_or_a_pair() -> None:
    with pytest.raises(InvalidValueError, match="a prefill and a decode pool; got roles prefill"):
        Deployment(architecture=DENSE, pools=(_pool("tpa=1", role="prefill"),))
    with pytest.raises(InvalidValueError, match="concurrency must be above 0"):
        _pool("tpa=1", 0)


def test_yaml_text_reads_back() -> None:
    value = {"a": 1, "b": {"c": [1, {"d": "x: y", "e": None}], "f": True}, "g": [], "h": "#", "i": 0.5}
    assert _read_yaml(to_yaml(value, comments=["head"])) == value


def test_the_head_of_a_script_says_in_words_what_it_starts() -> None:
    one = Deployment(architecture=DENSE, pools=(_pool("tpa=1", 99.5),), name="my-study a001")
    lines = vllm.launch_files(one)["vllm.sh"].splitlines()
    assert lines[2] == "# Starts one server on 1 GPU"
    assert lines[3] == "# Sized for up to 100 sequences in flight, 8192 tokens in, 1024 out"
    many = Deployment(architecture=MOE, pools=(_pool("dpa=8,ep=8", replicas=3),), gpus_per_node=8)
    assert (
        "# Starts one server on 8 GPUs (attention data parallel 8, expert parallel 8); the plan has 3 of them, 24 GPUs together"
        in vllm.launch_files(many)["vllm.sh"].splitlines()
    )
