"""From a study spec to the search problem it describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..constraints.bands import load_bands
from ..constraints.budget import Budget
from ..constraints.laws import load_law, named_law
from ..constraints.quality import Law
from ..constraints.rules import LossGuard, Rules
from ..constraints.space import DesignSpace
from ..costmodel import (
    Architecture,
    ArchitectureKind,
    InvalidValueError,
    KernelProfile,
    LayoutBatch,
    TensorFormats,
    Workload,
    enumerate_layouts,
    load_profile,
)
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.models import load_model
from ..costmodel.serving import ServingSetup
from ..costmodel.serving_frontier import AREA
from ..search.objectives import FrontierArea, Objective, PointInteractivity, PointThroughput, QualityGain, ThroughputAt
from ..search.problem import SearchProblem
from .spec import OBJECTIVE, FamilySpec, SpecError, StudySpec
from .user_objective import ExternalObjective

_GQA_ONLY = ("num_key_value_heads", "head_dim")
_MLA_ONLY = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_WINDOW = ("sliding_window", "sliding_window_period")
MAX_LAYOUT_ROWS = 200_000  # bound of the enumeration of layouts
AREA_STEPS = AREA[2]  # rates of the frontier area, geometric or even between its bounds


def load_reference(spec: StudySpec, folder: Path | None = None) -> Architecture:
    """The reference model: a built-in name, or a config.json relative to the study file.

    Args:
        spec: the study.
        folder: folder of the study file; paths are resolved against the working folder when None.

    Raises:
        ShapefrontError: no such model, or a config that cannot be read.
    """
    name = spec.reference
    if not name.endswith(".json"):
        return load_model(name)
    from .hf_config import read_config

    path = Path(name)
    return read_config(path if folder is None or path.is_absolute() else folder / path)


def area_rates(spec: StudySpec) -> tuple[float, ...]:
    """User rates of the frontier area, tokens/s/user, ascending."""
    low, high = spec.area.low, spec.area.high
    steps = [i / (AREA_STEPS - 1) for i in range(AREA_STEPS)]
    if spec.area.axis == "linear":
        return tuple(low + (high - low) * t for t in steps)
    return tuple(low * (high / low) ** t for t in steps)


def build_problem(spec: StudySpec, *, folder: Path | None = None, reference: Architecture | None = None) -> SearchProblem:
    """Everything the search needs, from a validated spec.

    Args:
        spec: the study.
        folder: folder of the study file, for relative paths.
        reference: the reference model, where it is known already (workers that lack the file).

    Raises:
        ShapefrontError: the spec's parts contradict each other or the reference model.
    """
    reference = reference or load_reference(spec, folder)
    law = _law(spec, folder)
    profile = study_profile(spec, folder)
    spaces = tuple(_space(spec, family, reference) for family in spec.families or (None,))
    setup = ServingSetup(
        workload=_workload(spec),
        formats=TensorFormats(**spec.formats.model_dump()),
        profile=profile,
        layouts=_layouts(spec, moe=any(space.kind.moe for space in spaces), profile=profile),
        concurrency=_concurrency(spec),
        **spec.serving.model_dump(),
    )
    return SearchProblem(
        spaces=spaces,
        budget=_budget(spec, reference),
        rules=_rules(spec, reference, law, moe=any(space.kind.moe for space in spaces)),
        setup=setup,
        reference=reference,
        objectives=_objectives(spec, law),
        layout_mode=spec.layouts.mode,
        train_tokens=spec.train_tokens,
    )


def study_profile(spec: StudySpec, folder: Path | None = None) -> KernelProfile:
    """The study's kernel profile, on another GPU's datasheet where the spec names one."""
    return load_profile(_beside(spec.profile, folder), hardware=_beside(spec.hardware, folder) if spec.hardware else None)


def _beside(name: str, folder: Path | None) -> str:
    return str(folder / name) if folder is not None and name.endswith(".toml") and not Path(name).is_absolute() else name


def _workload(spec: StudySpec) -> Workload:
    values: dict[str, Any] = {key: value for key, value in spec.workload.model_dump().items() if value is not None}
    return Workload(**values)


def _layouts(spec: StudySpec, *, moe: bool, profile: KernelProfile) -> LayoutBatch:
    layouts = spec.layouts
    gpus = tuple(sorted(set(layouts.gpus)))
    if gpus[-1] > profile.hardware.scale_up_gpus and layouts.max_pp == 1:
        raise SpecError(
            f"layouts.gpus goes to {gpus[-1]}, but the scale-up domain of {profile.hardware.name} has "
            f"{profile.hardware.scale_up_gpus} GPUs; "
            "lower it, or allow pipeline stages with layouts.max_pp"
        )
    bound = sum(
        len(_divisors(g)) ** 2 * (len(_divisors(g)) if moe else 1) * (len(_divisors(g)) if layouts.max_pp > 1 else 1)
        for g in gpus
    )
    if bound > MAX_LAYOUT_ROWS:
        raise SpecError(
            f"layouts.gpus {list(gpus)[:8]} may make {bound:,} layouts, more than {MAX_LAYOUT_ROWS:,}; name fewer GPU "
            "counts or lower max_pp"
        )
    found = enumerate_layouts(
        gpus, moe=moe, max_tpa=layouts.max_tpa, max_kvp=layouts.max_kvp, max_pp=layouts.max_pp, max_ep=layouts.max_ep
    )
    return found.take(found.stage_gpus <= profile.hardware.scale_up_gpus)


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _concurrency(spec: StudySpec) -> tuple[float, ...]:
    low, high, step = spec.concurrency.low, spec.concurrency.high, 1 / spec.concurrency.per_octave
    count = math.floor(math.log2(high / low) / step + 1e-9) + 1
    return tuple(low * 2 ** (i * step) for i in range(count))


def _budget(spec: StudySpec, reference: Architecture) -> Budget:
    total = spec.budget.total_params or float(reference.total_params)
    active = float(reference.active_params) if spec.budget.active_params == "reference" else spec.budget.active_params
    return Budget(total, active if active is None else float(active), spec.budget.tolerance)


def _law(spec: StudySpec, folder: Path | None) -> Law:
    """The study's size law: published by name, or a file of a user's own coefficients."""
    name = spec.quality_law
    if name.endswith(".toml"):
        return load_law(_beside(name, folder))
    return name if name == "default" else named_law(name)


def _rules(spec: StudySpec, reference: Architecture, law: Law, *, moe: bool) -> Rules:
    rules = spec.rules
    limits: Mapping[str, tuple[float, float]] = {}
    if rules.bands != "off":
        limits = load_bands(moe, mode=rules.bands, include=reference, both_budgets=spec.budget.active_params is not None).limits
        free = set(rules.free_bands)
        unknown = free - set(limits)
        if unknown:
            raise SpecError(
                f"rules.free_bands names '{sorted(unknown)[0]}', which is no band; bands: {', '.join(sorted(limits))}"
            )
        limits = {name: band for name, band in limits.items() if name not in free}
    cap = math.inf if rules.max_delta_loss_shape == "off" else float(rules.max_delta_loss_shape)
    guard = None
    if rules.max_loss_above_reference is not None:
        guard = LossGuard(reference, rules.max_loss_above_reference, spec.train_tokens, law)
    return Rules(rules.alignment, rules.min_shard, cap, limits, rules.balanced_pipeline, guard)


def _objectives(spec: StudySpec, law: Law) -> tuple[Objective, ...]:
    found: list[Objective] = []
    if spec.layouts.mode == "suggest":
        found += [PointThroughput(), PointInteractivity()]
    else:
        for text in spec.objectives:
            match = OBJECTIVE.match(text)
            if match and match["rate"] is not None:
                found.append(ThroughputAt(rate=float(match["rate"])))
            elif text == "frontier_area":
                found.append(FrontierArea(area_rates=area_rates(spec), axis=spec.area.axis))
            else:
                found.append(QualityGain(law=law))
    found += [ExternalObjective(name=user.name, at=spec.rates) for user in spec.user if user.role == "objective"]
    return tuple(found)


def _space(spec: StudySpec, family: FamilySpec | None, reference: Architecture) -> DesignSpace:
    attention = (family.attention if family else None) or reference.attention
    searched: dict[str, tuple[int, ...]] = {**spec.dimensions, **(family.dimensions if family else {})}
    other = _MLA_ONLY if attention == "gqa" else _GQA_ONLY
    for name in other:
        if family and name in family.dimensions:
            raise SpecError(f"family '{family.name}': {name} is not a dimension of {attention.upper()} attention; remove it")
        searched.pop(name, None)
    fixed = _reference_values(reference, attention, searched)
    for name, values in list(searched.items()):
        if len(values) == 1:
            fixed[name] = values[0]
            del searched[name]
    experts = searched.get("num_experts") or (fixed.get("num_experts", 0),)
    if min(experts) == 0 < max(experts):
        raise SpecError("num_experts mixes 0 (dense) with experts; make two families of it")
    kind = replace(reference.kind, attention=attention, moe=max(experts) > 0)
    if attention != reference.attention:
        kind = ArchitectureKind(
            attention=attention, moe=kind.moe, tie_word_embeddings=kind.tie_word_embeddings, gated_ffn=kind.gated_ffn
        )
    if not kind.moe:
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace", "n_shared_experts"):
            fixed.pop(name, None)
    formats = {**spec.formats.model_dump(), **(family.formats if family else {})}
    try:
        return DesignSpace(family.name if family else attention, kind, searched, fixed, TensorFormats(**formats))
    except InvalidValueError as error:
        raise SpecError(str(error)) from None


def _reference_values(reference: Architecture, attention: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Dimensions a family takes from the reference model: what it does not name and no rule derives."""
    fixed: dict[str, int] = {}
    for name in INTEGER_FIELDS:
        value = getattr(reference, name)
        if name in given or value == 0 or name in ("num_sliding_window_layers", "sliding_window"):
            continue
        if attention != reference.attention and name in (*_GQA_ONLY, *_MLA_ONLY):
            continue
        if attention == "mla" and name in _GQA_ONLY:
            continue
        if name == "shared_expert_intermediate_size" and value == reference.moe_intermediate_size:
            continue  # follows the expert width
        if name == "intermediate_size" and reference.num_experts:
            continue  # the leading dense layers follow (k + shared)·H′e
        fixed[name] = value
    if reference.num_sliding_window_layers:
        full = reference.num_hidden_layers - reference.num_sliding_window_layers
        for name, value in zip(
            _WINDOW, (reference.sliding_window, round(reference.num_hidden_layers / max(1, full))), strict=True
        ):
            if name not in given:
                fixed[name] = value
    return fixed
