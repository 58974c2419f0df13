"""Commands given the wrong kind of file, or no name at all: one message that says what to give, exit code 2, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shapefront.studies import Result, Study
from shapefront.studies.cli import COMMANDS, main
from shapefront.studies.result_file import ResultError
from shapefront.studies.spec import SpecError
from tests.studies.small import small_study, write_study


def _error(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says that must fail for the user's mistake."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == "", said
    return said.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    small_study().run(out=folder, trials=8)
    return folder


def test_a_result_is_the_folder_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study file, an empty folder, one whose run did not get to its results, nothing at all."""
    study = write_study(tmp_path / "my.toml")
    assert f"my.toml: is a study, not a result; give the folder of its run ('shapefront run {study}'" in _error(
        capsys, "report", study
    )
    (tmp_path / "empty").mkdir()
    said = _error(capsys, "report", tmp_path / "empty")
    assert "empty: holds no result.json; give the folder of a run" in said and "--resume" not in said
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "study.journal").write_bytes(b"")
    assert "begun: holds no result.json; give the folder of a run ('shapefront run' makes one), or finish" in _error(
        capsys, "report", tmp_path / "begun"
    )
    assert "none: does not exist; give the folder of a run" in _error(capsys, "report", tmp_path / "none")
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(ResultError, match="symbolic links"):
        Result.load(tmp_path / "loop.json")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["begun", "empty", "loop.json", "my.toml", "study.journal"]


def test_where_a_report_goes(tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a folder that is there, one that is not; what stands in the way is named, without advice that does not help."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    wanted = {"there": "there/report.html", "new/pages": "new/pages/report.html", "a/b.html": "a/b.html"}
    for out, file in wanted.items():
        with pytest.raises(SystemExit) as end:
            main(["report", str(finished), "--out", str(tmp_path / out), "--no-guidelines"])
        assert end.value.code == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / file)
        assert (tmp_path / file).read_text().startswith("<!")
    assert (tmp_path / "there" / "mine.txt").read_text() == "mine"
    said = _error(capsys, "report", finished, "--out", tmp_path / "there" / "mine.txt" / "x.html", "--no-guidelines")
    assert "mine.txt: is a file, not a folder; choose another --out" in said and "--resume" not in said
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: is a file, not a folder" in _error(capsys, "run", write_study(tmp_path / "s.toml"), "--out", tmp_path / "pipe")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_argument_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """``--out "$OUT"`` with the variable not set would mean the current folder."""
    monkeypatch.chdir(tmp_path)
    for given in (["--out", ""], ["--out="]):
        assert "--out is empty (a shell variable that is not set?)" in _error(capsys, command, *given)
    assert "an argument is empty" in _error(capsys, command, "")
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_name_is_refused_in_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="out is empty"):
        Study.load("dense-8b").run(out="")
    assert not list(tmp_path.iterdir())
