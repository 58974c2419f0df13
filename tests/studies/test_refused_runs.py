"""Runs that cannot be: refused before anything is written, and no obstacle to the next try."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.search.evaluate import evaluate, some_design_fits
from shapefront.studies import Study
from shapefront.studies.preflight import check_reached
from shapefront.studies.storage import StorageError
from shapefront.studies.user_objective import UserCodeError
from tests.studies.small import outputs, small_study

BROKEN = [{"name": "mine", "entry": "no_such_module:function"}]


def test_a_study_that_fits_no_layout_says_how_many_gpus_it_takes(tmp_path: Path) -> None:
    """One sequence of 2^27 tokens at 65 kB a token is 9 TB: more than two GPUs hold."""
    study = small_study(workload={"input_tokens": 1 << 27})
    assert not some_design_fits(study.problem())
    with pytest.raises(
        InvalidValueError, match=r"none of the \d+ legal designs fits.*takes at least \d+ gb300; raise layouts.gpus"
    ):
        study.run(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert some_design_fits(small_study().problem())


def test_a_function_that_does_not_import_leaves_nothing_behind(tmp_path: Path) -> None:
    """A mistyped module: no folder, no empty journal; in a folder that is there, nothing is touched."""
    study = small_study(user=BROKEN)
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new", tmp_path / "there"):
        for workers in (1, 2):
            with pytest.raises(UserCodeError, match="cannot import"):
                study.run(trials=8, out=out, allow_code=True, workers=workers)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_scheduler_that_is_away_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed (extra 'dask')")
    monkeypatch.setattr("shapefront.studies.dask_engine.CONNECT_SECONDS", 1)
    with pytest.raises(InvalidValueError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        small_study().run(out=tmp_path / "out", dask="tcp://127.0.0.1:9")
    assert not (tmp_path / "out").exists()


def test_a_run_that_ended_before_its_first_trial_can_simply_be_repeated(tmp_path: Path) -> None:
    """Killed between its header and its first trial: there is nothing to resume."""
    whole = small_study().run(trials=8, out=tmp_path / "whole")
    header = (tmp_path / "whole" / "study.journal").read_bytes().splitlines(keepends=True)
    assert sum(b'"op_code":4' in line for line in header) >= whole.data["trials"]  # CREATE_TRIAL
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.journal").write_bytes(b"".join(line for line in header[:3] if b'"op_code":4' not in line))
    with pytest.raises(StorageError, match="unfinished study 'small' with 0 trials"):
        small_study().run(trials=9, out=tmp_path / "out")  # another study is not mixed with it
    small_study().run(trials=8, out=tmp_path / "out")
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")


@pytest.mark.parametrize("objectives", [["throughput@100000"], ["throughput@20", "throughput@100000"]])
def test_an_objective_that_no_design_reaches_is_refused(tmp_path: Path, objectives: list[str]) -> None:
    """Every design would tie at 0 and lie on the front. The rate named is that of the fastest layout, one sequence a replica."""
    study = small_study(objectives=objectives)
    with pytest.raises(InvalidValueError, match=r"at_100000 needs 100000 tokens/s/user, which none of the \d+ legal") as found:
        study.run(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    match = re.search(r"the fastest gives ([\d.]+)\)", str(found.value))
    assert match
    fastest = float(match.group(1))  # 4 digits: a little below it some design is there, a little above none
    problem = small_study(objectives=[f"throughput@{0.999 * fastest:.5g}"]).problem()
    reached = evaluate(problem, problem.table.candidates(np.arange(len(problem.table)))).objectives[:, 0] > 0
    assert 0 < reached.sum() < len(problem.table)
    check_reached(problem)
    with pytest.raises(InvalidValueError, match="the fastest gives"):
        check_reached(small_study(objectives=[f"throughput@{1.001 * fastest:.5g}"]).problem())


def test_a_goal_that_no_design_meets_is_named_by_its_rate() -> None:
    """At most 10 µs a token is 100,000 tokens/s/user, whatever the objective's own rate is."""
    with pytest.raises(InvalidValueError, match=r"at_20 needs 100000 tokens/s/user.*workload\.max_itl_seconds"):
        check_reached(small_study(workload={"max_itl_seconds": 1e-5}).problem())


def test_only_a_part_of_a_large_space_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapefront.studies.preflight.LOOK", 40)
    with pytest.raises(InvalidValueError, match=r"none of 40 designs, looked at evenly over the \d+ legal designs"):
        check_reached(small_study(objectives=["throughput@100000"]).problem())


def test_failed_user_functions_are_told_at_the_end() -> None:
    """A result without designs must say why; and an error that has no text is still one failed call."""
    user = [{"name": "mine", "entry": "tests.studies.user_functions:fails_without_words"}]
    result = small_study(user=user).run(trials=4, allow_code=True)
    assert result.data["legal_trials"] == 0
    (note,) = [note for note in result.notes if "user functions failed" in note]
    assert f"designs: {result.data['trials']} x user function 'mine' failed: Speechless: (no text: ValueError) (tests/" in note
    assert result.data["failed_trials"] == result.data["trials"]


def test_an_objective_that_ranks_nothing_is_told_at_the_end() -> None:
    user = [{"name": "mine", "entry": "tests.studies.user_functions:prints"}]  # 1.0 for every design
    result = small_study(user=user).run(trials=4, allow_code=True)
    assert result.notes == ["objective mine is the same for every design priced: it ranks nothing"]
    assert small_study().run(trials=4).notes == []


def test_an_interrupt_before_the_run_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from shapefront.studies.cli import main

    def interrupted(name: str) -> Study:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "load", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["run", "dense-8b"])
    assert end.value.code == 130 and capsys.readouterr().err == "shapefront: interrupted\n"
