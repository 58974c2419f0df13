"""One operating point as something to start: pools of replicas, their layout, concurrency and number formats."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...costmodel.architecture import Architecture
from ...costmodel.errors import InvalidValueError
from ...costmodel.formats import TensorFormats
from ...costmodel.layout import Layout
from ...costmodel.workload import Workload

MAX_REPLICAS = 1_000_000
ROLES = ("both", "prefill", "decode")
# GPUs that share one operating system. GB200/GB300 NVL72: 18 compute trays of 4 GPUs (NVIDIA datasheet); HGX boards: 8.
GPUS_PER_NODE = {"gb300": 4, "gb200": 4, "b300": 8, "b200": 8, "h200": 8, "h100": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one kind.

    Attributes:
        layout: layout of one replica.
        concurrency: sequences in flight of one replica; a prefill replica counts the prompts it works on.
        replicas: how many.
        role: ``both`` (prefill chunks share decode steps), ``prefill`` or ``decode``.

    Raises:
        InvalidValueError: a value breaks its rule.
    """

    layout: Layout
    concurrency: float
    replicas: int = 1
    role: str = "both"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidValueError(f"role must be one of {', '.join(ROLES)}, got {self.role!r:.40}")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise InvalidValueError(f"replicas must be from 1 to {MAX_REPLICAS}, got {self.replicas}")
        if not 0 < self.concurrency < 1e9:
            raise InvalidValueError(f"concurrency must be above 0 and below 1e9, got {self.concurrency}")

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.layout.gpus

    @property
    def sequences(self) -> int:
        """Whole sequences of one replica, rounded up."""
        return math.ceil(self.concurrency)

    @property
    def sequences_per_attention_rank(self) -> int:
        """Sequences of one attention-data-parallel rank, rounded up."""
        return math.ceil(self.concurrency / self.layout.dpa)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a launch file is written from.

    Attributes:
        architecture: the design.
        pools: one pool of role ``both``, or one ``prefill`` and one ``decode`` pool.
        formats: number formats of the tensor classes.
        workload: prompt and answer lengths.
        name: for comments and file names.
        chunk_tokens: prompt tokens one prefill pass takes.
        gpus_per_node: GPUs that share one operating system.
        note: one line for the head of each file: the expected figures and the profile they come from.

    Raises:
        InvalidValueError: the pools do not make a deployment.
    """

    architecture: Architecture
    pools: tuple[Pool, ...]
    formats: TensorFormats = field(default_factory=TensorFormats)
    workload: Workload = field(default_factory=Workload)
    name: str = "design"
    chunk_tokens: int = 8192
    gpus_per_node: int = 4
    note: str = ""

    def __post_init__(self) -> None:
        roles = tuple(sorted(pool.role for pool in self.pools))
        if roles not in (("both",), ("decode", "prefill"), ("decode",)):
            raise InvalidValueError(
                f"a deployment is one pool, or a prefill and a decode pool; got roles {', '.join(roles) or 'none'}"
            )
        if self.gpus_per_node < 1:
            raise InvalidValueError(f"gpus_per_node must be at least 1, got {self.gpus_per_node}")

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on pools of their own."""
        return len(self.pools) == 2

    @property
    def max_tokens(self) -> int:
        """Tokens a sequence can reach."""
        return self.workload.peak_context

    def nodes(self, pool: Pool) -> int:
        """Nodes one replica of ``pool`` spans."""
        return -(-pool.layout.gpus // self.gpus_per_node)

    def serving_role(self, pool: Pool) -> str:
        """``both`` where a pool serves alone, whatever it was priced as: decode needs its prompts from somewhere."""
        return pool.role if self.disaggregated else "both"


def linear_formats(architecture: Architecture, formats: TensorFormats) -> dict[str, str]:
    """Format of each tensor class the design has, LM head and router left out."""
    classes = {"qkv": formats.qkv, "attention_output": formats.attention_output}
    if architecture.num_experts:
        classes["experts"] = formats.experts
    if not architecture.num_experts or architecture.first_k_dense_replace or architecture.n_shared_experts:
        classes["ffn"] = formats.ffn
    return classes


def checkpoint_format(architecture: Architecture, formats: TensorFormats) -> str:
    """The one low-precision format of the linear layers, ``bf16`` for none, ``mixed`` for several."""
    low = {name for name in linear_formats(architecture, formats).values() if name != "bf16"}
    return "bf16" if not low else low.pop() if len(low) == 1 else "mixed"


def choose_value(table: dict[str, str | None], key: str, what: str, server: str) -> str | None:
    """``table[key]``; None means the server needs no option for it.

    Raises:
        InvalidValueError: the server has no value for ``key``.
    """
    if key not in table:
        known = ", ".join(sorted(table))
        raise InvalidValueError(f"{server} has no {what} for the format '{key}'; it has {known}")
    return table[key]


def require(reasons: list[str], server: str, pool: Pool) -> None:
    """Refuse a layout the server cannot run.

    Raises:
        InvalidValueError: ``reasons`` is not empty.
    """
    if reasons:
        raise InvalidValueError(f"{server} cannot run the layout {pool.layout}: {'; '.join(reasons)}")


def uneven_heads(architecture: Architecture, shards: int) -> list[str]:
    """Attention heads a tensor-parallel group cannot split evenly."""
    if architecture.num_attention_heads % shards:
        return [f"{architecture.num_attention_heads} query heads do not split over {shards} tensor-parallel GPUs"]
    kv = architecture.num_key_value_heads
    if architecture.attention == "gqa" and kv % shards and shards % kv:
        return [f"{kv} KV heads neither split nor repeat evenly over {shards} tensor-parallel GPUs"]
    return []


FACTORS = {
    "tpa": "attention tensor parallel", "kvp": "KV cache parallel", "dpa": "attention data parallel",
    "tpf": "FFN tensor parallel", "ep": "expert parallel", "pp": "pipeline stages",
}  # fmt: skip


def layout_words(layout: Layout) -> str:
    """`` (attention data parallel 8, expert parallel 8)``; empty on one GPU."""
    words = ", ".join(f"{text} {getattr(layout, name)}" for name, text in FACTORS.items() if getattr(layout, name) > 1)
    return f" ({words})" if words else ""


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"


def script(deployment: Deployment, pool: Pool, server: str, arguments: list[str], extra: list[str] | None = None) -> str:
    """A shell script that starts one replica.

    Args:
        deployment: what it belongs to.
        pool: whose replica it starts.
        server: name and version for the head.
        arguments: the command and its options, one line each.
        extra: further comment lines.
    """
    layout, nodes = pool.layout, deployment.nodes(pool)
    role = deployment.serving_role(pool)
    many = f"; the plan has {pool.replicas} of them, {_gpus(pool.gpus)} together" if pool.replicas > 1 else ""
    head = [
        f"{deployment.name}: {server}",
        f"Starts one {'server' if role == 'both' else f'{role} server'} on {_gpus(layout.gpus)}{layout_words(layout)}{many}",
        f"Sized for up to {pool.sequences} sequences in flight, {deployment.workload.input_tokens} tokens in, "
        f"{deployment.workload.output_tokens} out",
    ]
    if deployment.note:
        head.append(deployment.note)
    if nodes > 1:
        head.append(
            f"Start it on each of its {nodes} nodes of {deployment.gpus_per_node} GPUs: NODE_RANK=0.. HEAD=<address of node 0>"
        )
    head += extra or []
    lines = [
        "#!/usr/bin/env bash",
        *(f"# {' '.join(line.split())}" for line in head),
        "set -euo pipefail",
        'MODEL="${MODEL:-./checkpoint}"',
        "",
    ]
    return "\n".join([*lines, "exec " + " \\\n  ".join(arguments)]) + "\n"
