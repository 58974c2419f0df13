"""Hold the serving model against measured systems: TPOT at the running batch, exact layouts, one constant a stack.

A prediction is the plain sum of the step's kernels (decode), or the aggregated steady state, from the kernel profile of
the row's hardware and stack, plus *one* signed constant a stack and mode (the disaggregated rows are MLA models, the
aggregated ones GQA models: two campaigns), ``host_seconds``: host work that CUDA graphs leave, less
what the kernel tables count and the stack does not run. It is the weighted median of the residuals and is always fitted
on other configurations than the one predicted (leave one configuration out).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..aggregated import aggregated_at
from ..batch import ArchitectureBatch
from ..decode import decode
from ..errors import InvalidValueError
from ..hardware import data_directory
from ..layout import LayoutBatch
from ..memory import kv_bytes_per_sequence_per_gpu, max_concurrency, weight_bytes_per_gpu
from ..moe_load import experts_touched
from ..profile import KernelProfile, load_profile, profile_names
from ..serving import ServingSetup
from ..workload import Workload
from .serving_rows import ServingRow, read_rows

FloatArray = NDArray[np.float64]
# Hardware of the same generation whose kernel numbers stand in where a system has no profile of its own.
_NEIGHBOURS = {"h100": ("h200",), "h200": ("h100",), "b300": ("gb300", "b200"), "b200": ("b300", "gb200")}
_FALLBACK = ("gb300", "gb200", "b200", "h200")


@lru_cache(maxsize=1)
def stack_choices() -> Mapping[str, Mapping[str, Any]]:
    """How each stack executes a step (``data/serving/stacks.toml``)."""
    return tomllib.loads((data_directory("serving") / "stacks.toml").read_text(encoding="utf-8"))


def profile_of(row: ServingRow) -> KernelProfile:
    """The kernel profile of the row's (system, stack); a neighbour's kernels on the row's hardware where there is none.

    Raises:
        InvalidValueError: the stack has no profile at all.
    """
    return stack_profile(row.system, row.stack)


def stack_profile(system: str, stack: str) -> KernelProfile:
    """Kernel profile of a stack on a system, by name or by the nearest hardware that has one.

    Raises:
        InvalidValueError: the stack has no profile at all.
    """
    names = profile_names()
    for hardware in (system, *_NEIGHBOURS.get(system, ()), *_FALLBACK):
        if f"{hardware}-{stack}" in names:
            return load_profile(f"{hardware}-{stack}", hardware=None if hardware == system else system)
    raise InvalidValueError(f"no kernel profile of stack '{stack}'; run `shapefront calibrate` for it")


@dataclass(frozen=True, slots=True)
class ServingPrediction:
    """A row's step without the stack's constant, s.

    Attributes:
        row: what was measured.
        profile: kernel profile used.
        seconds: predicted TPOT before the constant.
        breakdown: seconds by category of the decode step (and ``prefill``, what the prompts of others take).
        roofline_seconds: weight and KV bytes over HBM bandwidth, the bar of physics without kernels.
    """

    row: ServingRow
    profile: str
    seconds: float
    breakdown: Mapping[str, float]
    roofline_seconds: float


def options_of(row: ServingRow) -> dict[str, Any]:
    """Step options of the row's stack."""
    table = stack_choices().get(row.stack, {})
    other = ("source", "status", "load", "reserves_full_length")
    return {k: v for k, v in table.items() if k not in other} | {"host_seconds": 0.0}


