"""Measured serving rows: one running batch on one layout of one system, and how they are read.

Two sources, one meaning: ``data/serving/measured.csv`` (rows of ``systems/silicon_sample.csv`` of aiconfigurator-core
0.12, Apache-2.0, cleaned: steady state, consistent layout, no sign of speculative decoding), any CSV with its columns,
or the sample itself from an installed aiconfigurator-core. ``batch`` is per attention-DP rank and worker; it is a cap:
the running batch is batch · osl·TPOT / (TTFT + osl·TPOT).
"""

from __future__ import annotations

import csv
import importlib.util
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..architecture import Architecture
from ..errors import InvalidValueError, ShapefrontError, UnknownKeyError
from ..formats import TensorFormats
from ..hardware import data_directory
from ..layout import Layout
from ..models import load_model

_REQUIRED = ("system", "backend", "model_path", "precision", "mode", "isl", "osl")
_MAX_BYTES = 50_000_000
_SYSTEMS = {"h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300", "h100_sxm": "h100"}
_MODELS = {
    "deepseek-ai/deepseek-v3": "DeepSeek-V3",
    "moonshotai/kimi-k2.5": "Kimi-K2",  # the text model has the shape of Kimi-K2
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
}
_SUFFIXES = re.compile(r"-(instruct|chat|it|fp8|nvfp4|fp4|bf16|thinking|base|\d{4})$", re.IGNORECASE)
_LINEAR = {"fp4": "nvfp4", "nvfp4": "nvfp4", "bf16": "bf16", "bfloat16": "bf16", "int4": "int4_g128", "mxfp4": "mxfp4"}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One measured point.

    Attributes:
        id: name of the row.
        system: hardware name of ours.
        stack: ``trtllm``, ``sglang``, ``vllm``.
        model: name of the model as given.
        precision: ``fp4``, ``fp8``, … as given.
        mode: ``disagg`` (decode pool alone) or ``agg``.
        input_tokens: prompt tokens.
        output_tokens: answer tokens.
        architecture: the model's shape.
        formats: number formats.
        layout: layout of one decode worker.
        batch: sequences that run on one attention-DP rank.
        nominal_batch: the cap on them.
        tpot_seconds: measured time per output token, s.
        ttft_seconds: measured time to first token, queueing included, s; NaN where absent.
        aiconfigurator_seconds: that tool's TPOT for the row, s; NaN where it gives none.
        note: remark of the source.
    """

    id: str
    system: str
    stack: str
    model: str
    precision: str
    mode: str
    input_tokens: int
    output_tokens: int
    architecture: Architecture
    formats: TensorFormats
    layout: Layout
    batch: float
    nominal_batch: float
    tpot_seconds: float
    ttft_seconds: float = math.nan
    aiconfigurator_seconds: float = math.nan
    note: str = ""

    @property
    def concurrency(self) -> float:
        """Sequences that run on one worker."""
        return self.batch * self.layout.dpa

    @property
    def configuration(self) -> tuple[str, ...]:
        """What a held-out group shares: everything but the batch."""
        work = f"{self.input_tokens}x{self.output_tokens}"
        return (self.system, self.stack, self.model, self.precision, self.mode, str(self.layout), work)

    @property
    def expert_parallel(self) -> bool:
        """Attention DP with experts spread (DEP)."""
        return self.layout.dpa > 1 and self.layout.ep > 1


def architecture_of(model_path: str) -> Architecture:
    """Shape of a model named by its Hugging Face path.

    Raises:
        UnknownKeyError: no such built-in model.
    """
    known = _MODELS.get(model_path.lower())
    name = known or model_path
    for _ in range(4):
        try:
            return load_model(name)
        except UnknownKeyError:
            shorter = _SUFFIXES.sub("", name)
            if shorter == name:
                raise
            name = shorter
    return load_model(name)


def formats_of(architecture: Architecture, precision: str) -> TensorFormats:
    """Number formats of a checkpoint called ``precision``: FP8 KV cache, BF16 head and router.

    FP8 means block scales where the model was trained with them (DeepSeek, Kimi), one scale a tensor elsewhere. gpt-oss
    was released with MXFP4 experts and BF16 attention projections only: tables that call it FP8 mean the activations.

    Raises:
        InvalidValueError: the precision is not known.
    """
    name = precision.strip().lower()
    if architecture.attention_sinks and name in ("fp4", "mxfp4", "nvfp4", "fp8"):
        return TensorFormats(qkv="bf16", attention_output="bf16", ffn="bf16", experts="mxfp4")
    if name in ("fp8", "fp8_block"):
        return TensorFormats.uniform("fp8_block" if architecture.attention == "mla" or name == "fp8_block" else "fp8")
    if name not in _LINEAR:
        raise InvalidValueError(f"unknown precision {precision!r:.40}: one of fp4, fp8, bf16, int4, mxfp4")
    return TensorFormats.uniform(_LINEAR[name])


def bundled_rows() -> Path:
    """The rows that come with the package."""
    return data_directory("serving") / "measured.csv"


def aiconfigurator_sample() -> Path:
    """``silicon_sample.csv`` of an installed aiconfigurator-core.

    Raises:
        InvalidValueError: it is not installed.
    """
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise InvalidValueError("aiconfigurator-core is not installed; install the extra 'silicon', or name a CSV of rows")
    return Path(next(iter(found.submodule_search_locations))) / "systems" / "silicon_sample.csv"


def read_rows(path: str | Path | None = None, *, only: Iterable[str] | None = None) -> tuple[list[ServingRow], dict[str, str]]:
    """Read measured rows.

    Args:
        path: a CSV with the columns of ``data/serving/measured.csv`` or of aiconfigurator's sample; ``None`` = bundled.
        only: ids to keep; ``None`` = all.

    Returns:
        the rows, and id → reason for each row that cannot be used.

    Raises:
        InvalidValueError: the file cannot be read or lacks a column.
    """
    source = Path(path) if path is not None else bundled_rows()
    wanted = None if only is None else set(only)
    rows: list[ServingRow] = []
    refused: dict[str, str] = {}
    for number, cells in enumerate(read_table(source, _REQUIRED, "serving rows"), start=2):
        name = cells.get("id") or f"line {number}"
        if wanted is not None and name not in wanted:
            continue
        try:
            rows.append(parse_row(name, cells))
        except (ShapefrontError, ValueError) as error:
            refused[name] = str(error)
    return rows, refused


def read_table(source: Path, required: Sequence[str], what: str) -> list[dict[str, str]]:
    """Rows of a CSV of bounded size, cells stripped.

    Args:
        source: the file.
        required: columns it must have.
        what: the rows in words, for messages.

    Raises:
        InvalidValueError: the file cannot be read or lacks a column.
    """
    try:
        if source.exists() and not source.is_file():
            raise InvalidValueError(f"{source}: is not a plain file; give a CSV of {what}")
        if source.stat().st_size > _MAX_BYTES:
            raise InvalidValueError(f"{source}: more than {_MAX_BYTES} bytes; give a table of {what}")
        with source.open(newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle)
            missing = [name for name in required if name not in (reader.fieldnames or [])]
            if missing:
                raise InvalidValueError(
                    f"{source}: column '{missing[0]}' is missing; a table of {what} needs {', '.join(required)}"
                )
            return [{k: (v or "").strip() for k, v in line.items() if isinstance(k, str)} for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidValueError(f"{source}: cannot be read as a CSV of {what} ({error})") from None


def _number(cells: Mapping[str, str], *names: str) -> float:
    for name in names:
        text = cells.get(name, "")
        if text:
            return float(text)
    return math.nan


def _count(cells: Mapping[str, str], name: str) -> int:
    value = _number(cells, name)
    return 1 if math.isnan(value) else int(value)


def parse_row(name: str, cells: Mapping[str, str]) -> ServingRow:
    """One row from its cells.

    Raises:
        InvalidValueError: a number is missing, or the layout is not consistent.
    """
    mode = cells["mode"]
    if mode not in ("agg", "disagg"):
        raise InvalidValueError(f"mode must be agg or disagg, got {mode!r:.40}")
    side = "decode_" if mode == "disagg" else ""
    batch = _number(cells, f"{side}batch_size")
    tpot, ttft = _number(cells, "tpot_ms", "silicon_tpot_ms"), _number(cells, "ttft_ms", "silicon_ttft_ms")
    if not batch > 0 or not tpot > 0:
        raise InvalidValueError(f"batch and TPOT must be positive, got batch {batch}, TPOT {tpot} ms")
    architecture = architecture_of(cells["model_path"])
    layout = _layout(architecture, *(_count(cells, side + part) for part in (
        "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")))  # fmt: skip
    output = int(_number(cells, "osl"))
    running = _number(cells, "running_batch")
    if math.isnan(running) and mode == "disagg" and not math.isnan(ttft):
        running = max(1.0, batch * output * tpot / (ttft + output * tpot))
    return ServingRow(
        id=name,
        system=_SYSTEMS.get(cells["system"], cells["system"]),
        stack=cells["backend"],
        model=cells["model_path"],
        precision=cells["precision"],
        mode=mode,
        input_tokens=int(_number(cells, "isl")),
        output_tokens=output,
        architecture=architecture,
        formats=formats_of(architecture, cells["precision"]),
        layout=layout,
        batch=batch if math.isnan(running) else running,
        nominal_batch=batch,
        tpot_seconds=tpot / 1e3,
        ttft_seconds=ttft / 1e3,
        aiconfigurator_seconds=_number(cells, "aiconfigurator_tpot_ms") / 1e3,
        note=cells.get("note", ""),
    )


def _layout(architecture: Architecture, tp: int, pp: int, dp: int, moe_tp: int, moe_ep: int) -> Layout:
    if not architecture.num_experts:
        # Attention DP of a dense model is replicas of the whole model: one of them is priced.
        return Layout(tpa=tp, tpf=tp, pp=pp)
    if tp * dp != moe_tp * moe_ep:
        raise InvalidValueError(
            f"inconsistent layout: attention tp {tp} x dp {dp} = {tp * dp} GPUs, experts tp {moe_tp} x ep {moe_ep} = "
            f"{moe_tp * moe_ep}"
        )
    return Layout(tpa=tp, dpa=dp, tpf=moe_tp, ep=moe_ep, pp=pp)
