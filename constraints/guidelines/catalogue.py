"""The rules by their stable ids. An id is never given to another rule."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .finding import BLOG, Rule

MIN_PROJECTION = 2560  # N; [blog] Fig. 4 right: 80 % of the sustained rate (measured by the post on GB300)
MIN_REDUCTION = 3072  # K; [blog] Fig. 4 left
SATURATION = 6144  # both saturate near here; [blog] Fig. 4
SMALL_SHARD = 512  # K; [blog] Table 2: memory-bound at every token count
MULTIPLES = (128, 256, 512)  # floor, clusterMMA, CGA; [blog] guideline 2 and Fig. 5

_LIST = (
    Rule(
        "SF001",
        1,
        "A GEMM dimension is small",
        "A projection needs N of at least 2560 and a reduction K of at least 3072 to reach 80 % of "
        "the sustained rate (both "
        "saturate near 6144). Priced against a design of equal parameters whose dimension is large "
        "enough: experts merged, or a "
        "wider and shallower model.",
        f"{BLOG}, guideline 1, Fig. 4",
    ),
    Rule(
        "SF002",
        1,
        "A weight matrix is far from square",
        "The FFN is wider, for its hidden size, than in nine of ten released models. Priced against "
        "the edge of that band with the "
        "layers that equal parameters allow.",
        f"{BLOG}, guideline 1; threshold: 90th percentile of the built-in models",
    ),
    *(
        Rule(
            f"SF00{i}",
            2,
            f"A dimension is not a multiple of {multiple}",
            f"Tiles of a GEMM are {multiple} wide ({what}); the rest of the last tile is computed for "
            "nothing. Priced against the "
            f"straight line between the two neighbouring multiples of {multiple}.",
            f"{BLOG}, guideline 2, Fig. 5",
        )
        for i, multiple, what in ((3, 128, "the floor"), (4, 256, "clusterMMA"), (5, 512, "cooperative grid array"))
    ),
    Rule(
        "SF006",
        2,
        "A per-GPU shard is not a multiple of 128",
        "Under the largest tensor parallelism considered, what one GPU holds is not whole tiles. "
        "Priced by throughput with layouts "
        "chosen anew, against the straight line between the two neighbouring widths that split evenly.",
        f"{BLOG}, guideline 2",
    ),
    Rule(
        "SF007",
        1,
        "An expert's per-GPU shard is small under tensor parallelism",
        "Under tensor parallelism an expert's reduction dimension falls below 512, where the GEMM is "
        "memory-bound at every token "
        "count: such experts want expert parallelism. Priced at the best layout that uses the tensor "
        "parallelism, against fewer, "
        "wider experts of equal parameters.",
        f"{BLOG}, guidelines 1 and 7, Table 2",
    ),
    Rule(
        "SF008",
        2,
        "The vocabulary is not a multiple of 128",
        "The LM head's output and its shards are padded to whole tiles. Priced against the straight "
        "line between the neighbouring "
        "multiples.",
        f"{BLOG}, guideline 2",
    ),
    Rule(
        "SF009",
        3,
        "Deeper than quality asks for",
        "A wider, shallower model of equal total and active parameters lies inside the shape-penalty "
        "limit and the width-to-depth "
        "band of released models. Priced against the widest such design.",
        f"{BLOG}, guideline 3; band: 90th percentile of H/L of the built-in models; penalty: Gemstones, arXiv 2502.06857",
    ),
    Rule(
        "SF010",
        0,
        "Outside the quality guard",
        "The width-to-depth penalty exceeds its limit, or a ratio lies outside the range of released "
        "models. No price in time: the "
        "guard protects quality.",
        "Gemstones, arXiv 2502.06857; ranges of the built-in models",
    ),
    Rule(
        "SF011",
        4,
        "Weights stay above FP4",
        "A class of weights is stored and multiplied in more than four bits. Priced against the same class in NVFP4.",
        f"{BLOG}, guideline 4, Fig. 6 and 7",
    ),
    Rule(
        "SF012",
        5,
        "Few tokens per expert: expert parallelism could be wider",
        "GEMM-M per expert is concurrency times top-k over experts. Priced against data-parallel "
        "attention with expert parallelism "
        "over more GPUs of the scale-up domain.",
        f"{BLOG}, guideline 5",
    ),
    Rule(
        "SF013",
        5,
        "The experts do not divide over expert parallelism",
        "The number of experts is no multiple of the largest expert parallelism considered. Priced "
        "by throughput with layouts chosen "
        "anew, between the neighbouring multiples.",
        f"{BLOG}, guideline 5",
    ),
    Rule(
        "SF014",
        5,
        "Uneven routing makes the slowest rank set the pace",
        "Step time with measured routing (power law 1.01) against balanced routing at the same "
        "layout; a load balancer's job, not the "
        "design's.",
        f"{BLOG}, guideline 5; routing as measured kernel tables carry it",
    ),
    Rule(
        "SF015",
        6,
        "The layers do not split evenly over pipeline stages",
        "The number of layers is no multiple of four: the longest of four stages sets the pace. "
        "Priced between the neighbouring "
        "multiples at the best layout, which counts only where that layout has stages.",
        f"{BLOG}, guideline 6",
    ),
    Rule(
        "SF016",
        6,
        "The layer pattern is irregular",
        "Leading dense layers, or a window pattern that does not repeat within a stage, make stages differ.",
        f"{BLOG}, guideline 6",
    ),
    Rule(
        "SF017",
        7,
        "Attention cannot be split as far as the FFN",
        "Tensor parallelism of attention beyond the KV heads (one under MLA) replicates the KV "
        "cache. Priced at the best layout "
        "against KV parallelism (Helix) on the same GPUs.",
        f"{BLOG}, guideline 7; Helix, arXiv 2507.07120",
    ),
)
RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in _LIST})