def predict(row: ServingRow, *, profile: KernelProfile | None = None, **changes: Any) -> ServingPrediction:
    """Predict a row with its stack's kernels and choices; ``changes`` replace single choices."""
    kernels = profile if profile is not None else profile_of(row)
    options = options_of(row) | changes
    load = options.pop("load", stack_choices().get(row.stack, {}).get("load", "balanced"))
    context = row.input_tokens + row.output_tokens / 2
    load_held = held_concurrency(row, kernels)
    step = decode(
        row.architecture, row.layout, load_held, context=context, formats=row.formats, profile=kernels, load=load, **options
    )
    breakdown = {
        name: float(getattr(step, f"{name}_seconds")[0, 0, 0]) for name in ("gemm", "attention", "communication", "other")
    }
    seconds = float(step.seconds[0, 0, 0])
    if row.mode == "agg":
        work = Workload(input_tokens=row.input_tokens, output_tokens=row.output_tokens, load=load)
        setup = ServingSetup(
            workload=work,
            layouts=LayoutBatch.from_layouts([row.layout]),
            formats=row.formats,
            profile=kernels,
            concurrency=(load_held,),
            mode="aggregated",
            options=options,
        )
        tpot = float(aggregated_at(ArchitectureBatch.from_architectures([row.architecture]), setup)[0, 0, 0])
        breakdown["prefill"] = tpot - seconds
        seconds = tpot
    return ServingPrediction(row, kernels.name, seconds, breakdown, roofline_seconds(row, kernels))


def held_concurrency(row: ServingRow, profile: KernelProfile) -> float:
    """Sequences of an aggregated row that run: the nominal ones, or what the KV cache holds.

    Rows above the cap queue (TTFT of minutes); their step never sees the nominal batch. A stack admits a request against
    its full length (TensorRT-LLM's default, no eviction) or against what is in use (vLLM, SGLang: the mean length).
    Disaggregated rows state their running batch.
    """
    if row.mode != "agg":
        return row.concurrency
    reserved = 1.0 if stack_choices().get(row.stack, {}).get("reserves_full_length", False) else 0.5
    held = max_concurrency(
        row.architecture,
        row.layout,
        context=row.input_tokens + reserved * row.output_tokens,
        formats=row.formats,
        hardware=profile.hardware,
    )
    return max(1.0, min(row.concurrency, float(held[0, 0])))


def roofline_seconds(row: ServingRow, profile: KernelProfile) -> float:
    """Bytes a GPU must read in a step, weights of the touched experts and KV, over its HBM bandwidth, s."""
    design, layout = row.architecture, row.layout
    weights = float(weight_bytes_per_gpu(design, layout, row.formats)[0, 0])
    if design.num_experts:
        none = design.with_(num_experts=1, num_experts_per_tok=1, moe_intermediate_size=1)
        rest = float(weight_bytes_per_gpu(none, layout, row.formats)[0, 0])
        touched = float(experts_touched(row.concurrency, design.num_experts, design.num_experts_per_tok))
        weights = rest + (weights - rest) * touched / design.num_experts
    context = row.input_tokens + row.output_tokens / 2
    cache = float(kv_bytes_per_sequence_per_gpu(design, layout, context, row.formats)[0, 0]) * row.batch
    return (weights + cache) / profile.hardware.memory_bytes_per_second


