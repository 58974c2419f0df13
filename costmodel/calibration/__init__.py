"""Calibration: fit kernel profiles to measured tables, and report the error against them.

scipy, pandas and pyarrow are imported inside the functions that need them, never by ``import shapefront``.
"""

from __future__ import annotations

from .calibrate import CalibrationResult, calibrate, validate, write_profile
from .interface import FamilyResult, ValidationRow
from .tables import STACKS, MeasuredTables, open_tables

__all__ = [
    "STACKS",
    "CalibrationResult",
    "FamilyResult",
    "MeasuredTables",
    "ValidationRow",
    "calibrate",
    "open_tables",
    "validate",
    "write_profile",
]
