"""What surrounds the kernels of a step, for a profile's ``step`` family: fitted on measured serving rows, not on tables.

One signed constant a stack (see :mod:`.serving`), with the choices of ``data/serving/stacks.toml``. The kernels of the
profile must be fitted first: the constant is what their sum leaves.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidValueError
from ..profile import load_profile
from .calibrate import CalibrationResult
from .interface import FamilyResult
from .serving import error_figures, fit_constant, predict, stack_choices
from .serving_rows import read_rows

_KEYS = ("shared_expert_overlap", "static_scales")


def calibrate_step(hardware: str, stack: str) -> CalibrationResult:
    """Fit the constant of ``stack`` on its bundled rows (disaggregated ones where there are any).

    Args:
        hardware: hardware of the profile that gets it; the rows of all systems of the stack are used.
        stack: serving stack.

    Raises:
        InvalidValueError: no measured row of the stack.
    """
    rows = [row for row in read_rows()[0] if row.stack == stack]
    rows = [row for row in rows if row.mode == "disagg"] or rows
    if not rows:
        raise InvalidValueError(f"no measured serving row of stack '{stack}'")
    found = [predict(row) for row in rows]
    predicted, measured = np.array([p.seconds for p in found]), np.array([p.row.tpot_seconds for p in found])
    constant = fit_constant(predicted, measured)
    figures = {"rows": float(len(rows))} | error_figures(predicted + constant, measured)
    choices = stack_choices()[stack]
    parameters = {"host_seconds": float(f"{constant:.4g}")} | {key: float(choices[key]) for key in _KEYS}
    systems = ", ".join(sorted({row.system for row in rows}))
    result = FamilyResult(
        "step",
        "default",
        parameters,
        f"weighted median of measured less summed TPOT over {len(rows)} {rows[0].mode} rows of {systems}; {choices['source']}",
        fit={key: value for key, value in figures.items() if value == value},
        note="the constant may be negative: tables count what a served step does not run",
    )
    return CalibrationResult(hardware, stack, (result,), load_profile(f"{hardware}-{stack}").provenance)