def fit_constant(predicted: FloatArray, measured: FloatArray) -> float:
    """The constant c that minimises sum |predicted + c - measured| / measured: a weighted median, s."""
    residual, weight = measured - predicted, 1.0 / measured
    order = np.argsort(residual, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    return float(residual[order][np.searchsorted(share, 0.5)])


def held_out(
    predictions: Sequence[ServingPrediction],
    fit: Callable[[Sequence[ServingPrediction]], Callable[[ServingPrediction], float]],
    group: Callable[[ServingPrediction], Hashable],
    scope: Callable[[ServingPrediction], Hashable],
) -> FloatArray:
    """TPOT of every prediction from a fit on the rows of its ``scope`` outside its ``group``, s."""
    found = np.empty(len(predictions))
    for i, one in enumerate(predictions):
        others = [p for p in predictions if scope(p) == scope(one) and group(p) != group(one)]
        found[i] = fit(others)(one) if others else one.seconds
    return found


def _constant(rows: Sequence[ServingPrediction]) -> Callable[[ServingPrediction], float]:
    c = fit_constant(np.array([p.seconds for p in rows]), np.array([p.row.tpot_seconds for p in rows]))
    return lambda p: p.seconds + c


def _two_constants(rows: Sequence[ServingPrediction]) -> Callable[[ServingPrediction], float]:
    """A + b · roofline by iteratively reweighted least squares on the relative error."""
    x = np.array([p.roofline_seconds for p in rows])
    y = np.array([p.row.tpot_seconds for p in rows])
    weight = 1.0 / y
    matrix = np.stack([np.ones_like(x), x], axis=1)
    solution: FloatArray = np.zeros(2)
    for _ in range(50):
        solution = np.asarray(np.linalg.lstsq(matrix * weight[:, None], y * weight, rcond=None)[0], dtype=np.float64)
        error = np.abs(matrix @ solution - y) / y
        weight = 1.0 / (y * np.sqrt(np.maximum(error, 1e-3)))
    a, b = (float(v) for v in solution)
    return lambda p: a + b * p.roofline_seconds


def fit_stack_constants(predictions: Iterable[ServingPrediction]) -> dict[str, float]:
    """One constant per ``stack mode`` from all its rows, s."""
    by_stack: dict[str, list[ServingPrediction]] = {}
    for p in predictions:
        by_stack.setdefault(f"{p.row.stack} {p.row.mode}", []).append(p)
    return {
        name: fit_constant(np.array([p.seconds for p in rows]), np.array([p.row.tpot_seconds for p in rows]))
        for name, rows in sorted(by_stack.items())
    }


@dataclass(frozen=True)
class ServingReport:
    """What ``validate --serving`` shows.

    Attributes:
        predictions: every row used.
        seconds: predicted TPOT with the held-out constant, ``(N,)``.
        roofline: two-constant roofline, held out alike, ``(N,)``.
        constants: ``stack mode`` → constant from all its rows, s.
        refused: row → reason.
    """

    predictions: tuple[ServingPrediction, ...]
    seconds: FloatArray
    roofline: FloatArray
    constants: Mapping[str, float]
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> FloatArray:
        """Measured TPOT, s."""
        return np.array([p.row.tpot_seconds for p in self.predictions])

    def summary(self, where: Callable[[ServingPrediction], bool] = lambda p: True) -> dict[str, Any]:
        """Errors over the rows that ``where`` keeps, beside both bars on the same rows."""
        keep = np.array([where(p) for p in self.predictions], dtype=bool)
        bare = np.array([p.seconds for p in self.predictions])
        aic = np.array([p.row.aiconfigurator_seconds for p in self.predictions])
        found: dict[str, Any] = {"n": int(keep.sum())} | error_figures(self.seconds[keep], self.measured[keep])
        found |= {
            f"kernels_{k}": v for k, v in error_figures(bare[keep], self.measured[keep]).items() if k in ("median", "p90", "bias")
        }
        found |= {
            f"roofline_{k}": v
            for k, v in error_figures(self.roofline[keep], self.measured[keep]).items()
            if k in ("median", "p90")
        }
        answered = keep & ~np.isnan(aic)
        found["aiconfigurator_n"] = int(answered.sum())
        other = error_figures(aic[answered], self.measured[answered])
        found |= {f"aiconfigurator_{k}": other[k] for k in ("median", "p90", "bias")}
        same = error_figures(self.seconds[answered], self.measured[answered])
        found |= {"same_rows_median": same["median"], "same_rows_p90": same["p90"]}
        return found

    def table(self) -> list[dict[str, Any]]:
        """One line per system x stack x model x format x mode, then the totals of each mode."""
        names = ("system", "stack", "model", "format", "mode")

        def line(key: tuple[str, ...], where: Callable[[ServingPrediction], bool]) -> dict[str, Any]:
            label = {"family": "serving", "hardware": key[0]} | dict(zip(names, key, strict=True))
            return label | self.summary(where) | {"three_number_median": None, "excluded": len(self.refused)}

        def same(key: tuple[str, ...]) -> Callable[[ServingPrediction], bool]:
            return lambda p: _line(p) == key

        def of_mode(mode: str) -> Callable[[ServingPrediction], bool]:
            return lambda p: p.row.mode == mode

        rows = [line(key, same(key)) for key in sorted({_line(p) for p in self.predictions})]
        return rows + [line(("all", "all", "all", "all", m), of_mode(m)) for m in sorted({p.row.mode for p in self.predictions})]

    def rows(self) -> list[dict[str, Any]]:
        """Every row with its prediction, error and breakdown."""
        return [
            {
                "id": p.row.id, "system": p.row.system, "stack": p.row.stack, "model": p.row.model, "format": p.row.precision,
                "mode": p.row.mode, "layout": str(p.row.layout), "running_batch": p.row.batch, "profile": p.profile,
                "measured_seconds": p.row.tpot_seconds, "predicted_seconds": float(s),
                "error": float(s) / p.row.tpot_seconds - 1.0, "kernels_seconds": p.seconds, "breakdown": dict(p.breakdown),
            }
            for p, s in zip(self.predictions, self.seconds, strict=True)
        ]  # fmt: skip


def _line(p: ServingPrediction) -> tuple[str, ...]:
    return (p.row.system, p.row.stack, p.row.model, p.row.precision, p.row.mode)


def error_figures(predicted: FloatArray, measured: FloatArray) -> dict[str, float]:
    """``median p90 bias spearman`` of relative errors (fractions); NaN where there are no rows."""
    if not len(measured):
        return dict.fromkeys(("median", "p90", "bias", "spearman"), float("nan"))
    error = predicted / measured - 1.0
    size = np.abs(error)
    spearman = float("nan")
    if len(measured) > 2 and np.ptp(predicted) > 0 and np.ptp(measured) > 0:
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, measured)]
        spearman = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return {
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.median(error)),
        "spearman": spearman,
    }


