"""Write a result, or one model, in the format that the next tool reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..costmodel import Architecture, InvalidValueError, Layout, TensorFormats, UnknownKeyError, Workload
from ..costmodel.errors import did_you_mean
from .exporters import huggingface, recipes, sglang, tables, trtllm, vllm
from .exporters.deployment import GPUS_PER_NODE, Deployment, Pool
from .files import prepare_folder, write_whole
from .result import Result

if TYPE_CHECKING:
    Files = Mapping[str, str | bytes]

TABLES: Mapping[str, Callable[[Result], Mapping[str, Any]]] = MappingProxyType(
    {"csv": tables.csv_files, "parquet": tables.parquet_files, "json": tables.json_files, "markdown": tables.markdown_files}
)
SERVERS: Mapping[str, Any] = MappingProxyType({"vllm": vllm, "sglang": sglang, "trtllm": trtllm})
TOOLS = tuple(recipes.RECIPES)
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
            found = _design_files(result, row, format, done.notes, rate=rate, family=family, replicas=replicas)
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
) -> Mapping[str, str]:
    architecture = result.architecture(row["architecture_id"])
    if format == "hf":
        return _hf_files(architecture, family)
    if format in TOOLS:
        return recipes.write_recipe(format, architecture, design_formats(result, row), name=architecture.name)
    deployment = deployment_of(result, row, rate=rate, replicas=replicas)
    try:
        files: Mapping[str, str] = SERVERS[format].launch_files(deployment)
    except InvalidValueError as error:
        other = _runnable(result, row, format, deployment, rate)
        if other is None:
            raise
        notes.append(f"{deployment.name}: {error}; written for {other.pools[0].layout}, {other.note}")
        files = SERVERS[format].launch_files(other)
    return files


def _hf_files(architecture: Architecture, family: str | None) -> dict[str, str]:
    return {"config.json": json.dumps(huggingface.export_config(architecture, family), indent=2) + "\n"}


def design_formats(result: Result, row: Mapping[str, Any]) -> TensorFormats:
    """Number formats of one design: the study's, changed by its family where the study has families."""
    formats = dict(result.data.get("settings", {}).get("formats", {}))
    for family in result.data.get("spec", {}).get("families", []):
        if family.get("name") == row.get("family"):
            formats |= {key: value for key, value in (family.get("formats") or {}).items() if value is not None}
    return TensorFormats(**formats)


def deployment_of(result: Result, row: Mapping[str, Any], *, rate: float | None = None, replicas: int = 1) -> Deployment:
    """The operating point of one design at a user rate, as pools to start.

    Args:
        result: what a study found.
        row: one of its architectures (or the reference).
        rate: tokens/s/user each user must get; the study's first rate if None.
        replicas: (decode) replicas.

    Raises:
        InvalidValueError: the design has no operating point at this rate.
    """
    wanted = float(result.data["rates"][0]) if rate is None else rate
    point = operating_point(row, wanted)
    settings, spec = result.data.get("settings", {}), result.data.get("spec", {})
    workload = {
        key: spec.get("workload", {})[key] for key in ("input_tokens", "output_tokens") if key in spec.get("workload", {})
    }
    figures = (
        f"estimate of the cost model: {point['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU at "
        f"{point['tokens_per_second_per_user']:,.0f} tokens/s/user (profile {settings.get('profile', '?')}"
        f"{'' if point.get('prefill_layout') else '; decode steps, prefill is not in it'})"
    )
    return Deployment(
        architecture=result.architecture(row["architecture_id"]),
        pools=_pools(point, replicas),
        formats=design_formats(result, row),
        workload=Workload(**workload),
        name=f"{result.data['study']} {row['architecture_id']}",
        gpus_per_node=GPUS_PER_NODE.get(str(settings.get("hardware")), 8),
        note=figures,
    )


def operating_point(row: Mapping[str, Any], rate: float) -> Mapping[str, Any]:
    """The point with the highest throughput at which every user gets ``rate``.

    Raises:
        InvalidValueError: no layout reaches it; the message names the highest rate that one does.
    """
    exact = [point for point in row["at_rates"] if point["rate"] == rate and point["gpus"]]
    reached = [point for point in row["frontier"] if point["tokens_per_second_per_user"] >= rate]
    if exact and not any(point.get("prefill_layout") for point in reached):
        chosen: Mapping[str, Any] = exact[0]  # concurrency between the grid points of the frontier
        return chosen
    if not reached:
        best = max((point["tokens_per_second_per_user"] for point in row["frontier"]), default=0.0)
        raise InvalidValueError(
            f"no operating point of {row['architecture_id']} gives every user {rate:g} tokens/s; the highest is {best:.4g}"
        )
    found: Mapping[str, Any] = max(reached, key=lambda point: float(point["tokens_per_second_per_gpu"]))
    return found


def _runnable(result: Result, row: Mapping[str, Any], server: str, refused: Deployment, rate: float | None) -> Deployment | None:
    """The best operating point among the layouts this server can run; None where there is none (or two pools)."""
    if refused.disaggregated:
        return None
    import numpy as np

    from ..costmodel import ArchitectureBatch
    from ..costmodel.serving import throughput_at_rates
    from .study import Study

    problem = Study.from_dict(result.spec).problem()
    setup = problem.setup.with_(formats=refused.formats)
    batch = ArchitectureBatch.from_architectures([refused.architecture])
    can_run = [
        not SERVERS[server].refusals(refused.architecture, Pool(layout=layout, concurrency=1.0)) for layout in setup.layouts
    ]
    allowed = problem.rules.layouts_allowed(batch, setup.layouts) & np.array(can_run)
    wanted = float(result.data["rates"][0]) if rate is None else rate
    table = throughput_at_rates(batch, setup, [wanted], allowed=allowed)
    throughput, index = float(table.tokens_per_second_per_gpu[0, 0]), int(table.layout_index[0, 0])
    if index < 0:
        return None
    pool = Pool(
        layout=setup.layouts.layout(index), concurrency=float(table.concurrency[0, 0]), replicas=refused.pools[0].replicas
    )
    best = operating_point(row, wanted)["tokens_per_second_per_gpu"]
    note = (
        f"estimate of the cost model: {throughput:,.0f} tokens/s/GPU, {throughput / best - 1:+.1%} against the best layout "
        f"({refused.pools[0].layout}), which this server cannot run"
    )
    return replace(refused, pools=(pool,), note=note)


def _pools(point: Mapping[str, Any], replicas: int) -> tuple[Pool, ...]:
    layout = _layout(point)
    prefill = point.get("prefill_layout")
    if not prefill:
        return (Pool(layout=layout, concurrency=point["concurrency"], replicas=replicas),)
    decode = Pool(layout=layout, concurrency=point["concurrency"], replicas=replicas, role="decode")
    share = point["prefill_workers"] / point["decode_workers"] * replicas
    place = _layout(prefill)
    # a prefill replica takes one chunk at a time: one prompt per attention rank
    return (Pool(layout=place, concurrency=float(place.dpa), replicas=max(1, round(share)), role="prefill"), decode)


def _layout(point: Mapping[str, Any]) -> Layout:
    return Layout(**{name: int(point[name]) for name in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")})


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
