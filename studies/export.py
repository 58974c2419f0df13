"""Write a result, or one model, in the format that the next tool reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..costmodel import Architecture, InvalidValueError, Layout, TensorFormats, UnknownKeyError, Workload
from ..costmodel.errors import did_you_mean
from .export_points import deployment_of, design_formats, disaggregated_deployment, operating_point, runnable_deployment
from .exporters import huggingface, recipes, sglang, tables, trtllm, vllm
from .exporters.deployment import Deployment, Pool
from .files import prepare_folder, write_whole
from .result import Result

if TYPE_CHECKING:
    Files = Mapping[str, str | bytes]

TABLES: Mapping[str, Callable[[Result], Mapping[str, Any]]] = MappingProxyType(
    {"csv": tables.csv_files, "parquet": tables.parquet_files, "json": tables.json_files, "markdown": tables.markdown_files}
)
SERVERS: Mapping[str, Any] = MappingProxyType({"vllm": vllm, "sglang": sglang, "trtllm": trtllm})
TOOLS = tuple(recipes.RECIPES)
__all__ = [
    "FORMATS",
    "Exported",
    "deployment_of",
    "design_formats",
    "disaggregated_deployment",
    "export_design",
    "export_result",
    "operating_point",
]
FORMATS = (*TABLES, "hf", *SERVERS, *TOOLS)


@dataclass
class Exported:
    """What was written.

    Attributes:
        files: in the order written.
        notes: what is not as asked, and why: designs left out, layouts replaced.
    """

    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def export_result(
    result: Result,
    format: str,
    folder: str | Path,
    *,
    ids: Sequence[str] = (),
    rate: float | None = None,
    family: str | None = None,
    replicas: int = 1,
    disaggregated: bool = False,
    gpu_budget: int = 0,
) -> Exported:
    """Write ``result`` as ``format`` into ``folder``.

    Tables are files of the whole result; ``hf``, the servers and the quantisation tools write a folder ``rank-NN`` for
    each ranked design.

    Args:
        result: what a study found.
        format: one of :data:`FORMATS`.
        folder: made when it does not exist.
        ids: designs by id; all ranked ones when empty. ``reference`` is the reference model.
        rate: tokens/s/user of the operating point that launch files are written for; the study's first rate if None.
        family: Hugging Face model_type for ``hf``; chosen when None.
        replicas: (decode) replicas to write for.
        disaggregated: launch files for a prefill and a decode pool, layouts and split chosen by the cost model.
        gpu_budget: GPUs of both pools together for a split into whole replicas; 0 = no budget, rounded.

    Raises:
        UnknownKeyError: no such format, or no such id.
        InvalidValueError: no design can be written in this format; the message says why.
    """
    if format not in FORMATS:
        raise UnknownKeyError(f"unknown export format '{format[:40]}'{did_you_mean(format, FORMATS)}")
    path = Path(folder)
    if format in TABLES:
        return _write(path, TABLES[format](result))
    rows = [result.row(name) for name in ids] if ids else result.ranked_rows
    if not rows:
        raise InvalidValueError("the result has no design to export; run the study with more trials")
    done = Exported()
    for row in rows:
        name = row["architecture_id"] if row["architecture_id"] == "reference" else f"rank-{row['rank']:02d}"
        try:
            found = _design_files(
                result, row, format, done.notes, rate=rate, family=family, replicas=replicas,
                disaggregated=disaggregated, gpu_budget=gpu_budget,
            )  # fmt: skip
        except InvalidValueError as error:
            done.notes.append(f"{name} is not written: {error}")
            continue
        part = _write(path / name, found)
        done.files += part.files
    if not done.files:
        raise InvalidValueError(f"nothing could be exported as {format}; {done.notes[0]}")
    return done


def export_design(
    architecture: Architecture,
    format: str,
    folder: str | Path,
    *,
    family: str | None = None,
    layout: Layout | None = None,
    concurrency: float | None = None,
    formats: TensorFormats | None = None,
    workload: Workload | None = None,
    gpus_per_node: int = 4,
    replicas: int = 1,
) -> Exported:
    """Write one model (no result) as ``hf``, a server's launch files or a quantisation recipe.

    Args:
        architecture: the design.
        format: one of :data:`FORMATS` that is not a table.
        folder: made when it does not exist.
        family: Hugging Face model_type for ``hf``; chosen when None.
        layout: for a server.
        concurrency: sequences in flight of one replica, for a server.
        formats: number formats; the project's defaults when None.
        workload: prompt and answer lengths.
        gpus_per_node: GPUs that share one operating system.
        replicas: replicas to write for.

    Raises:
        UnknownKeyError: no such format.
        InvalidValueError: the format needs a result, a layout or a concurrency, or cannot express the design.
    """
    if format not in FORMATS:
        raise UnknownKeyError(f"unknown export format '{format[:40]}'{did_you_mean(format, FORMATS)}")
    if format in TABLES:
        raise InvalidValueError(f"{format} is a table of a whole result: give a folder written by 'shapefront run'")
    if format == "hf":
        return _write(Path(folder), _hf_files(architecture, family))
    chosen = formats or TensorFormats()
    if format in TOOLS:
        return _write(Path(folder), recipes.write_recipe(format, architecture, chosen, name=architecture.name or "design"))
    if layout is None or concurrency is None:
        raise InvalidValueError(
            f"a launch file for {format} needs a layout and a concurrency, e.g. --layout tpa=1,dpa=8,ep=8 --concurrency 512"
        )
    deployment = Deployment(
        architecture=architecture,
        pools=(Pool(layout=layout, concurrency=concurrency, replicas=replicas),),
        formats=chosen,
        workload=workload or Workload(),
        name=architecture.name or "design",
        gpus_per_node=gpus_per_node,
    )
    return _write(Path(folder), SERVERS[format].launch_files(deployment))


def _design_files(
    result: Result,
    row: Mapping[str, Any],
    format: str,
    notes: list[str],
    *,
    rate: float | None,
    family: str | None,
    replicas: int,
    disaggregated: bool,
    gpu_budget: int,
) -> Mapping[str, str]:
    architecture = result.architecture(row["architecture_id"])
    if format == "hf":
        return _hf_files(architecture, family, result.longest_request)
    if format in TOOLS:
        return recipes.write_recipe(format, architecture, design_formats(result, row), name=architecture.name)
    server = SERVERS[format]
    if disaggregated:
        found: Mapping[str, str] = server.launch_files(
            disaggregated_deployment(result, row, server.refusals, rate=rate, replicas=replicas, gpu_budget=gpu_budget)
        )
        return found
    deployment = deployment_of(result, row, rate=rate, replicas=replicas)
    try:
        files: Mapping[str, str] = server.launch_files(deployment)
    except InvalidValueError as error:
        other = runnable_deployment(result, row, server.refusals, deployment, rate)
        if other is None:
            raise
        notes.append(f"{deployment.name}: {error}; written for {other.pools[0].layout}, {other.note}")
        files = server.launch_files(other)
    return files


def _hf_files(architecture: Architecture, family: str | None, tokens: int = 0) -> dict[str, str]:
    return {"config.json": json.dumps(huggingface.export_config(architecture, family, tokens=tokens), indent=2) + "\n"}


def _write(folder: Path, found: Mapping[str, str | bytes]) -> Exported:
    prepare_folder(folder)
    done = Exported()
    for name, content in found.items():
        target = folder / name
        write_whole(target, content)
        if name.endswith(".sh"):
            target.chmod(0o755)
        done.files.append(target)
    return done
