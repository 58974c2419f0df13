"""GEMM family: fit of the tile-and-wave model per number format, and its error on held-out shapes.

Forms and menus were chosen on fit rows only (a second hash split them into two parts); held-out rows only report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import get_format
from ..gemm import gemm_cost
from ..gemm_model import build_model, model_seconds
from ..gemm_tiles import GemmParameters, Tile
from ..profile import KernelProfile
from .fit import FitParameter, LogFit, fit_log_time
from .gemm_menus import k_tile_for, menu_for
from .gemm_rows import GemmRows, ideal_on, read_gemm_rows
from .interface import FamilyResult, ValidationRow
from .pairs import pair_errors
from .report import errors, three_number_prediction
from .split import held_out
from .tables import MeasuredTables

FloatArray = NDArray[np.float64]
_BASE = (
    FitParameter("launch_seconds", 4e-6, 3e-7, 5e-5),
    FitParameter("bandwidth_efficiency", 0.85, 0.3, 1.0),
    FitParameter("write_efficiency", 0.6, 0.1, 1.0),
    FitParameter("sm_bandwidth_share", 3.0, 0.8, 10.0),
    FitParameter("wave_rounding", 0.8, 0.01, 1.0),
    FitParameter("utilisation", 0.7, 0.1, 1.0),
    FitParameter("small_utilisation", 0.7, 0.03, 1.0),
    FitParameter("epilogue_seconds", 0.2e-6, 1e-9, 5e-6),
    FitParameter("epilogue_seconds_per_tile", 0.6e-6, 1e-9, 1e-5),
    FitParameter("split_seconds", 1e-6, 1e-9, 2e-5),
    FitParameter("combine_power", 3.0, 1.0, 12.0),
    FitParameter("k_rounding", 0.5, 1e-3, 1.0),
    FitParameter("droop", 0.2, 1e-4, 0.6),
    FitParameter("droop_seconds", 2e-3, 5e-5, 1e-2),
)
_QUANTISE = (
    FitParameter("quantise_efficiency", 0.6, 0.02, 1.0),
    FitParameter("quantise_seconds_per_k", 5e-10, 1e-12, 5e-9),
    FitParameter("quantise_minimum_k", 1000.0, 16.0, 8000.0),
)
_THIN_ROWS = 4000
_TILE_ELEMENTS = 128 * 256  # accumulators of the largest tile one SM holds: the unit of epilogue_seconds_per_tile
_STARTS: tuple[dict[str, float], ...] = (
    {"wave_rounding": 0.9, "combine_power": 2.0},
    {"wave_rounding": 0.3, "combine_power": 4.0},
)


def fit_parameters(number_format: str) -> tuple[FitParameter, ...]:
    """The numbers to fit: with activation quantisation where A is stored below 16 bits."""
    return _BASE + (_QUANTISE if get_format(number_format).activation_bits < 16 else ())


def gemm_parameters_of(values: dict[str, float], menu: Sequence[Tile], k_tile: float) -> GemmParameters:
    """Kernel parameters from fitted numbers: tiles with ``max_m`` share one utilisation, the others another.

    The exposed epilogue grows with the outputs one SM holds; split-K adds ``split_seconds``.
    """
    tiles = []
    for tile in menu:
        epilogue = values["epilogue_seconds"] + values["epilogue_seconds_per_tile"] * tile.tile_m * tile.tile_n / _TILE_ELEMENTS
        epilogue += values["split_seconds"] if tile.split_k > 1 else 0.0
        small = tile.max_m > 0
        tiles.append(
            replace(tile, utilisation=values["small_utilisation" if small else "utilisation"], epilogue_seconds=epilogue)
        )
    own = {field.name for field in fields(GemmParameters)}
    return GemmParameters(tiles=tuple(tiles), k_tile=k_tile, **{name: v for name, v in values.items() if name in own})


def profile_table(parameters: GemmParameters) -> dict[str, Any]:
    """``parameters`` of a profile file, as :meth:`GemmParameters.from_mapping` reads them; neutral values left out."""
    neutral = GemmParameters()
    table: dict[str, Any] = {
        field.name: getattr(parameters, field.name)
        for field in fields(parameters)
        if field.name != "tiles" and getattr(parameters, field.name) != getattr(neutral, field.name)
    }
    for field in fields(Tile):
        column = [getattr(tile, field.name) for tile in parameters.tiles]
        if field.name in ("tile_m", "tile_n") or any(value != field.default for value in column):
            table[f"menu_{field.name}"] = column
    return table


def fit(tables: MeasuredTables) -> list[FamilyResult]:
    """Fit every number format of the tables."""
    where = tables.source("gemm", "gemm")
    return [fit_rows("gemm", tables, rows, where) for rows in read_gemm_rows(tables) if len(rows)]


def _predict(base: KernelProfile, rows: GemmRows, parameters: GemmParameters, where: NDArray[np.bool_] | slice) -> FloatArray:
    model = build_model(base, rows.format, "bf16", parameters)
    batch = rows.batch[where] if isinstance(rows.batch, np.ndarray) else rows.batch
    return model_seconds(model, batch, rows.m[where], rows.n[where], rows.k[where])


def _started(numbers: Sequence[FitParameter], start: Mapping[str, float]) -> tuple[FitParameter, ...]:
    return tuple(replace(p, start=start.get(p.name, p.start)) for p in numbers)


def fit_rows(
    family: str,
    tables: MeasuredTables,
    rows: GemmRows,
    where: str,
    *,
    numbers: Sequence[FitParameter] | None = None,
    fixed: Mapping[str, float] | None = None,
    menu: Sequence[Tile] | None = None,
) -> FamilyResult:
    """Fit one number format of ``gemm`` or ``bmm`` rows.

    Args:
        family: ``gemm`` or ``bmm``.
        tables: for the hardware and stack.
        rows: measured rows.
        where: names the table in the profile's ``source``.
        numbers: what to fit; by default :func:`fit_parameters`.
        fixed: numbers that are not fitted.
        menu: tiles; by default those of the stack, with its K tile.
    """
    base, still = ideal_on(tables.hardware), dict(fixed or {})
    stack = (tables.hardware.name, tables.stack, rows.format)
    k_tile = k_tile_for(*stack) if menu is None else 0.0
    menu = menu_for(*stack) if menu is None else menu
    numbers = fit_parameters(rows.format) if numbers is None else numbers
    train, held = ~rows.held_out, rows.held_out

    def search(numbers: Sequence[FitParameter], where: NDArray[np.bool_], evaluations: int) -> LogFit:
        def model(values: dict[str, float]) -> FloatArray:
            return _predict(base, rows, gemm_parameters_of({**still, **values}, menu, k_tile), where)

        return fit_log_time(model, numbers, rows.seconds[where], max_evaluations=evaluations)

    # Two starts on a fixed thinned part of the fit rows, the better one polished on all of them.
    thin = train & held_out(rows.m, rows.n, rows.k, share=min(1.0, _THIN_ROWS / max(1, int(train.sum()))))
    found = [search(_started(numbers, start), thin, 60) for start in _STARTS]
    best = min(found, key=lambda fit: fit.cost)
    best = search(_started(numbers, best.values), train, 12)
    parameters = gemm_parameters_of({**still, **best.values}, menu, k_tile)
    predicted = _predict(base, rows, parameters, slice(None))
    sizes = {"m": rows.m[held], "n": rows.n[held], "k": rows.k[held]}
    return FamilyResult(
        family=family,
        format=rows.format,
        parameters=profile_table(parameters),
        standard_errors=best.standard_errors,
        source=f"fitted to {where}: {int(train.sum())} rows fitted, {int(held.sum())} rows of whole shapes held out",
        fit=errors(predicted[train], rows.seconds[train]),
        held_out=errors(predicted[held], rows.seconds[held]) if held.any() else {},
        valid={name: (float(v[train].min()), float(v[train].max())) for name, v in (("m", rows.m), ("n", rows.n), ("k", rows.k))},
        pairs=pair_errors(sizes, predicted[held], rows.seconds[held]) if family == "gemm" and held.any() else {},
        note=rows.note,
    )


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Held-out error of ``profile`` per number format, beside the pure roofline and the three-number fit."""
    return [validate_rows("gemm", tables, rows, profile) for rows in read_gemm_rows(tables)]


