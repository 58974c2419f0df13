"""What a result is ranked by, and the columns and notes that keep its rows apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shapefront.studies.exporters.tables import markdown
from shapefront.studies.ranking import at_concurrency_limit, differing, ranking_objective
from shapefront.studies.report import report_html
from shapefront.studies.result import Result
from shapefront.studies.show import show_result
from tests.studies.small import ROOT, small_study

DEEP = {"name": "deep", "entry": "tests.studies.user_functions:depth"}


def test_the_area_ranks_unless_only_the_users_objectives_are_left() -> None:
    assert ranking_objective(["tokens_per_second_per_gpu_at_20", "deep"], ["deep"]) == "frontier_area"
    assert ranking_objective(["deep", "wide"], ["deep", "wide"]) == "deep"
    assert ranking_objective([], []) == "frontier_area"


def test_columns_that_tell_rows_apart_are_shown() -> None:
    gqa: dict[str, Any] = {"family": "gqa", "sliding_window": 0}
    reference = {"sliding_window": 0}
    assert differing([gqa, gqa], reference) == []  # the reference has no family: that alone tells nothing
    assert differing([gqa, {**gqa, "family": "gqa-fp8"}], reference) == [("family", "family")]
    assert differing([{**gqa, "sliding_window": 1024}], reference) == [("window", "sliding_window")]


def test_the_bound_binds_only_at_the_limit() -> None:
    row = {"at_rates": [{"rate": 20.0, "concurrency": 512.0}, {"rate": 50.0, "concurrency": 511.0}]}
    assert at_concurrency_limit(row, {"concurrency": {"high": 512.0}}) == [20.0]
    assert at_concurrency_limit(row, {"concurrency": {"high": 1024.0}}) == []
    assert at_concurrency_limit(row, {}) == []


@pytest.fixture(scope="module")
def own() -> Result:
    """A study whose only objective is the user's."""
    found: Result = replace(small_study(objectives=[], user=[DEEP]), folder=ROOT).run(allow_code=True)
    return found


def test_a_users_objective_alone_ranks(own: Result) -> None:
    assert own.data["ranked_by"] == "deep"
    for rows in (own.ranked_rows, own.data["runners_up"]):
        for equal in (True, False):
            depths = [row["num_hidden_layers"] for row in rows if row["equal_quality"] == equal]
            assert depths == sorted(depths, reverse=True)
    assert all(row["within_model_error_of"] is None for row in [*own.ranked_rows, *own.data["runners_up"]])


def test_a_users_objective_stands_in_every_table(own: Result, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(own, None)
    printed = capsys.readouterr().out
    assert "Ranked by objective deep, larger first" in printed
    [head] = [line for line in printed.splitlines() if " rank " in line and "deep" in line]
    column = [cell.strip() for cell in head.strip("┃").split("┃")].index("deep")
    first = next(line for line in printed.splitlines() if " a001 " in line)
    assert first.strip("│").split("│")[column].strip() == str(own.ranked_rows[0]["num_hidden_layers"])
    assert "hypervolume" not in printed
    text = report_html(own, guidelines=False)
    assert "the best design by deep is a001" in text or "No design of the front is at equal quality" in text
    assert f"deep: {own.ranked_rows[0]['num_hidden_layers']}" in text and ">deep</th>" in text
    assert "| deep |" in markdown(own)


def test_the_table_says_how_many_rows_it_leaves_out(own: Result, capsys: pytest.CaptureFixture[str]) -> None:
    row = {**own.ranked_rows[0], "twin_of": None}
    many = Result({**own.data, "architectures": [row] * 14})
    show_result(many, Path("somewhere"))
    assert f"12 of {14 + len(own.data['runners_up'])} shown; all in ranked.csv" in capsys.readouterr().out


def test_built_in_objectives_have_no_second_column(capsys: pytest.CaptureFixture[str]) -> None:
    result = small_study().run()
    show_result(result, None)
    printed = capsys.readouterr().out
    assert "Ranked by frontier area" in printed and "tokens_per_second_per_gpu_at" not in printed
    assert "at the limit" in printed  # the small study allows 512 sequences, and a 4-KV-head design holds more
