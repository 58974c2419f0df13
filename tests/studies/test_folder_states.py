"""What a kill, a copy or a second run can leave in a folder: continued, refused in words, never silently replaced."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shapefront.studies import Result
from shapefront.studies.storage import StorageError, open_store
from tests.studies.small import command, environment, outputs, small_study, write_study

TRIALS = 8


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    small_study().run(trials=TRIALS, out=folder)
    return folder


def _header(whole: Path) -> bytes:
    """The journal as it is before the first trial."""
    lines = (whole / "study.journal").read_bytes().splitlines(keepends=True)
    return b"".join(lines[: next(i for i, line in enumerate(lines) if b'"op_code":4' in line)])  # CREATE_TRIAL


@pytest.mark.parametrize("resume", [False, True])
def test_killed_at_any_instant_before_the_first_trial(tmp_path: Path, whole: Path, resume: bool) -> None:
    """No folder, an empty one, a lock, an empty journal, a header cut anywhere: the same command does the whole run."""
    header = _header(whole)
    cuts = [0, 1, 40, header.index(b"\n"), header.index(b"\n") + 1, len(header) // 2, len(header) - 1, len(header)]
    states: list[dict[str, bytes] | None] = [None, {}, {".lock": b"99999\n"}, {".lock": b""}]
    states += [{".lock": b"99999\n", "run.log": b"", "study.journal": header[:cut]} for cut in cuts]
    for number, state in enumerate(states):
        out = tmp_path / str(number)
        if state is not None:
            out.mkdir()
            for name, data in state.items():
                (out / name).write_bytes(data)
        small_study().run(trials=TRIALS, out=out, resume=resume)
        assert outputs(out) == outputs(whole), state


def test_results_without_their_journal(tmp_path: Path, whole: Path) -> None:
    """The same study is run again to the same bytes; another one replaces nothing unless it is told to."""
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "study.journal").unlink()
    for other in (small_study().with_search(seed=5), small_study(name="other")):
        for resume in (False, True):
            with pytest.raises(
                StorageError, match=r"holds the results of another run(.|\n)*(seed: 0 → 5|name: \"small\" → \"other\")"
            ):
                other.run(trials=TRIALS, out=tmp_path / "out", resume=resume)
        assert outputs(tmp_path / "out") == outputs(whole) and not (tmp_path / "out" / "study.journal").exists()
    small_study().run(trials=TRIALS, out=tmp_path / "out")
    assert outputs(tmp_path / "out") == outputs(whole)
    small_study().run(trials=TRIALS, seed=5, out=tmp_path / "out", overwrite=True)
    assert Result.load(tmp_path / "out").data["seed"] == 5


def test_another_study_does_not_move_into_the_folder(tmp_path: Path, whole: Path) -> None:
    """Its journal would hold both, its results only the second's."""
    shutil.copytree(whole, tmp_path / "out")
    before = (tmp_path / "out" / "study.journal").read_bytes()
    with pytest.raises(StorageError, match="holds the results of another run"):
        small_study(name="other").run(trials=TRIALS, out=tmp_path / "out")
    assert (tmp_path / "out" / "study.journal").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "seed: 0 → 3"),
        ({"trials": 9}, "trials: 8 → 9"),
        ({"engine": "exhaustive"}, 'engine: "optuna" → "exhaustive"'),
    ],
)
def test_a_resumed_run_is_the_same_run(whole: Path, changes: dict[str, Any], message: str) -> None:
    before = outputs(whole)
    with pytest.raises(StorageError, match="the stored study differs") as found:
        small_study().run(out=whole, resume=True, **{"trials": TRIALS} | changes)
    assert message in str(found.value) and str(whole) in str(found.value)
    assert outputs(whole) == before


def test_how_it_is_run_may_change(tmp_path: Path, whole: Path) -> None:
    """Half a journal, continued by two processes."""
    shutil.copytree(whole, tmp_path / "out")
    journal = tmp_path / "out" / "study.journal"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size * 2 // 3])
    small_study().run(trials=TRIALS, out=tmp_path / "out", resume=True, workers=2)
    assert outputs(tmp_path / "out") == outputs(whole)


@pytest.mark.parametrize("storage", ["", "st.db", "st.journal"])
def test_two_runs_started_at_the_same_instant(tmp_path: Path, whole: Path, storage: str) -> None:
    """One folder, or one storage and two folders: whoever is second is told, or finds it done; the results are one run's."""
    study = write_study(tmp_path / "s.toml")
    runs = []
    for name in ("a", "b"):
        out = tmp_path / (name if storage else "a")
        more: list[str | Path] = ["--storage", tmp_path / storage] if storage else []
        arguments = command("run", study, "--trials", str(TRIALS), "--out", out, "-q", *more)
        runs.append((out, subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment(), text=True)))
    ended = [(out, *run.communicate(timeout=120), run.returncode) for out, run in runs]
    assert 0 in {code for *_, code in ended}
    for out, _, errors, code in ended:
        assert "Traceback" not in errors
        if code == 0:
            assert outputs(out) == outputs(whole)
        else:
            assert code == 2 and ("another run" in errors or "another process" in errors or "holds a" in errors), errors


def test_overwriting_one_study_of_a_shared_journal_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "shared.journal"
    for name in ("small", "other"):
        small_study(name=name).run(trials=TRIALS, storage=str(path))
    small_study().run(trials=TRIALS, seed=7, storage=str(path), overwrite=True)
    for name, seed in (("small", 7), ("other", 0)):
        with closing(open_store(str(path), name)) as store:
            stored = store.read()
        assert stored is not None and stored.finished and stored.metadata["seed"] == seed
