"""User code that changes between a run and its continuation, and failed calls that are made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.studies import Study
from shapefront.studies.code_state import code_of, module_file
from shapefront.studies.spec import UserObjectiveSpec
from shapefront.studies.storage import StorageError, open_store
from tests.studies.small import outputs, small_study, small_table

GOOD = "def f(architecture, point):\n    open('calls.txt', 'a').write('x\\n')\n    return float(architecture.hidden_size)\n"
FAILS = GOOD.replace("    return", "    if architecture.num_hidden_layers % 2:\n        raise RuntimeError('odd')\n    return")
SOURCES = pytest.mark.parametrize("storage", [None, "sqlite"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _study(folder: Path, code: str) -> Study:
    (folder / "mine.py").write_text(code)
    changes: dict[str, Any] = {"user": [{"name": "mine", "entry": "mine:f"}], "objectives": ["throughput@20"]}
    changes["search"] = {"trials": 16, "population": 8, "polish": False}
    return Study.from_dict(small_table(**changes), folder=folder)


def _calls(folder: Path) -> int:
    return len((folder / "calls.txt").read_text().splitlines())


def test_a_module_is_found_without_importing_it(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("raise SystemExit\n")
    (folder / "pack" / "inner.py").write_text("x = 1\n")
    assert module_file("pack.inner", [str(folder)]) == folder / "pack" / "inner.py"
    assert module_file("pack", [str(folder)]) == folder / "pack" / "__init__.py"
    (folder / "space" / "within").mkdir(parents=True)
    (folder / "space" / "within" / "leaf.py").write_text("x = 1\n")
    assert module_file("space.within.leaf", [str(folder)]) == folder / "space" / "within" / "leaf.py"  # folders without __init__
    assert module_file("space", [str(folder)]) is None
    assert module_file("no.such.module", [str(folder)]) is None and module_file("sys", []) is None
    users = [UserObjectiveSpec(entry=e, name="n") for e in ("pack.inner:f", "no_such_module:f")]
    code = code_of(users, [str(folder)])
    assert list(code) == ["pack.inner:f"] and code["pack.inner:f"][0] == "inner.py" and len(code["pack.inner:f"][1]) == 64


@SOURCES
def test_changed_code_is_refused_until_it_is_accepted(folder: Path, storage: str | None) -> None:
    out: dict[str, Any] = {"out": folder / "o", "storage": storage, "allow_code": True}
    _study(folder, GOOD).run(**out)
    changed = _study(folder, GOOD + "# another\n")
    with pytest.raises(
        StorageError, match=r"objective file mine.py \(mine:f\): SHA-256 \w{12}… → \w{12}…\n.*accept-changed-code"
    ):
        changed.run(**out, resume=True)
    result = changed.run(**out, resume=True, accept_changed_code=True)
    assert _calls(folder) == 16  # every answer was there
    assert "16 answers of the earlier code stay" in result.notes[0]
    assert changed.run(**out, resume=True).notes == []  # from now on this is the study's code
    _study(folder, GOOD)
    with pytest.raises(StorageError, match="accept-changed-code"):
        changed.run(**out, resume=True)


@SOURCES
def test_failed_calls_are_made_again_and_paid_answers_stay(folder: Path, storage: str | None) -> None:
    out: dict[str, Any] = {"out": folder / "o", "storage": storage, "allow_code": True, "resume": True}
    failed = _study(folder, FAILS).run(**out).data["failed_trials"]
    assert 0 < failed < 16 and _calls(folder) == 16
    _study(folder, FAILS).run(**out)
    assert _calls(folder) == 16  # a recorded failure is replayed
    mended = _study(folder, GOOD)
    with pytest.raises(StorageError, match="accept-changed-code"):
        mended.run(**out, retry_failed=True)  # answers of the earlier code would stay
    result = mended.run(**out, retry_failed=True, accept_changed_code=True)
    assert "failed_trials" not in result.data
    again = _calls(folder) - 16
    assert failed <= again < 16  # what failed, and designs the search now chooses instead of others
    mended.run(**out)
    assert _calls(folder) == 16 + again
    mended.run(allow_code=True, out=folder / "fresh")
    assert outputs(folder / "fresh") == outputs(folder / "o")  # as if it had never failed


def test_a_run_that_stopped_goes_on_with_mended_code(folder: Path) -> None:
    out: dict[str, Any] = {"out": folder / "o", "allow_code": True}
    with pytest.raises(InvalidValueError, match="the first 10 calls"):
        _study(folder, GOOD.replace("hidden_size", "no_size")).run(**out)
    mended = _study(folder, GOOD)
    assert mended.run(**out, resume=True, retry_failed=True).data["legal_trials"] == 16  # nothing of the earlier code stays
    mended.run(allow_code=True, out=folder / "fresh")
    assert outputs(folder / "fresh") == outputs(folder / "o")


def test_a_storage_without_the_hash_goes_on_with_a_note(folder: Path) -> None:
    study = _study(folder, GOOD)
    study.run(out=folder / "o", allow_code=True)
    store = open_store("journal", "small", folder / "o")
    stored = store.read()
    assert stored is not None and list(stored.metadata["code"]) == ["mine:f"]
    store.write_header({key: value for key, value in stored.metadata.items() if key != "code"})
    store.close()
    (note,) = study.run(out=folder / "o", allow_code=True, resume=True).notes
    assert "does not say which code" in note
    assert study.run(out=folder / "o", allow_code=True, resume=True).notes == []


def test_the_options_need_resume() -> None:
    for name in ("accept_changed_code", "retry_failed"):
        with pytest.raises(InvalidValueError, match="give --resume as well"):
            small_study().run(**{name: True})
