"""A slice of the chaos and fuzz loops; the full ones are commands: ``python -m tests.chaos``, ``python -m tests.fuzz``."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos import chaos
from tests.fuzz import Corpus, Watch, cases, damage, fuzz
from tests.studies.small import run_cli


@pytest.mark.slow
def test_five_kills_lose_nothing(tmp_path: Path) -> None:
    report = chaos(tmp_path, kills=5)
    assert report.kills == 5
    assert report.clean, report
    assert len(set(report.moments)) > 1  # the kills came at different moments


@pytest.mark.slow
def test_killed_user_functions_are_not_called_again(tmp_path: Path) -> None:
    report = chaos(tmp_path, kills=2, user=True)
    assert report.clean and report.repeated_calls == 0, report


@pytest.mark.slow
def test_malformed_files_in_process() -> None:
    report = fuzz(500, seed=1)
    assert report.failures == []
    assert report.errors > 100 and report.readings > 20  # the cases are neither all broken nor all healthy
    assert len(report.kinds) == 7


def test_the_fuzz_watch_sees_what_it_looks_for(tmp_path: Path) -> None:
    watch = Watch()
    with watch.on(tmp_path / "box") as seen:
        (tmp_path / "outside").write_text("x")
        subprocess.run(["true"], check=True)
    assert any("write to" in text for text in seen) and any("subprocess" in text for text in seen)


@pytest.mark.slow
def test_malformed_files_as_real_processes(tmp_path: Path) -> None:
    """50 processes: exit code 0 or 2, one message, no traceback, nothing beside the output folder."""
    dice, done = random.Random(5), 0
    corpus = Corpus(tmp_path / "corpus")
    healthy = (tmp_path / "corpus" / "journal" / "study.toml").read_bytes()
    for kind, name, data, _ in cases(dice, corpus):
        if done == 50:
            break
        work = tmp_path / "work"
        work.mkdir()
        if kind.startswith("spec"):
            (work / name).write_bytes(data if kind == "spec-text" else damage(dice, data))
            arguments = ["run", name, "--out", "out", "-q", "--trials", "2"]
        elif kind in ("journal", "journal-lines"):
            (work / "study.toml").write_bytes(healthy)
            (work / "out").mkdir()
            (work / "out" / "study.journal").write_bytes(data)
            arguments = ["run", "study.toml", "--out", "out", "-q", "--resume"]
        else:
            shutil.rmtree(work)
            continue
        before = {path.name for path in work.iterdir()}
        found = run_cli(*arguments, cwd=work, timeout=60)
        done += 1
        assert found.returncode in (0, 2), (kind, found.stderr)
        assert "Traceback" not in found.stderr, (kind, found.stderr)
        if found.returncode == 2:
            assert found.stderr.startswith("shapefront: error: ")
        assert {path.name for path in work.iterdir()} <= before | {"out"}
        shutil.rmtree(work)
