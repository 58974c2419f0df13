"""Pictures of a result, of one model, or of the cost model, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..costmodel import (
    Architecture,
    InvalidValueError,
    Layout,
    TensorFormats,
    UnknownKeyError,
    Workload,
    enumerate_layouts,
    load_profile,
)
from ..costmodel.errors import did_you_mean
from ..costmodel.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    import optuna

    from ..costmodel.serving import ServingSetup
    from ..costmodel.serving_frontier import Frontier
    from .plots.frontier import Curve
    from .plots.style import Plot
    from .result import Result


@dataclass(frozen=True)
class Subject:
    """What a picture is of.

    Attributes:
        architecture: the design.
        name: what to call it.
        profile: kernel profile, or its name.
        formats: number formats.
        setup: deployment.
        result: the result it is from; None for a model by itself.
        folder: the result's folder.
        models: further models to draw into the frontier, priced on the same deployment.
    """

    architecture: Architecture
    name: str
    profile: Any
    formats: TensorFormats
    setup: ServingSetup
    result: Result | None = None
    folder: Path | None = None
    models: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Line under a title."""
        return f"{self.name} · profile {load_profile(self.profile).name}"

    def need_result(self, kind: str) -> Result:
        """The result.

        Raises:
            InvalidValueError: there is none.
        """
        if self.result is None or self.folder is None:
            raise InvalidValueError(f"the picture '{kind}' is of a search: give a folder written by 'shapefront run'")
        return self.result


def _frontier(s: Subject) -> Plot:
    from .plots.frontier import Curve, draw_frontier

    if s.result is None:
        own = Curve.of(_priced(s, s.architecture), s.name)
        return draw_frontier([own, *_model_curves(s)], note=s.note)
    if not s.models:
        return s.result.plot()  # type: ignore[no-any-return]
    return s.result.plot(more=_model_curves(s))  # type: ignore[no-any-return]


def _model_curves(s: Subject) -> list[Curve]:
    from .hf_config import read_config
    from .plots.frontier import Curve

    designs = [(name, read_config(name)) for name in s.models]
    return [Curve.of(_priced(s, design), design.name or Path(name).stem, "model") for name, design in designs]


def _priced(s: Subject, design: Architecture) -> Frontier:
    from ..constraints.divisibility import layout_allowed
    from ..costmodel import ArchitectureBatch
    from ..costmodel.serving_frontier import frontier

    allowed = layout_allowed(ArchitectureBatch.from_architectures([design]), s.setup.layouts)
    return frontier(design, s.setup, allowed=allowed)


def _breakdown(s: Subject) -> Plot:
    from ..constraints.divisibility import layout_allowed
    from ..costmodel import ArchitectureBatch
    from .plots.breakdown import breakdown_rows, draw_breakdown

    allowed = layout_allowed(ArchitectureBatch.from_architectures([s.architecture]), s.setup.layouts)
    return draw_breakdown(breakdown_rows(s.architecture, s.setup, allowed=allowed), note=s.note)


def _roofline(s: Subject) -> Plot:
    from .plots.roofline import draw_roofline, roofline_rows

    rows = roofline_rows(s.architecture, profile=s.profile, formats=s.formats)
    return draw_roofline(rows, profile=s.profile, note=f"{s.note} · one GPU")


def _sweep(s: Subject) -> Plot:
    from .plots.sweep import draw_sweep, sweep_rows

    number_format = s.formats.qkv
    return draw_sweep(
        sweep_rows(profile=s.profile, format=number_format), note=f"{number_format} · profile {load_profile(s.profile).name}"
    )


def _sawtooth(s: Subject) -> Plot:
    from .plots.layers import layer_gemms
    from .plots.sawtooth import draw_sawtooth, sawtooth_rows, sweep_range

    marks = {gemm.name: gemm.n for gemm in layer_gemms(s.architecture, formats=s.formats) if gemm.name != "LM head"}
    low, high = sweep_range(marks)
    return draw_sawtooth(sawtooth_rows(profile=s.profile, low=low, high=high), marks=marks, note=f"nvfp4 · {s.note}")


def _formats(s: Subject) -> Plot:
    from .plots.formats import draw_formats, format_rows

    return draw_formats(format_rows([load_profile(s.profile).hardware.name]))


def _pipeline(s: Subject) -> Plot:
    from .plots.pipeline import draw_pipeline, pipeline_rows

    layout = replace(_stage(s), pp=min(4, s.architecture.num_hidden_layers))
    tokens = max(32768, s.setup.workload.input_tokens)
    rows = pipeline_rows(s.architecture, layout, input_tokens=tokens, profile=s.profile, formats=s.formats)
    return draw_pipeline(rows, note=f"{s.note} · {tokens:,} tokens · stages of {_gpus(layout)}")


def _ttft(s: Subject) -> Plot:
    from .plots.ttft import draw_ttft, ttft_rows

    rows = ttft_rows(s.architecture, _stage(s), profile=s.profile, formats=s.formats)
    return draw_ttft(rows, note=f"{s.note} · 262,144 tokens · stages of {_gpus(_stage(s))}")


def _gpus(layout: Layout) -> str:
    return f"{layout.stage_gpus} GPU{'s' if layout.stage_gpus != 1 else ''}"


def _stage(s: Subject) -> Layout:
    """The smallest stage (a power of two of GPUs, experts spread) whose memory holds the weights and one long prompt."""
    from ..costmodel.memory import weight_bytes_per_gpu

    usable = s.setup.usable_fraction * load_profile(s.profile).hardware.memory_bytes
    for gpus in (1, 2, 4, 8, 16):
        layout = Layout(tpa=gpus, ep=gpus) if s.architecture.num_experts else Layout(tpa=gpus, tpf=gpus)
        if float(weight_bytes_per_gpu(s.architecture, layout, s.formats)[0, 0]) < 0.9 * usable:
            break
    return layout


