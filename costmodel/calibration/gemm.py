"""GEMM family: fit of the tile-and-wave model per number format, and its error on held-out shapes.

Forms and menus were chosen on fit rows only (a second hash split them into two parts); held-out rows only report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import get_format
from ..gemm import gemm_cost, gemm_seconds
from ..gemm_model import build_model, model_seconds
from ..gemm_tiles import GemmParameters, Tile
from ..profile import KernelProfile
from .fit import FitParameter, LogFit, fit_log_time
from .gemm_menus import menu_for
from .gemm_rows import GemmRows, ideal_on, read_gemm_rows
from .interface import FamilyResult, ValidationRow
from .pairs import pair_errors
from .report import errors, three_number_prediction
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
)
_QUANTISE = (
    FitParameter("quantise_efficiency", 0.6, 0.02, 1.0),
    FitParameter("quantise_seconds_per_k", 5e-10, 1e-12, 5e-9),
    FitParameter("quantise_minimum_k", 1000.0, 16.0, 8000.0),
)
_TILE_ELEMENTS = 128 * 256  # accumulators of the largest tile one SM holds: the unit of epilogue_seconds_per_tile
_STARTS: tuple[dict[str, float], ...] = (
    {"wave_rounding": 0.9, "combine_power": 2.0},
    {"wave_rounding": 0.3, "combine_power": 4.0},
)


def fit_parameters(number_format: str) -> tuple[FitParameter, ...]:
    """The numbers to fit: with activation quantisation where A is stored below 16 bits."""
    return _BASE + (_QUANTISE if get_format(number_format).activation_bits < 16 else ())


def gemm_parameters_of(values: dict[str, float], menu: Sequence[Tile]) -> GemmParameters:
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
    return GemmParameters(tiles=tuple(tiles), **{name: v for name, v in values.items() if name in own})


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
    base = ideal_on(tables.hardware)
    results = []
    for rows in read_gemm_rows(tables):
        if len(rows):
            results.append(_fit_format(tables, base, rows))
    return results


def _predict(base: KernelProfile, rows: GemmRows, parameters: GemmParameters, where: NDArray[np.bool_] | slice) -> FloatArray:
    model = build_model(base, rows.format, "bf16", parameters)
    return model_seconds(model, 1.0, rows.m[where], rows.n[where], rows.k[where])


def _fit_format(tables: MeasuredTables, base: KernelProfile, rows: GemmRows) -> FamilyResult:
    menu = menu_for(tables.stack, rows.format, tables.hardware)
    train = ~rows.held_out
    best: LogFit | None = None
    for start in _STARTS:
        numbers = [replace(p, start=start.get(p.name, p.start)) for p in fit_parameters(rows.format)]
        found = fit_log_time(
            lambda values: _predict(base, rows, gemm_parameters_of(values, menu), train), numbers, rows.seconds[train]
        )
        if best is None or found.cost < best.cost:
            best = found
    if best is None:
        raise ValueError("no start")
    parameters = gemm_parameters_of(best.values, menu)
    predicted = _predict(base, rows, parameters, slice(None))
    held = rows.held_out
    where = tables.source("gemm", "gemm")
    return FamilyResult(
        family="gemm",
        format=rows.format,
        parameters=profile_table(parameters),
        standard_errors=best.standard_errors,
        source=f"fitted to {where}: {int(train.sum())} rows fitted, {int(held.sum())} rows of whole (n, k) sites held out",
        fit=errors(predicted[train], rows.seconds[train]),
        held_out=errors(predicted[held], rows.seconds[held]) if held.any() else {},
        valid={name: (float(v[train].min()), float(v[train].max())) for name, v in (("m", rows.m), ("n", rows.n), ("k", rows.k))},
        pairs=_pairs(rows, predicted),
    )


def _pairs(rows: GemmRows, predicted: FloatArray) -> dict[str, float]:
    held = rows.held_out
    sizes = {"m": rows.m[held], "n": rows.n[held], "k": rows.k[held]}
    return pair_errors(sizes, predicted[held], rows.seconds[held]) if held.any() else {}


def validate(tables: MeasuredTables, profile: KernelProfile) -> list[ValidationRow]:
    """Held-out error of ``profile`` per number format, beside the pure roofline and the three-number fit."""
    ideal = ideal_on(tables.hardware)
    out = []
    for rows in read_gemm_rows(tables):
        held = rows.held_out
        if not held.any():
            nan = float("nan")
            out.append(
                ValidationRow(
                    "gemm",
                    rows.format,
                    tables.stack,
                    0,
                    nan,
                    nan,
                    nan,
                    nan,
                    nan,
                    nan,
                    rows.excluded,
                    tables.hardware.name,
                    rows.note,
                )
            )
            continue
        cost = gemm_cost(rows.m, rows.n, rows.k, format=rows.format, profile=ideal)
        simple = three_number_prediction(cost.math_seconds, cost.memory_seconds, rows.seconds, ~held)
        m, n, k, measured = rows.m[held], rows.n[held], rows.k[held], rows.seconds[held]
        figures = errors(gemm_seconds(m, n, k, format=rows.format, profile=profile, warm_l2=True), measured)
        out.append(
            ValidationRow(
                family="gemm",
                format=rows.format,
                stack=tables.stack,
                n=int(figures["rows"]),
                median=figures["median"],
                p90=figures["p90"],
                bias=figures["bias"],
                spearman=figures["spearman"],
                roofline_median=errors(cost.seconds[held], measured)["median"],
                three_number_median=errors(simple[held], measured)["median"],
                excluded=rows.excluded,
                hardware=tables.hardware.name,
                note=rows.note,
            )
        )
    return out
