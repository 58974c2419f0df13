"""What surrounds the kernels of a step, for a profile's ``step`` family: fitted on measured serving rows, not on tables.

One signed constant a stack and attention kind (see :mod:`.serving`), with the choices of ``data/serving/stacks.toml``.
The kernels of the profile must be fitted first: the constant is what their sum leaves. The disaggregated rows are MLA
models, the aggregated ones GQA models; the residuals of the two differ, so that neither stands for the other.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidValueError
from ..profile import load_profile
from .calibrate import CalibrationResult
from .interface import FamilyResult
from .serving import error_figures, fit_constant, predict, stack_choices
from .serving_rows import ServingRow, read_rows

_KEYS = ("shared_expert_overlap", "static_scales")
SMALLEST_MODEL = 30e9  # parameters; below it measured steps are the scheduler's, not the kernels' (8B: 6 ms, inferred)


def calibrate_step(hardware: str, stack: str) -> CalibrationResult:
    """Fit the constants of ``stack`` on its bundled rows: ``step.default`` (GQA) and ``step.mla``.

    Args:
        hardware: hardware of the profile that gets them; the rows of all systems of the stack are used.
        stack: serving stack.

    Raises:
        InvalidValueError: no measured row of the stack.
    """
    rows = [row for row in read_rows()[0] if row.stack == stack and row.architecture.total_params >= SMALLEST_MODEL]
    if not rows:
        raise InvalidValueError(f"no measured serving row of stack '{stack}'")
    mla = [row for row in rows if row.architecture.attention == "mla"]
    gqa = [row for row in rows if row.architecture.attention == "gqa"]
    results = [_fit(stack, "default", gqa)] + ([_fit(stack, "mla", mla)] if mla else [])
    return CalibrationResult(hardware, stack, tuple(results), load_profile(f"{hardware}-{stack}").provenance)


def _fit(stack: str, name: str, rows: list[ServingRow]) -> FamilyResult:
    choices = stack_choices()[stack]
    parameters = {key: float(choices[key]) for key in _KEYS}
    if not rows:
        return FamilyResult(
            "step", name, {"host_seconds": 0.0, **parameters}, choices["source"], status="inferred",
            note="no measured GQA row of this stack from 30B parameters on: no constant",
        )  # fmt: skip
    found = [predict(row) for row in rows]
    predicted, measured = np.array([p.seconds for p in found]), np.array([p.row.tpot_seconds for p in found])
    constant = fit_constant(predicted, measured)
    figures = {"rows": float(len(rows))} | error_figures(predicted + constant, measured)
    systems = ", ".join(sorted({row.system for row in rows}))
    models = ", ".join(sorted({row.architecture.name for row in rows}))
    return FamilyResult(
        "step",
        name,
        {"host_seconds": float(f"{constant:.4g}"), **parameters},
        f"weighted median of measured less summed TPOT over {len(rows)} rows of {models} on {systems}; {choices['source']}",
        fit={key: value for key, value in figures.items() if value == value},
        note="the constant may be negative: tables count what a served step does not run",
    )