def validate_rows(family: str, tables: MeasuredTables, rows: GemmRows, profile: KernelProfile) -> ValidationRow:
    """One line of the error table for ``gemm`` or ``bmm`` rows; without held-out rows every figure is NaN."""
    held = rows.held_out
    nan = dict.fromkeys(("median", "p90", "bias", "spearman"), float("nan"))
    figures: dict[str, float] = {"rows": 0, **nan}
    roofline = simple_median = float("nan")
    if held.any():
        ideal = gemm_cost(rows.m, rows.n, rows.k, format=rows.format, profile=ideal_on(tables.hardware), batch=rows.batch)
        simple = three_number_prediction(ideal.math_seconds, ideal.memory_seconds, rows.seconds, ~held)
        ours = gemm_cost(
            rows.m, rows.n, rows.k, format=rows.format, profile=profile, batch=rows.batch, family=family, warm_l2=True
        )
        measured = rows.seconds[held]
        figures = errors(ours.seconds[held], measured)
        roofline = errors(ideal.seconds[held], measured)["median"]
        simple_median = errors(simple[held], measured)["median"]
    return ValidationRow(
        family=family,
        format=rows.format,
        stack=tables.stack,
        n=int(figures["rows"]),
        median=figures["median"],
        p90=figures["p90"],
        bias=figures["bias"],
        spearman=figures["spearman"],
        roofline_median=roofline,
        three_number_median=simple_median,
        excluded=rows.excluded,
        hardware=tables.hardware.name,
        note=rows.note,
    )
