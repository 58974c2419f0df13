"""Small search problems: a dense one, and one with three families (windows, MLA, FP8)."""

from __future__ import annotations

from collections.abc import Mapping

from shapefront.constraints.bands import load_bands
from shapefront.constraints.budget import Budget
from shapefront.constraints.rules import Rules
from shapefront.constraints.space import DesignSpace, lattice
from shapefront.costmodel import ArchitectureKind, TensorFormats, Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup
from shapefront.search.objectives import Objective, default_objectives
from shapefront.search.problem import SearchProblem

CONCURRENCY = tuple(2.0**i for i in range(14))


def make_dense(
    *,
    objectives: tuple[Objective, ...] = (),
    layout_mode: str = "sweep",
    tolerance: float = 0.01,
    total: float | None = None,
    profile: str = "gb300-blog",
) -> SearchProblem:
    """Around Llama-3.1-8B: some hundred designs."""
    reference = load_model("Llama-3.1-8B")
    dimensions: Mapping[str, tuple[int, ...]] = {
        "hidden_size": lattice(3072, 6144, 256),
        "intermediate_size": lattice(8192, 24576, 256),
        "num_hidden_layers": lattice(20, 48, 2),
        "num_attention_heads": lattice(24, 48, 8),
        "num_key_value_heads": (4, 8),
    }
    space = DesignSpace("gqa", reference.kind, dimensions, {"head_dim": 128, "vocab_size": reference.vocab_size})
    setup = ServingSetup(
        workload=Workload(), layouts=enumerate_layouts([1, 2, 4], moe=False), concurrency=CONCURRENCY, profile=profile
    )
    bands = load_bands(False, mode="min-max", include=reference)
    budget = Budget(total or reference.total_params, tolerance=tolerance)
    return SearchProblem(
        (space,), budget, Rules(bands=bands.limits), setup, reference, objectives or default_objectives(layout_mode), layout_mode
    )


def make_families(*, objectives: tuple[Objective, ...] = (), profile: str = "gb300-blog", max_pp: int = 1) -> SearchProblem:
    """MoE of 30B parameters in three families: GQA with a window pattern, the same in FP8, and MLA."""
    reference = load_model("Qwen3-30B-A3B")
    shared: dict[str, tuple[int, ...]] = {
        "hidden_size": (2048, 3072),
        "moe_intermediate_size": lattice(256, 4096, 256),
        "num_hidden_layers": lattice(24, 56, 4),
        "num_experts": (32, 64, 128),
        "num_experts_per_tok": (4, 8),
        "num_attention_heads": (16, 32),
    }
    gqa = {**shared, "num_key_value_heads": (4, 8), "sliding_window_period": (1, 4)}
    mla = {**shared, "kv_lora_rank": (256, 512)}
    kind = ArchitectureKind(moe=True)
    vocabulary = {"vocab_size": reference.vocab_size}
    ranks = {"q_lora_rank": 768, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    spaces = (
        DesignSpace("gqa", kind, gqa, {**vocabulary, "head_dim": 128, "sliding_window": 1024}),
        DesignSpace("fp8", kind, gqa, {**vocabulary, "head_dim": 128, "sliding_window": 1024}, TensorFormats.uniform("fp8_block")),
        DesignSpace("mla", ArchitectureKind(attention="mla", moe=True), mla, {**vocabulary, **ranks}),
    )
    setup = ServingSetup(
        workload=Workload(),
        layouts=enumerate_layouts([1, 2, 4, 8], moe=True, max_kvp=2, max_pp=max_pp),
        concurrency=CONCURRENCY,
        profile=profile,
    )
    bands = load_bands(True, mode="min-max", include=reference)
    rules = Rules(bands=bands.limits)
    return SearchProblem(
        spaces, Budget(reference.total_params, tolerance=0.02), rules, setup, reference, objectives or default_objectives()
    )
