"""The study file: a typed, bounded TOML spec; every error names the key and its line.

A study says what may be built (budget, searched dimensions, rules), what is served (workload, formats, hardware or
profile, layouts, concurrency), what is wanted (rates, objectives, the reference model) and how to search. Dimensions
that are not searched keep the reference model's value.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ..constraints.space import DIMENSIONS
from ..costmodel import DEFAULT_PROFILE, InvalidValueError
from ..costmodel.errors import did_you_mean
from ..costmodel.layout import MAX_GPUS
from ..costmodel.serving_frontier import AREA
from .spec_types import Count, Format, Gpus, Number, Rate, Section, Text, Values, Whole

MAX_TRIALS = 1_000_000
MAX_FAMILIES = 16
NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}$")
ENTRY = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]{0,199}:[A-Za-z_][A-Za-z0-9_]{0,99}$")
OBJECTIVE = re.compile(r"^(throughput@(?P<rate>[0-9.]{1,12})|frontier_area|quality)$")


class BudgetSpec(Section):
    """Parameters a design may have; counts like ``"30.5B"`` or ``30.5e9``."""

    total_params: Count | None = Field(None, description="every stored weight; the reference model's when absent")
    active_params: Count | Literal["reference"] | None = Field(None, description="active parameters, 'reference', or free")
    tolerance: Number = Field(0.01, gt=0, le=0.5, description="relative, for both counts")


class WorkloadSpec(Section):
    """What is served."""

    input_tokens: Whole = Field(8192, ge=1, le=1 << 27)
    output_tokens: Whole = Field(1024, ge=1, le=1 << 27)
    prefix_cache_share: Number = Field(0.0, ge=0, lt=1)
    load: Literal["balanced", "uniform_random", "power_law_1.01", "power_law_1.2"] | Number = "balanced"
    max_ttft_seconds: Number | None = Field(None, gt=0)
    max_itl_seconds: Number | None = Field(None, gt=0)


class FormatsSpec(Section):
    """Number format per tensor class."""

    qkv: Format = "nvfp4"
    attention_output: Format = "nvfp4"
    ffn: Format = "nvfp4"
    experts: Format = "nvfp4"
    lm_head: Format = "bf16"
    router: Format = "bf16"
    kv: Format = "fp8"
    attention: Format = "bf16"


class LayoutsSpec(Section):
    """Layouts swept inside every trial, or suggested with it."""

    gpus: tuple[Gpus, ...] = Field((1, 2, 4, 8), min_length=1, max_length=64, description="GPUs of one replica")
    max_tpa: Gpus = 64
    max_kvp: Gpus = 1
    max_pp: Gpus = 1
    max_ep: Gpus = 1024
    mode: Literal["sweep", "suggest"] = "sweep"


class ServingSpec(Section):
    """How the designs are deployed; tokens/s/GPU counts the GPUs of every pool that the mode has."""

    mode: Literal["decode", "disaggregated", "aggregated"] = Field("decode", description="decode prices the decode pool alone")
    chunk_tokens: Whole = Field(8192, ge=1, le=1 << 24, description="prompt tokens of one prefill pass")
    overlap: Number | None = Field(None, ge=0, le=1, description="share of communication hidden; the profile's when absent")
    prefill_efficiency: Number = Field(1.0, gt=0, le=1, description="share of the prefill pool's rate that is used")
    decode_efficiency: Number = Field(1.0, gt=0, le=1, description="share of the decode pool's rate that is used")
    gpu_budget: Whole = Field(0, ge=0, le=MAX_GPUS, description="GPUs of both pools for a whole split; 0 = no budget")


class ConcurrencySpec(Section):
    """Sequences in flight of one replica: powers of 2^(1/per_octave)."""

    low: Number = Field(1.0, ge=1, le=1e6)
    high: Number = Field(16384.0, ge=1, le=1e7)
    per_octave: Whole = Field(2, ge=1, le=16)

    @model_validator(mode="after")
    def _order(self) -> ConcurrencySpec:
        if self.high < self.low:
            raise ValueError(f"high must be at least low, got low={self.low:g}, high={self.high:g}")
        return self


class AreaSpec(Section):
    """The user-rate axis of the frontier area."""

    low: Rate = Field(AREA[0], description="tokens/s/user")
    high: Rate = Field(AREA[1], description="tokens/s/user")
    axis: Literal["log", "linear"] = "log"

    @model_validator(mode="after")
    def _order(self) -> AreaSpec:
        if self.high <= self.low:
            raise ValueError(f"high must be above low, got low={self.low:g}, high={self.high:g}")
        return self


class RulesSpec(Section):
    """What a design must satisfy besides the budget."""

    alignment: (
        Annotated[int, Field(strict=True, ge=1, le=4096)] | dict[str, Annotated[int, Field(strict=True, ge=1, le=4096)]]
    ) = 128
    min_shard: Whole = Field(128, ge=1, le=4096)
    max_delta_loss_shape: Annotated[float, Field(strict=True, gt=0, le=1)] | Literal["off"] = Field(
        0.010, description="nats/token"
    )
    bands: Literal["p10-p90", "min-max", "off"] = "p10-p90"
    free_bands: tuple[Text, ...] = Field((), max_length=32, description="ratios that no band holds")
    balanced_pipeline: bool = Field(True, strict=True)
    max_loss_above_reference: Annotated[float, Field(strict=True, ge=-1, le=1)] | None = Field(
        None, description="limit of Q - Q_reference, nats/token; none when absent"
    )


class FamilySpec(Section):
    """One design family; what it does not say is the study's, then the reference model's."""

    name: str
    attention: Literal["gqa", "mla"] | None = None
    dimensions: dict[str, Values] = Field(default_factory=dict, max_length=32)
    formats: dict[str, Format] = Field(default_factory=dict, max_length=8)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "a family name")

    @field_validator("dimensions")
    @classmethod
    def _dimensions(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _known_dimensions(value)

    @field_validator("formats")
    @classmethod
    def _formats(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key not in FormatsSpec.model_fields:
                raise ValueError(f"unknown key '{key[:60]}'{did_you_mean(key[:60], FormatsSpec.model_fields)}")
        return value


class SearchSpec(Section):
    """How to search."""

    engine: Literal["optuna", "exhaustive"] = "optuna"
    trials: Whole = Field(400, ge=1, le=MAX_TRIALS)
    sampler: Literal["nsgaii", "nsgaiii", "tpe", "random", "qmc", "gp"] = "nsgaii"
    population: Whole = Field(24, ge=2, le=10_000)
    seed: Whole = Field(0, ge=0, le=2**32 - 1)
    polish: bool = Field(True, strict=True)


class UserObjectiveSpec(Section):
    """A Python function ``module:function``; it runs only when the user allows the study's code."""

    entry: str
    name: str
    role: Literal["objective", "constraint"] = "objective"
    timeout_seconds: Number | None = Field(None, gt=0, le=30 * 24 * 3600)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "a name")

    @field_validator("entry")
    @classmethod
    def _entry(cls, value: str) -> str:
        if not ENTRY.match(value):
            raise ValueError(f"an entry reads like 'module:function', got {value[:60]!r}")
        return value


