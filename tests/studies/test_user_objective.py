"""User objectives and constraints: added to the built-in ones, each failure its own trial's, nothing run without leave."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel import Architecture
from shapefront.studies.run import expected_calls
from shapefront.studies.storage import open_store
from shapefront.studies.user_objective import Call, UserCodeError, UserFunction, call_key
from tests.studies.small import ROOT, outputs, run_cli, small_study, write_study

FUNCTIONS = ROOT / "tests" / "studies" / "user_functions.py"
DESIGN = Architecture(hidden_size=1024, num_hidden_layers=5, num_attention_heads=8, vocab_size=1000, intermediate_size=2048)


def _calls(count: int) -> list[Call]:
    designs = [DESIGN.with_(num_hidden_layers=i + 1).to_dict() for i in range(count)]
    return [Call(design, {"total_params": 0}, call_key("f", "m:f", design)) for design in designs]


def _run(name: str, count: int = 4, *, timeout: float | None = None, workers: int = 2) -> list[tuple[float, str]]:
    function = UserFunction(
        f"tests.studies.user_functions:{name}", "mine", timeout_seconds=timeout, folders=[str(ROOT)], workers=workers
    )
    told: list[str] = []
    try:
        results = function.run(_calls(count), lambda call, value, error: told.append(call.key))
    finally:
        function.close()
    assert sorted(told) == sorted(call.key for call in _calls(count))
    return results


def test_answers_come_in_the_order_of_the_calls() -> None:
    found = _run("shallow_only", 5)
    assert [value for value, _ in found] == pytest.approx([n / 36 - 1 for n in range(1, 6)])
    assert not any(error for _, error in found)


def test_a_failure_is_one_call_with_its_message() -> None:
    values = _run("fails_on_odd_depth")
    assert [math.isnan(value) for value, _ in values] == [True, False, True, False]
    line = next(n for n, text in enumerate(FUNCTIONS.read_text().splitlines(), start=1) if "no data for" in text)
    expected = f"user function 'mine' failed: RuntimeError: no data for 1 layers (tests/studies/user_functions.py, line {line})"
    assert values[0][1] == expected
    assert values[1] == (1024.0, "")


def test_a_call_that_overruns_is_stopped() -> None:
    started = time.monotonic()
    values = _run("hangs_on_odd_depth", timeout=1.0)
    assert time.monotonic() - started < 30
    assert values[0][1] == "user function 'mine' took more than 1 s and was stopped"
    assert values[1] == (1024.0, "")


def test_a_crash_is_one_call() -> None:
    assert _run("ends_the_process", 2)[0][1] == "user function 'mine' ended its process (exit code 7)"


def test_what_it_prints_stays_out_of_the_protocol() -> None:
    assert _run("prints", 2) == [(1.0, ""), (1.0, "")]


@pytest.mark.parametrize(("name", "message"), [("not_finite", "must return a finite number"), ("nothing", "TypeError")])
def test_no_number_is_a_failure(name: str, message: str) -> None:
    assert message in _run(name, 1)[0][1]


@pytest.mark.parametrize(
    ("entry", "message"), [("no_such_module:f", "cannot import"), ("tests.studies.user_functions:nope", "no function 'nope'")]
)
def test_a_function_that_is_not_there(entry: str, message: str) -> None:
    function = UserFunction(entry, "mine", timeout_seconds=None, folders=[str(ROOT)])
    with pytest.raises(UserCodeError, match=message):
        function.run(_calls(1), lambda *_: None)
    function.close()


def test_a_key_names_function_and_design_but_not_its_label() -> None:
    design = DESIGN.to_dict()
    assert call_key("f", "m:f", design) == call_key("f", "m:f", design | {"name": "other"})
    assert call_key("f", "m:f", design) != call_key("f", "m:g", design)
    assert call_key("f", "m:f", design) != call_key("f", "m:f", design | {"num_hidden_layers": 6})


def _user(name: str, **more: Any) -> dict[str, Any]:
    return {
        "user": [{"name": "mine", "entry": f"tests.studies.user_functions:{name}", **more}],
        "objectives": ["throughput@20"],
        "search": {"trials": 16, "population": 8, "polish": False},
    }


def test_code_runs_only_with_leave(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="--allow-code"):
        small_study(**_user("depth")).run(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_objective_of_the_users_is_one_of_the_fronts(tmp_path: Path) -> None:
    result = small_study(**_user("depth")).run(allow_code=True)
    assert result.data["objectives"] == ["tokens_per_second_per_gpu_at_20", "mine"]
    for row in result.architectures:
        assert row["objectives"]["mine"] == row["num_hidden_layers"]
    assert len({row["num_hidden_layers"] for row in result.architectures}) > 1  # depth costs throughput: a real front


def test_an_objective_of_the_users_may_stand_alone() -> None:
    result = small_study(**_user("depth") | {"objectives": []}).run(allow_code=True)
    assert result.data["objectives"] == ["mine"]
    # one objective: every design of the front has the largest depth that was seen
    assert len({row["num_hidden_layers"] for row in result.architectures if "open" in row["fronts"]}) == 1


def test_a_constraint_of_the_users_holds() -> None:
    result = small_study(**_user("shallow_only", role="constraint")).run(allow_code=True)
    assert result.architectures and all(row["num_hidden_layers"] <= 36 for row in result.architectures)
    assert result.data["legal_trials"] < result.data["trials"]


def test_failed_trials_carry_their_message_and_the_study_goes_on(tmp_path: Path) -> None:
    result = small_study(**_user("fails_on_odd_depth")).run(allow_code=True, out=tmp_path)
    assert result.architectures and all(row["num_hidden_layers"] % 2 == 0 for row in result.architectures)
    store = open_store("journal", "small", tmp_path)
    failed = [t for t in store.study().trials if t.state.name == "FAIL"]
    store.close()
    assert failed
    for trial in failed:
        assert f"no data for {trial.user_attrs['num_hidden_layers']} layers" in json.dumps(trial.user_attrs)


def test_workers_and_resume_do_not_call_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are stored as they come: a resumed run asks only for what is missing."""
    calls = tmp_path / "calls.txt"
    monkeypatch.setenv("SHAPEFRONT_TEST_CALLS", str(calls))
    small_study(**_user("depth")).run(allow_code=True, out=tmp_path / "a")
    once = len(calls.read_text().splitlines())
    small_study(**_user("depth")).run(allow_code=True, out=tmp_path / "a", resume=True)
    assert len(calls.read_text().splitlines()) == once == 16
    small_study(**_user("depth")).run(allow_code=True, out=tmp_path / "b", workers=2)
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


