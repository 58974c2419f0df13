"""What a run says under its table."""

from types import SimpleNamespace
from typing import Any

import pytest

from shapefront.studies.output import say
from shapefront.studies.show import number_percent, show_waterfalls, size_gap


def _result(wanted: float, own: float) -> Any:
    return SimpleNamespace(data={"settings": {"total_params": wanted, "tolerance": 0.01}}, reference={"total_params": own})


def test_a_budget_away_from_the_reference_says_why_nothing_is_at_equal_quality() -> None:
    # 14.0 / 14.77 - 1 = -5.2 %; a tolerance of 1 % does not reach -0.5 %
    assert size_gap(_result(14.0e9, 14.77e9)) == (
        ": the budget of 14.00B is -5.2% off its 14.77B, and equal quality needs -0.5% to +1.0%; "
        "leave total_params out of [budget], or name a reference of that size"
    )


def test_a_budget_the_tolerance_bridges_says_nothing() -> None:
    assert size_gap(_result(30.53e9, 30.53e9)) == ""
    assert size_gap(_result(30.30e9, 30.53e9)) == ""  # -0.75 %, and 1 % of tolerance reach beyond -0.5 %


def _step(label: str, gain: float, change: float, total: float, priced: bool = True) -> dict[str, Any]:
    return {
        "label": label,
        "gain": gain,
        "change": change,
        "total_params": total,
        "active_params": total,
        "quality_priced": priced,
    }


def test_the_waterfall_shows_the_size_of_every_step_and_what_is_not_priced(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [_step("size", 0.25, 0.25, 10e9), _step("KV", 0.2, 0.25, 10e9, priced=False)]  # 1.25 · 1.2 = 1 + 0.25 + 0.25
    row = {"architecture_id": "a001", "total_params": 10e9, "active_params": 10e9, "waterfall": {"steps": steps, "total": 0.5}}
    show_waterfalls([row], {"total_params": 8e9, "active_params": 8e9})
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in capsys.readouterr().out.splitlines() if "a001" in line
    ]
    assert lines == [
        ["a001", "reference model", "", "", "8.00B", "8.00B"],
        ["a001", "size", "+25.0%", "+25.0%", "10.00B", "10.00B"],
        ["a001", "KV *", "+20.0%", "+25.0%", "10.00B", "10.00B"],
        ["a001", "together", "+50.0%", "+50.0%", "10.00B", "10.00B"],
    ]


def test_a_result_of_an_older_version_shows_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"label": "KV", "gain": 0.2, "quality_priced": False}]
    row = {"architecture_id": "a001", "total_params": 1e9, "active_params": 1e9, "waterfall": {"steps": steps, "total": 0.2}}
    show_waterfalls([row], {"total_params": 1e9, "active_params": 1e9})
    assert "│ a001   │ KV *            │ +20.0% │" in capsys.readouterr().out


def test_nothing_has_no_sign() -> None:
    assert [number_percent(value) for value in (0.0004, -0.0004, -0.0006, None)] == ["0.0%", "0.0%", "-0.1%", "–"]


def test_sentences_wrap_at_words_on_a_terminal_and_stay_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "  KV cache -25.0% a token, of which -25.0% by the layers"
    monkeypatch.setenv("COLUMNS", "40")
    say(text)
    assert capsys.readouterr().out.splitlines() == ["  KV cache -25.0% a token, of which", "    -25.0% by the layers"]
    say("\nshort\n" + text)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "short",
        "  KV cache -25.0% a token, of which",
        "    -25.0% by the layers",
    ]
    monkeypatch.delenv("COLUMNS")
    say(text)
    assert capsys.readouterr().out == text + "\n"
