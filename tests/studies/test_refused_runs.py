"""Runs that cannot be: refused before anything is written, and no obstacle to the next try."""

from __future__ import annotations

from pathlib import Path

import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.search.evaluate import some_design_fits
from shapefront.studies.storage import StorageError
from shapefront.studies.user_objective import UserCodeError
from tests.studies.small import small_study

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


def test_a_run_that_ended_before_its_first_trial_can_simply_be_repeated(tmp_path: Path) -> None:
    """A mistyped module is mended and the same command given again: there is nothing to resume."""
    study = small_study(user=BROKEN)
    for _ in range(2):
        with pytest.raises(UserCodeError, match="cannot import"):
            study.run(trials=8, out=tmp_path / "out", allow_code=True)
    with pytest.raises(StorageError, match="unfinished study 'small' with 0 trials"):
        small_study().run(trials=8, out=tmp_path / "out")  # another study is still not mixed with it


def test_failed_user_functions_are_told_at_the_end() -> None:
    """A result without designs must say why; and an error that has no text is still one failed call."""
    user = [{"name": "mine", "entry": "tests.studies.user_functions:fails_without_words"}]
    result = small_study(user=user).run(trials=4, allow_code=True)
    assert result.data["legal_trials"] == 0
    (note,) = [note for note in result.notes if "user functions failed" in note]
    assert "designs; the first: user function 'mine' failed: Speechless: (no text: ValueError)" in note