def _alignment(s: Subject) -> Plot:
    from .plots.alignment import alignment_rows, draw_alignment

    designs = {s.name: s.architecture}
    if s.result is not None:
        ids = [row["architecture_id"] for row in s.result.ranked_rows[:5]] + ["reference"]
        designs = {name: s.result.architecture(name) for name in ids}
    marks = [(name, a.hidden_size, a.moe_intermediate_size or a.intermediate_size) for name, a in designs.items()]
    hidden = _around([h for _, h, _ in marks])
    inner = _around([i for _, _, i in marks])
    number_format = s.formats.experts if s.architecture.num_experts else s.formats.ffn
    rows = alignment_rows(hidden, inner, profile=s.profile, format=number_format)
    return draw_alignment(rows, designs=marks, note=f"4096 tokens · {number_format} · profile {load_profile(s.profile).name}")


def _around(values: list[int]) -> list[int]:
    low, high = max(256, min(values) // 2), max(values) * 3 // 2
    step = max(64, 64 * ((high - low) // (64 * 64)))
    return list(range(low // step * step, high + step, step))


def _history(s: Subject) -> Plot:
    from .plots.history import draw_history, history_rows

    data = s.need_result("history").data
    rows = history_rows(_stored(s), data["hypervolume_reference_point"], data["hypervolume_scales"])
    return draw_history(rows, note=f"{data['study']} · seed {data['seed']} · in units of the reference model's objectives")


def _importance(s: Subject) -> Plot:
    from .plots.importance import draw_importance, importance_rows

    data = s.need_result("importance").data
    return draw_importance(
        importance_rows(_stored(s), data["objectives"]), note=f"{data['study']} · seed {data['seed']} · PED-ANOVA"
    )


def _stored(s: Subject) -> optuna.Study:
    """A copy in memory of the study recorded in the result's folder."""
    import optuna

    from .storage import open_store

    name, folder = str(s.need_result("history").data["study"]), s.folder
    if folder is None or not any((folder / file).is_file() for file in ("study.journal", "study.db")):
        raise InvalidValueError(f"{folder}: no record of the trials (study.journal or study.db); run the study with --out")
    store = open_store("journal" if (folder / "study.journal").is_file() else "sqlite", name, folder)
    try:
        source = store.study()
        copy = optuna.create_study(directions=source.directions, sampler=optuna.samplers.RandomSampler())
        copy.add_trials(source.get_trials(deepcopy=False))
    finally:
        store.close()
    return copy


KINDS: Mapping[str, tuple[Callable[[Subject], Plot], str]] = MappingProxyType(
    {
        "frontier": (_frontier, "tokens/s/GPU against tokens/s/user, with the reference model and the area"),
        "breakdown": (_breakdown, "where a decode step's time goes, four regimes"),
        "roofline": (_roofline, "the GPU's roofs with the design's layers"),
        "sweep": (_sweep, "throughput of one product against K and N"),
        "sawtooth": (_sawtooth, "tile quantisation over N, the design's widths marked"),
        "formats": (_formats, "tensor-core peak by number format"),
        "pipeline": (_pipeline, "chunked pipeline prefill, who works when"),
        "ttft": (_ttft, "first token and prefill throughput against pipeline depth"),
        "history": (_history, "hypervolume over trials"),
        "importance": (_importance, "which dimensions go along with each objective (association, not cause)"),
        "alignment": (_alignment, "FFN rate over H and H′"),
    }
)


def make_plot(subject: Subject, kind: str) -> Plot:
    """Draw one kind of :data:`KINDS`.

    Raises:
        UnknownKeyError: no such kind.
        InvalidValueError: the subject has no such picture, or matplotlib is missing.
    """
    if kind not in KINDS:
        raise UnknownKeyError(f"unknown picture '{kind[:40]}'{did_you_mean(kind, KINDS)}")
    return KINDS[kind][0](subject)


def subject_of(source: str, *, id: str | None = None, profile: str | None = None) -> Subject:
    """A result's folder, a config.json, a file of ours, or a built-in model's name.

    Args:
        source: which.
        id: design of a result; its first ranked one if None.
        profile: kernel profile of a model; a result has its own.

    Raises:
        ShapefrontError: it cannot be read.
    """
    path = Path(source)
    if path.is_dir() or path.name == "result.json":
        return _of_result(path, id, profile)
    from ..costmodel.serving import ServingSetup
    from .hf_config import read_config

    architecture = read_config(source)
    gpus = (1, 2, 4, 8) if architecture.total_params < 71e9 else (4, 8, 16, 32, 64)
    chosen = profile or DEFAULT_PROFILE
    setup = ServingSetup(workload=Workload(), layouts=enumerate_layouts(gpus, moe=architecture.num_experts > 0), profile=chosen)
    return Subject(architecture, architecture.name or path.stem, chosen, TensorFormats(), setup)


def _of_result(path: Path, id: str | None, profile: str | None) -> Subject:
    from .export import design_formats
    from .result import Result
    from .study import Study

    result = Result.load(path)
    name = id or (result.ranked_rows[0]["architecture_id"] if result.ranked_rows else "reference")
    row, architecture = result.row(name), result.architecture(name)
    problem = Study.from_dict(result.spec).problem()
    formats = design_formats(result, row)
    chosen: Any = profile or problem.setup.profile
    setup = problem.setup.with_(formats=formats, profile=chosen)
    title = f"{result.data['study']} {row.get('name') or name}"
    return Subject(architecture, title, chosen, formats, setup, result, path if path.is_dir() else path.parent)