class StudySpec(Section):
    """A whole study; see :mod:`shapefront.studies.spec` and ``shapefront studies --schema``."""

    name: str
    title: Text = ""
    reference: Text = Field(description="a built-in model, or a config.json beside the study file")
    hardware: Text | None = Field(None, description="prices the profile on another GPU's datasheet; absent = the profile's own")
    profile: Text = DEFAULT_PROFILE
    train_tokens: Number = Field(15e12, gt=1e9, le=1e16, description="D of the quality laws, printed beside Q")
    quality_law: Text = Field("default", description="size law: default, dense, zhao, joint, or a .toml of own coefficients")
    budget: BudgetSpec = BudgetSpec()
    workload: WorkloadSpec = WorkloadSpec()
    formats: FormatsSpec = FormatsSpec()
    layouts: LayoutsSpec = LayoutsSpec()
    serving: ServingSpec = ServingSpec()
    concurrency: ConcurrencySpec = ConcurrencySpec()
    rates: tuple[Rate, ...] = Field((20.0, 50.0, 100.0), min_length=1, max_length=32, description="reported, tokens/s/user")
    area: AreaSpec = AreaSpec()
    objectives: tuple[Text, ...] = Field(("throughput@20", "throughput@100"), max_length=3)
    rules: RulesSpec = RulesSpec()
    dimensions: dict[str, Values] = Field(default_factory=dict, max_length=32, description="searched or fixed dimensions")
    families: tuple[FamilySpec, ...] = Field((), max_length=MAX_FAMILIES)
    search: SearchSpec = SearchSpec()
    user: tuple[UserObjectiveSpec, ...] = Field((), max_length=8, description="user objectives and constraints")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "a study name")

    @field_validator("dimensions")
    @classmethod
    def _dimensions(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _known_dimensions(value)

    @field_validator("objectives")
    @classmethod
    def _objectives(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            match = OBJECTIVE.match(item)
            if not match:
                known = ("throughput@20", "frontier_area", "quality")
                raise ValueError(f"unknown objective {item[:40]!r}{did_you_mean(item[:40], known)}")
            if match["rate"] is not None:
                try:
                    rate = float(match["rate"])
                except ValueError:
                    rate = 0.0
                if not 0 < rate <= 1e6:
                    raise ValueError(f"the rate of {item!r} must be above 0 and at most 1e6 tokens/s/user")
        if len(set(value)) != len(value):
            raise ValueError(f"objectives must differ, got {list(value)}")
        return value

    @model_validator(mode="after")
    def _families(self) -> StudySpec:
        names = [family.name for family in self.families]
        if len(set(names)) != len(names):
            raise ValueError(f"family names must differ, got {names}")
        if not self.objectives and not any(user.role == "objective" for user in self.user):
            raise ValueError("a study needs an objective: name one in objectives, or add a [[user]] objective")
        if not self.dimensions and not any(family.dimensions for family in self.families):
            raise ValueError("a study needs searched dimensions: add [dimensions] with hidden_size, num_hidden_layers, …")
        return self


def check_name(value: str, what: str) -> str:
    """A name that is safe as a file name.

    Raises:
        ValueError: a path, or other characters.
    """
    if not NAME.match(value):
        raise ValueError(
            f"{what} has lower-case letters, digits, '-' and '_' only (it names files, so no path), got {value[:60]!r}"
        )
    return value


def _known_dimensions(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        if key not in DIMENSIONS:
            raise ValueError(f"unknown key '{str(key)[:60]}'{did_you_mean(str(key)[:60], DIMENSIONS)}")
    return value


def study_schema() -> dict[str, Any]:
    """JSON schema of a study file."""
    schema = StudySpec.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "shapefront study", **schema}


class SpecError(InvalidValueError):
    """A study file breaks a rule; the message names file, line and key."""