def validate_serving(path: str | Path | None = None, *, only: Iterable[str] | None = None, **changes: Any) -> ServingReport:
    """Predict every measured row; constants fitted per stack and mode with the row's own configuration held out.

    Args:
        path: CSV of rows; ``None`` = those that come with the package.
        only: ids to keep.
        **changes: step options that replace the stacks' choices (to see what a choice costs).
    """
    rows, refused = read_rows(path, only=only)
    refused = dict(refused)
    predictions: list[ServingPrediction] = []
    for row in rows:
        try:
            predictions.append(predict(row, **changes))
        except InvalidValueError as error:
            refused[row.id] = str(error)
    if not predictions:
        raise InvalidValueError(f"no row could be used: {next(iter(refused.values()), 'the table is empty')}")

    def scope(p: ServingPrediction) -> Hashable:
        return p.row.stack, p.row.mode

    def group(p: ServingPrediction) -> Hashable:
        return p.row.configuration

    seconds = held_out(predictions, _constant, group, scope)
    roofline = held_out(predictions, _two_constants, group, lambda p: p.row.mode)
    return ServingReport(tuple(predictions), seconds, roofline, fit_stack_constants(predictions), refused)


def transfer(report: ServingReport, source: Callable[[ServingRow], bool], target: Callable[[ServingRow], bool]) -> dict[str, Any]:
    """Constants fitted per stack on the ``source`` rows alone, errors on the ``target`` rows (TP → DEP, GB200 → GB300)."""
    predicted, measured = [], []
    for stack in sorted({p.row.stack for p in report.predictions}):
        fitted = [p for p in report.predictions if p.row.stack == stack and source(p.row)]
        wanted = [p for p in report.predictions if p.row.stack == stack and target(p.row)]
        if fitted and wanted:
            model = _constant(fitted)
            predicted += [model(p) for p in wanted]
            measured += [p.row.tpot_seconds for p in wanted]
    return {"n": len(measured)} | error_figures(np.array(predicted), np.array(measured))
