"""Public serving figures (blogs, release notes, benchmark sites) against the model, each in the quantity it states.

Kinds: ``tpot`` (layout and concurrency given), ``offline`` (layout and procedure known: a job of N requests,
:mod:`..offline`), ``saturated`` (layout given, an endless queue: as many sequences as the KV cache holds), ``decode`` (a
decode pool at a batch), ``prefill`` (prompt tokens/s/GPU), ``frontier`` (user rate given, layout not: our best
disaggregated layout stands in, so the figure bounds ours from below). ``basis=`` in the notes says whether tokens count
output, input, or both. Rows with speculative decoding, without a layout and rate, or without lengths are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..architecture import Architecture
from ..decode import decode
from ..errors import InvalidValueError, ShapefrontError
from ..formats import TensorFormats
from ..hardware import data_directory
from ..layout import Layout, LayoutBatch, enumerate_layouts
from ..offline import offline_throughput
from ..prefill import prefill
from ..profile import KernelProfile
from ..serving import ServingSetup
from ..serving_frontier import frontier
from ..workload import Workload
from .protocols import protocol_of
from .serving import error_figures, stack_profile
from .serving_rows import architecture_of, formats_of, read_table

_SPECULATIVE = re.compile(r"\bMTP ?[1-9]|\bMTP\b|EAGLE|spec(ulative)? dec|simMTP|simulated MTP|acceptance", re.IGNORECASE)
_NO_SPECULATION = re.compile(r"no MTP|MTP0|non-MTP|no spec", re.IGNORECASE)
_STACKS = {"po-": "trtllm", "trt-": "trtllm", "vllm-": "vllm", "lmsys-": "sglang", "ds-": "sglang", "ix870-": "sglang"}
_MODELS = {
    "DeepSeek-V3/R1": "DeepSeek-V3", "DeepSeek-R1/V3.1": "DeepSeek-V3", "Kimi-K2 (1T, 384 exp)": "Kimi-K2",
    "Kimi-K2.5 (1T/32B)": "Kimi-K2",
    "MiniMax-M3 (428B)": "MiniMax-M3", "DeepSeek-R1-0528": "DeepSeek-R1", "Llama-3.3-70B": "Llama-3.1-70B",
}  # fmt: skip
_REQUIRED = ("id", "hardware", "model", "precision", "layout", "phase", "isl", "osl", "notes", "source_url")


@dataclass(frozen=True, slots=True)
class Figure:
    """One public figure and what the model says.

    Attributes:
        id: its name.
        kind: what is compared (module docstring).
        system: hardware of ours.
        stack: serving stack whose kernels were used.
        model: model as given.
        format: precision as given.
        published: the figure, tokens/s/GPU or seconds.
        predicted: ours in the same quantity.
        source: where it was published.
    """

    id: str
    kind: str
    system: str
    stack: str
    model: str
    format: str
    published: float
    predicted: float
    source: str


def bundled_figures() -> Path:
    """The figures that come with the package."""
    return data_directory("serving") / "figures.csv"


def _formats(design: Architecture, precision: str) -> TensorFormats:
    name = re.split(r"[ ,(]", precision.strip())[0]
    found = formats_of(design, {"MXFP4": "mxfp4", "NVFP4": "fp4"}.get(name, name))
    if re.search(r"\(bf16 (attn|mla)\)", precision):  # the attention kernel and its cache, not the projections
        return replace(found, attention="bf16", kv="bf16")
    if "BF16 attn" in precision:
        found = replace(found, qkv="bf16", attention_output="bf16")
    return replace(found, kv="bf16") if "FP16 KV" in precision else found


def parse_layout(text: str, moe: bool) -> Layout | None:
    """``TP8``, ``TP8 EP1``, ``DEP4``, ``EP72 DP72``, ``EP2 (DP2)`` → a layout; ``None`` where the text names none."""
    numbers = {kind: int(n) for kind, n in re.findall(r"\b(DEP|EP|TP|DP)(\d+)", text)}
    if not moe:
        return Layout(tpa=numbers["TP"], tpf=numbers["TP"]) if "TP" in numbers else None
    wide = numbers.get("DEP") or (numbers.get("EP") if "DP" in numbers or "TP" not in numbers or numbers["TP"] == 1 else None)
    if wide:
        return Layout(dpa=wide, ep=wide)
    if "TP" not in numbers:
        return None
    tp, ep = numbers["TP"], numbers.get("EP", 1)
    return Layout(tpa=tp, tpf=tp // ep, ep=ep) if tp % ep == 0 else None


def _float(cells: Mapping[str, str], name: str) -> float:
    try:
        return float(cells.get(name, ""))
    except ValueError:
        return math.nan


def price_figure(cells: Mapping[str, str]) -> Figure:
    """One row of the table priced in its own quantity.

    Raises:
        InvalidValueError: the row cannot be compared, with the reason.
    """
    notes, text = cells["notes"], cells["layout"]
    if _SPECULATIVE.search(text + " " + notes) and not _NO_SPECULATION.search(text + " " + notes):
        raise InvalidValueError("speculative decoding: tokens a step are not stated by the shape")
    design = architecture_of(_MODELS.get(cells["model"], cells["model"]))
    formats = _formats(design, cells["precision"])
    system = cells["hardware"].lower().replace(" nvl72", "").split(" ")[0]
    stack = next((s for prefix, s in _STACKS.items() if cells["id"].startswith(prefix)), "vllm" if "vLLM" in notes else "trtllm")
    profile = stack_profile(system, stack)
    isl, osl = _float(cells, "isl"), _float(cells, "osl")
    if math.isnan(isl):
        raise InvalidValueError("no prompt length stated")
    layout = parse_layout(text, design.num_experts > 0)
    basis = re.search(r"basis=([a-z]*)", notes)
    count = basis.group(1) if basis else "output"
    published, kind, predicted = _compare(cells, design, layout, formats, profile, isl, 1.0 if math.isnan(osl) else osl, count)
    return Figure(cells["id"], kind, system, stack, cells["model"], cells["precision"], published, predicted, cells["source_url"])


def _compare(
    cells: Mapping[str, str], design: Architecture, layout: Layout | None, formats: TensorFormats, profile: KernelProfile,
    isl: float, osl: float, basis: str,
) -> tuple[float, str, float]:  # fmt: skip
    phase, rate, tpot = cells["phase"], _float(cells, "tokens_s_gpu"), _float(cells, "tpot_ms") / 1e3
    load = _float(cells, "concurrency")
    if phase == "prefill":
        if layout is None:
            raise InvalidValueError("no layout stated")
        return (
            rate,
            "prefill",
            float(prefill(design, layout, input_tokens=isl, formats=formats, profile=profile).tokens_per_second_per_gpu[0, 0]),
        )
    scale = 1.0 + isl / osl if basis.startswith("total") else 1.0
    work = Workload(input_tokens=int(isl), output_tokens=max(int(osl), 1))
    if layout is None:
        user = _float(cells, "tokens_s_user")
        if math.isnan(user):
            raise InvalidValueError("neither a layout nor a user rate is stated")
        layouts = enumerate_layouts((4, 8, 16, 32), moe=design.num_experts > 0)
        setup = ServingSetup(workload=work, layouts=layouts, formats=formats, profile=profile, mode="disaggregated")
        return rate, "frontier", frontier(design, setup).at_rate(user) * scale
    if phase == "decode":
        batch = _float(cells, "batch_per_gpu")
        if math.isnan(batch):
            raise InvalidValueError("no batch stated")
        total = max(batch * layout.gpus, 1.0)
        seconds = float(decode(design, layout, total, context=isl + osl / 2, formats=formats, profile=profile).seconds[0, 0, 0])
        return (tpot, "tpot", seconds) if not math.isnan(tpot) else (rate, "decode", total / seconds / layout.gpus)
    how = protocol_of(cells["id"])
    requests = how.requests.get((work.input_tokens, work.output_tokens)) if how else None
    if how and requests:
        job = offline_throughput(
            design, layout, requests=requests, workload=work, max_tokens=how.max_tokens, formats=formats, profile=profile,
            moe_kernel=how.expert_kernel, wide_moe_kernel=how.expert_kernel,
        )  # fmt: skip
        return rate, "offline", job.tokens_per_second_per_gpu * scale
    grid = (load,) if not math.isnan(load) else tuple(2.0 ** (i / 2) for i in range(31))
    setup = ServingSetup(
        workload=work, layouts=LayoutBatch.from_layouts([layout]), formats=formats, profile=profile, mode="aggregated",
        concurrency=grid, usable_fraction=1.0 if not math.isnan(load) else 0.9,
    )  # fmt: skip
    points = frontier(design, setup).points
    if not math.isnan(tpot) and not math.isnan(load):
        return tpot, "tpot", float(points.itl_seconds[-1])
    return rate, "saturated", float(points.tokens_per_second_per_gpu.max()) * scale


def validate_figures(path: str | Path | None = None) -> tuple[list[Figure], dict[str, str]]:
    """Price every public figure.

    Returns:
        the figures, and id → reason for each that cannot be compared.

    Raises:
        InvalidValueError: the file cannot be read or lacks a column.
    """
    source = Path(path) if path is not None else bundled_figures()
    figures, refused = [], {}
    for cells in read_table(source, _REQUIRED, "public figures"):
        try:
            figures.append(price_figure(cells))
        except (ShapefrontError, KeyError, ValueError) as error:
            refused[cells.get("id", "?")] = str(error)
    return figures, refused


def figure_table(figures: list[Figure]) -> list[dict[str, Any]]:
    """Errors per system x stack x model x format x kind."""
    import numpy as np

    def key(f: Figure) -> tuple[str, ...]:
        return (f.system, f.stack, f.model, f.format, f.kind)

    rows = []
    for group in sorted({key(f) for f in figures}):
        part = [f for f in figures if key(f) == group]
        errors = error_figures(np.array([f.predicted for f in part]), np.array([f.published for f in part]))
        rows.append(dict(zip(("system", "stack", "model", "format", "kind"), group, strict=True)) | {"n": len(part)} | errors)
    return rows
