"""``shapefront export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...costmodel import InvalidValueError, Layout, TensorFormats, Workload
from ..export import FORMATS, TABLES, Exported, export_design, export_result
from ..output import print_json
from ..result import Result


def export(
    result: Annotated[str, typer.Argument(help="Folder written by 'shapefront run'; or a config.json or built-in model's name.")],
    format: Annotated[str, typer.Option("--format", "-f", help=", ".join(FORMATS) + ".")],
    out: Annotated[Path | None, typer.Option(help="Folder to write into; RESULT/export/FORMAT if left out.")] = None,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Design to export (repeat for several); all ranked ones if left out.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="tokens/s/user the launch files are written for.")] = None,
    family: Annotated[str | None, typer.Option(help="Hugging Face model_type; chosen if left out.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of the (decode) pool.")] = 1,
    disaggregated: Annotated[bool, typer.Option("--disaggregated", help="Launch files for a prefill and a decode pool.")] = False,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of both pools together; 0 = no budget.")] = 0,
    layout: Annotated[str | None, typer.Option(help="For one model: like tpa=1,dpa=8,ep=8.")] = None,
    concurrency: Annotated[float | None, typer.Option(help="For one model: sequences in flight of one replica.")] = None,
    linear: Annotated[str, typer.Option(help="For one model: number format of the linear layers and experts.")] = "nvfp4",
    kv_format: Annotated[str, typer.Option(help="For one model: number format of the KV cache.")] = "fp8",
    kv: Annotated[str | None, typer.Option("--kv", hidden=True)] = None,  # former name of --kv-format
    input: Annotated[int, typer.Option(help="For one model: prompt tokens.")] = 8192,
    output: Annotated[int, typer.Option(help="For one model: answer tokens.")] = 1024,
    gpus_per_node: Annotated[int, typer.Option(help="For one model: GPUs that share one operating system.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print the files as JSON.")] = False,
) -> None:
    """Write a result for the next tool: tables, Hugging Face configs, launch files, quantisation recipes."""
    source = Path(result)
    if source.is_dir() or source.name == "result.json":
        folder = out or (source if source.is_dir() else source.parent) / "export" / format
        done = export_result(
            Result.load(source), format, folder, ids=id or (), rate=rate, family=family, replicas=replicas,
            disaggregated=disaggregated, gpu_budget=gpus,
        )  # fmt: skip
    else:
        stored = kv or kv_format
        done = _one_model(
            result, format, out, family, layout, concurrency, linear, stored, input, output, gpus_per_node, replicas
        )
    if json:
        print_json({"format": format, "files": done.files, "notes": done.notes})
        return
    for file in done.files:
        typer.echo(str(file))
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)


def _one_model(
    name: str,
    format: str,
    out: Path | None,
    family: str | None,
    layout: str | None,
    concurrency: float | None,
    linear: str,
    kv: str,
    input_tokens: int,
    output_tokens: int,
    gpus_per_node: int,
    replicas: int,
) -> Exported:
    from ..hf_config import read_config

    if format in TABLES:
        raise InvalidValueError(
            f"{format} is a table of a whole result: give a folder written by 'shapefront run', got '{name[:80]}'"
        )
    architecture = read_config(name)
    return export_design(
        architecture,
        format,
        out or Path("shapefront-export") / format,
        family=family,
        layout=Layout.parse(layout) if layout else None,
        concurrency=concurrency,
        formats=TensorFormats.uniform(linear, kv=kv),
        workload=Workload(input_tokens=input_tokens, output_tokens=output_tokens),
        gpus_per_node=gpus_per_node,
        replicas=replicas,
    )
