"""Runs whose user functions fail: stopped early where all do, counted by cause where some do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shapefront.studies.failures import FIRST_CALLS, FirstCalls, causes, listed
from shapefront.studies.report import report_html
from shapefront.studies.show import show_result
from shapefront.studies.user_objective import UserCodeError
from tests.studies.small import run_cli, small_study, write_study

NAN = float("nan")
RAISED = "user function 'mine' failed: ValueError: no data for {} layers (f.py, line 3)"
STOPPED = "user function 'mine' took more than 1 s and was stopped"


def _user(entry: str, **more: Any) -> dict[str, Any]:
    search = {"trials": 24, "population": 8, "polish": False}
    return {"user": [{"name": "mine", "entry": entry, **more}], "objectives": ["throughput@20"], "search": search}


def test_one_cause_is_one_exception_at_one_line() -> None:
    errors = [RAISED.format(1), "", STOPPED, RAISED.format(2), RAISED.format(1).replace("line 3", "line 4")]
    assert causes(errors) == [(RAISED.format(1), 2), (STOPPED, 1), (RAISED.format(1).replace("line 3", "line 4"), 1)]
    assert listed(errors, 1) == f"2 x {RAISED.format(1)}; 2 x others"
    assert causes(["", ""]) == [] and listed([]) == ""


def _watch(answers: list[tuple[float, str]]) -> FirstCalls:
    first = FirstCalls("mend it")
    first.expect("mine", [str(i) for i in range(len(answers))])
    for i, answer in enumerate(answers):
        first.answered("mine", str(i), *answer)
    return first


def test_only_ten_failures_without_an_answer_stop_a_run() -> None:
    failed = (NAN, RAISED.format(1))
    with pytest.raises(UserCodeError, match=r"the first 10 calls of user function 'mine' all failed:\n  9 x .*\n  1 x .*\nmend"):
        _watch([failed] * 9 + [(NAN, STOPPED)]).check()
    _watch([failed] * 9).check()  # too few to judge
    _watch([failed] * 9 + [(1.0, "")]).check()
    _watch([(NAN, STOPPED)] * 10).check()  # a time-out says nothing about the code
    _watch([(1.0, "")] + [failed] * 20).check()


def test_a_run_whose_calls_all_fail_stops_early_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(architecture, point):\n    return architecture['hidden_size']\n")
    study = write_study(tmp_path / "s.toml", **_user("mine:f"))
    found = run_cli("run", study, "--out", tmp_path / "o", "--allow-code", "--quiet")
    assert found.returncode == 2
    assert f"{FIRST_CALLS} x user function 'mine' failed: TypeError: 'Architecture' object is not subscriptable" in found.stderr
    assert "(mine.py, line 2)" in found.stderr and "--resume --retry-failed" in found.stderr
    assert "stopped: the first 10 calls" in (tmp_path / "o" / "run.log").read_text()
    few = run_cli("run", study, "--out", tmp_path / "few", "--allow-code", "--quiet", "--trials", "3")
    assert few.returncode == 2 and "no legal design is left, 3 failed" in few.stderr  # too few to stop, none to show


def test_failed_designs_are_counted_by_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = small_study(**_user("tests.studies.user_functions:fails_on_odd_depth")).run(allow_code=True, out=tmp_path)
    data = result.data
    assert data["failed_trials"] > 0
    assert data["trials"] == data["legal_trials"] + data["failed_trials"]  # the built-in rules hold by construction
    (row,) = data["failures"]
    assert row["trials"] == data["failed_trials"] and "RuntimeError: no data for" in row["cause"]
    show_result(result, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{data['legal_trials']} legal, {data['failed_trials']} failed;" in shown and "RuntimeError" in shown
    assert f"{row['trials']} x user function" in (tmp_path / "run.log").read_text()
    assert f"{row['trials']} x user function" in report_html(result, guidelines=False)
    assert json.loads((tmp_path / "result.json").read_text())["failures"] == data["failures"]


def test_no_user_function_no_word_of_failures() -> None:
    assert not {"failed_trials", "failures"} & set(small_study().run(trials=4).data)
