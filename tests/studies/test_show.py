"""What a run says under its table."""

from types import SimpleNamespace
from typing import Any

from shapefront.studies.show import size_gap


def _result(wanted: float, own: float) -> Any:
    return SimpleNamespace(data={"settings": {"total_params": wanted, "tolerance": 0.01}}, reference={"total_params": own})


def test_a_budget_away_from_the_reference_says_why_nothing_is_at_equal_quality() -> None:
    # 14.0 / 14.77 - 1 = -5.2 %; a tolerance of 1 % does not reach -0.5 %
    assert size_gap(_result(14.0e9, 14.77e9)) == (
        ": the budget of 14.00B is -5.2% off its 14.77B, and equal quality needs -0.5% to +1.0%"
    )


def test_a_budget_the_tolerance_bridges_says_nothing() -> None:
    assert size_gap(_result(30.53e9, 30.53e9)) == ""
    assert size_gap(_result(30.30e9, 30.53e9)) == ""  # -0.75 %, and 1 % of tolerance reach beyond -0.5 %