def test_the_command_line_runs_it_beside_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "def f(architecture, point):\n    print('hello')\n    return 1.0 * architecture.hidden_size\n"
    )
    changes = _user("depth") | {"user": [{"name": "mine", "entry": "beside:f"}]}
    study = write_study(tmp_path / "s.toml", **changes)
    refused = run_cli("run", study, "--out", tmp_path / "o")
    assert refused.returncode == 2 and "beside:f" in refused.stderr
    found = run_cli("run", study, "--out", tmp_path / "o", "--allow-code", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["architectures"][0]["objectives"]["mine"] > 0


def test_the_number_of_calls_is_told_at_the_start_and_polish_can_be_left_out(tmp_path: Path) -> None:
    changes = _user("depth") | {"search": {"trials": 8, "population": 8}}
    study = write_study(tmp_path / "s.toml", **changes)
    found = run_cli("run", study, "--out", tmp_path / "a", "--allow-code", "--json-lines", "--no-polish", cwd=ROOT)
    assert found.returncode == 0, found.stderr
    events = [json.loads(line) for line in found.stderr.splitlines()]
    assert events[0] == {"event": "plan", "text": "user functions (mine): up to 8 calls of each"}
    assert json.loads((tmp_path / "a" / "result.json").read_text())["trials"] == 8
    found = run_cli("run", study, "--out", tmp_path / "b", "--allow-code", cwd=ROOT)
    assert found.returncode == 0, found.stderr
    legal = json.loads((tmp_path / "b" / "result.json").read_text())["legal_in_study"]
    assert (
        f"up to 8 calls of each in the trials, then one for every new neighbour of the front, up to {legal} tog" in found.stderr
    )
    assert json.loads((tmp_path / "b" / "result.json").read_text())["trials"] > 8
    help_text = " ".join(run_cli("run", "--help").stdout.split())
    assert "--no-polish" in help_text and "Calls user functions, too" in help_text


def test_the_number_of_calls_in_words() -> None:
    def told(**search: Any) -> str:
        return expected_calls(small_study(**_user("depth") | {"search": search}).spec, 5000)

    assert told(trials=100, polish=False) == "user functions (mine): up to 100 calls of each"
    assert "up to 2100 together" in told(trials=100)  # the polish prices 2,000 or four times the trials
    assert "up to 5000 together" in told(trials=1000) and "up to 3000 together" not in told(trials=1000)  # 1000 + 4000 = all
    assert "up to 5000 calls of each, one a legal design" in told(trials=100, engine="exhaustive")


def test_what_it_prints_is_an_event_a_marked_line_or_kept_in_the_log(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s.toml", **_user("prints") | {"search": {"trials": 2, "population": 2, "polish": False}})

    def run(name: str, *more: str) -> str:
        found = run_cli("run", study, "--out", tmp_path / name, "--allow-code", *more, cwd=ROOT)
        assert found.returncode == 0, found.stderr
        return found.stderr

    events = [json.loads(line) for line in run("lines", "--json-lines").splitlines()]
    printed = [event["text"] for event in events if event.get("event") == "output"]
    assert sorted(printed) == sorted(2 * ["mine: epoch 1: loss 2.3", "mine: raw"])
    assert run("quiet", "--quiet") == ""
    assert (tmp_path / "quiet" / "run.log").read_text().count("output of mine: epoch 1: loss 2.3") == 2
    assert run("plain").splitlines().count("mine: epoch 1: loss 2.3") == 2
