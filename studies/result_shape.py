"""The shape of result.json: what each key holds, so that nothing that reads a result can stumble over one.

Keys that are not named here are let through. ``None`` stands where there is no figure (no layout reaches a rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Number = Annotated[float, Field(allow_inf_nan=False)]
MaybeNumber = Number | None
Text = Annotated[str, Field(max_length=4000)]
MaybeText = Text | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class _Layout(_Part):
    tpa: int | None
    kvp: int | None
    dpa: int | None
    tpf: int | None
    ep: int | None
    pp: int | None
    gpus: int | None


class _Breakdown(_Part):
    gemm: Number
    attention: Number
    communication: Number
    other: Number


class _Point(_Layout):
    tokens_per_second_per_gpu: Number
    tokens_per_second_per_user: Number
    concurrency: MaybeNumber
    itl_seconds: MaybeNumber
    ttft_seconds: MaybeNumber = None
    prefill_layout: _Layout | None = None
    prefill_workers: MaybeNumber = None
    decode_workers: MaybeNumber = None


class _Rate(_Point):
    rate: Number


class _FrontierPoint(_Point):
    breakdown: _Breakdown
    step_constant_seconds: MaybeNumber = None
    bound: Text


class _ParetoPoint(_FrontierPoint):
    architecture_id: Text
    front: Literal["equal_quality", "open"] = "open"


class _Step(_Part):
    id: Text
    label: Text
    gain: MaybeNumber
    quality_priced: bool
    change: MaybeNumber = None
    total_params: MaybeNumber = None
    active_params: MaybeNumber = None


class _Waterfall(_Part):
    total: MaybeNumber
    steps: list[_Step]
    message: Text


class _Design(_Part):
    architecture_id: Text
    equal_quality: bool
    active_params_with_embedding: int
    tokens_per_second_per_gpu: MaybeNumber
    tokens_per_second_per_user: MaybeNumber
    concurrency: MaybeNumber
    itl_seconds: MaybeNumber
    ttft_seconds: MaybeNumber
    kv_bytes_per_token: Number
    predicted_loss: MaybeNumber
    objectives: dict[str, MaybeNumber]
    at_rates: list[_Rate]
    frontier: list[_FrontierPoint]


class _Reference(_Design):
    name: MaybeText = None


class _Row(_Design):
    rank: int | None
    dominated: bool
    fronts: list[Text]
    gives_up: list[Text]
    family: Text
    frontier_area_over_reference: MaybeNumber
    twins: int | None
    within_model_error_of: MaybeText


class _Ranked(_Row):
    twin_of: MaybeText = None
    waterfall: _Waterfall


class _RunnerUp(_Row):
    of_the_front: MaybeNumber = None


class _Area(_Part):
    low: Number
    high: Number
    axis: Text


class _Settings(_Part):
    profile: Text
    hardware: Text
    serving: Text
    workload_text: Text
    layouts: int
    concurrencies: int
    formats: dict[str, Text]
    train_tokens: MaybeNumber = None


class _Certificate(_Part):
    status: Text
    legal: int
    priced: int
    pruned: int
    gap_hypervolume: MaybeNumber


class _Failure(_Part):
    cause: Text
    trials: int


class _Result(_Part):
    study: Text
    title: Text
    seed: int
    engine: Text
    trials: int
    legal_trials: int
    failed_trials: int = 0
    failures: list[_Failure] = []
    legal_architectures: int
    exhausted: bool
    interrupted: bool
    hypervolume: MaybeNumber
    ranked_by: Text = "frontier_area"
    objectives: list[Text]
    rates: list[Number]
    area: _Area
    settings: _Settings
    pairwise_error: MaybeNumber
    architectures: list[_Ranked]
    runners_up: list[_RunnerUp]
    reference: _Reference
    pareto: list[_ParetoPoint]
    certificate: _Certificate | None


def shape_error(data: Mapping[str, Any]) -> str:
    """What is wrong with the contents of a result.json: the first broken key and its rule; empty when nothing is."""
    try:
        _Result.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part)[:40] for part in first['loc'])}: {first['msg']}"
    reference = data["reference"]
    if reference["architecture_id"] != "reference":
        return "reference.architecture_id: must be 'reference'"
    rates = [point["rate"] for point in reference["at_rates"]]
    for row in [*data["architectures"], *data["runners_up"]]:
        if [point["rate"] for point in row["at_rates"]] != rates:
            return f"{row['architecture_id'][:40]}: at_rates differs from the reference's"
        if set(row["objectives"]) != set(data["objectives"]):
            return f"{row['architecture_id'][:40]}: objectives differ from the study's"
    return ""
