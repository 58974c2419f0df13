"""An exhaustive run keeps what it has priced: killed and resumed, it prices the rest and ends with the same bytes."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapefront.search import exhaustive
from shapefront.search.evaluate import Priced, evaluate
from shapefront.search.problem import SearchProblem
from shapefront.search.space import Candidates
from shapefront.studies import Study
from shapefront.studies.checkpoint import NAME, Checkpoint
from shapefront.studies.storage import StorageError
from tests.studies.small import environment, outputs, small_study, small_table, write_study

# A few chunks, so that there is something between the first and the last.
DIMENSIONS = small_table()["dimensions"] | {
    "intermediate_size": {"low": 8192, "high": 20480, "step": 128},
    "hidden_size": {"low": 3072, "high": 4608, "step": 128},
}
CHANGES: dict[str, Any] = {"budget": {"tolerance": 0.04}, "dimensions": DIMENSIONS, "search": {"engine": "exhaustive"}}
FRONTS, ALL = 100, 20_000  # limits under which the study records its fronts alone, or every design
STREAM = "import shapefront.search.exhaustive as e; e.RECORD_LIMIT = {limit}; from shapefront.studies.cli import app; app()"


def study() -> Study:
    return small_study(**CHANGES)


@pytest.fixture(scope="module")
def size() -> int:
    """Designs of the study."""
    return len(study().problem().table)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, bytes]]:
    """Files of uninterrupted runs, by limit."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for limit in (FRONTS, ALL):
            patch.setattr(exhaustive, "RECORD_LIMIT", limit)
            folder = tmp_path_factory.mktemp("whole")
            study().run(out=folder)
            assert not (folder / NAME).exists()
            found[limit] = outputs(folder)
    return found


class Counter:
    """Counts the designs that this process prices, and interrupts after some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[int] = []
        self.stop = sys.maxsize
        self._price = evaluate
        monkeypatch.setattr("shapefront.studies.evaluators.evaluate", self)

    def __call__(self, problem: SearchProblem, candidates: Candidates) -> Priced:
        if len(self.ids) >= self.stop:
            raise KeyboardInterrupt
        self.ids += candidates.ids.tolist()
        return self._price(problem, candidates)


def interrupted(folder: Path, counter: Counter, after: int) -> int:
    """Run until ``after`` designs are priced; returns how many of them are kept."""
    counter.stop = after
    try:
        assert study().run(out=folder).data["interrupted"]  # where trials are recorded there is a result so far
    except KeyboardInterrupt as error:
        assert re.fullmatch(r"interrupted: \d+ of \d+ designs are priced and kept; --resume .*", str(error))
    counter.stop = sys.maxsize
    counter.ids.clear()
    kept = Checkpoint(folder, header(folder))
    return kept.done


def header(folder: Path) -> dict[str, Any]:
    from shapefront.studies.storage import open_store

    store = open_store("journal", "small", folder)
    try:
        stored = store.read()
        assert stored is not None
        return {key: value for key, value in stored.metadata.items() if key not in ("format", "finished")}
    finally:
        store.close()


@pytest.mark.parametrize("limit", [FRONTS, ALL])
def test_what_is_kept_is_not_priced_again(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[int, dict[str, bytes]], size: int
) -> None:
    monkeypatch.setattr(exhaustive, "RECORD_LIMIT", limit)
    counter = Counter(monkeypatch)
    kept = interrupted(tmp_path / "out", counter, 1100)
    assert kept == 1024  # two chunks of 512
    with pytest.raises(StorageError, match=r"(1024 designs that an unfinished run|an unfinished study).*(.|\n)*--overwrite"):
        study().run(out=tmp_path / "out")
    study().run(out=tmp_path / "out", resume=True)
    first = counter.ids[: size - kept]
    assert first == list(range(kept, size))
    if limit == ALL:
        assert len(counter.ids) == len(first)
    else:  # then the fronts' members, to be recorded
        assert len(counter.ids) < size
    assert outputs(tmp_path / "out") == whole[limit]
    assert not (tmp_path / "out" / NAME).exists()


@pytest.mark.parametrize("limit", [FRONTS, ALL])
@pytest.mark.parametrize("damage", ["torn", "flipped", "gone", "header"])
def test_a_damaged_end_is_priced_again(
    limit: int, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[int, dict[str, bytes]], size: int
) -> None:
    monkeypatch.setattr(exhaustive, "RECORD_LIMIT", limit)
    counter = Counter(monkeypatch)
    interrupted(tmp_path / "out", counter, 1100)
    path = tmp_path / "out" / NAME
    data = bytearray(path.read_bytes())
    if damage == "torn":
        del data[-3:]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "header":
        del data[30:]
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    result = study().run(out=tmp_path / "out", resume=True)
    assert any("is priced again" in note for note in result.notes) == (damage != "gone")
    first = counter.ids[0]
    assert (0 < first < 1024) if damage == "torn" or (damage == "flipped" and limit == ALL) else first < 1024
    assert set(counter.ids) >= set(range(first, size))
    assert outputs(tmp_path / "out") == whole[limit]


@pytest.mark.parametrize("limit", [FRONTS, ALL])
def test_answers_of_user_functions_are_kept_beside_it(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each design is priced and asked once (large studies price the fronts' members once more)."""
    monkeypatch.setattr(exhaustive, "RECORD_LIMIT", 10 if limit == FRONTS else limit)
    monkeypatch.setattr(exhaustive, "CHUNK", 32)
    monkeypatch.setenv("SHAPEFRONT_TEST_CALLS", str(tmp_path / "calls.txt"))
    user = {"name": "depth", "entry": "tests.studies.user_functions:depth"}
    mine = small_study(search={"engine": "exhaustive"}, user=[user])
    designs = len(mine.problem().table)
    assert designs > 64
    mine.run(out=tmp_path / "whole", allow_code=True)
    calls = len((tmp_path / "calls.txt").read_text().splitlines())
    (tmp_path / "calls.txt").unlink()
    counter = Counter(monkeypatch)
    counter.stop = 64
    try:
        assert mine.run(out=tmp_path / "out", allow_code=True).data["interrupted"]
    except KeyboardInterrupt as error:
        assert f"64 of {designs} designs are priced and kept" in str(error)
    counter.stop = sys.maxsize
    mine.run(out=tmp_path / "out", allow_code=True, resume=True)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    assert counter.ids[:designs] == list(range(designs)) and (limit == FRONTS or len(counter.ids) == designs)
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == calls <= designs


def test_another_studys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    interrupted(tmp_path / "out", counter, 600)
    path = tmp_path / "out" / NAME
    before = path.read_bytes()
    for name in ("study.journal", "result.json", "pareto.csv", "ranked.csv"):
        (tmp_path / "out" / name).unlink(missing_ok=True)
    for resume in (True, False):
        with pytest.raises(StorageError, match="was priced for another study, seed or version"):
            study().with_search(seed=9).run(out=tmp_path / "out", resume=resume)
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match="512 designs that an unfinished run of this study priced"):
        study().run(out=tmp_path / "out")  # its journal is gone
    study().with_search(seed=9).run(out=tmp_path / "out", overwrite=True)
    assert not path.exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_another_programs_file_is_left_alone(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("my own\n")
    with pytest.raises(StorageError, match="is not a checkpoint of this program"):
        study().run(out=tmp_path, overwrite=overwrite, resume=not overwrite)
    assert (tmp_path / NAME).read_text() == "my own\n"


def test_memory_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "RECORD_LIMIT", FRONTS)
    Counter(monkeypatch).stop = 1100
    with pytest.raises(KeyboardInterrupt, match="kept with --out and a storage other than memory"):
        study().run(out=tmp_path, storage="memory")
    assert not (tmp_path / NAME).exists()


def test_numbers_come_back_to_the_bit(tmp_path: Path) -> None:
    """NaN (a user function's place), minus zero, infinities, layout −1."""
    problem = study().problem()
    block = problem.table.candidates(np.arange(4))
    n, rates = 4, len(problem.rates)
    values = np.array([[np.nan], [-0.0], [np.inf], [5e-324]])
    priced = Priced(
        values,
        np.full((n, rates), 0.1),
        np.full((n, rates), -1),
        np.full((n, rates), 1 / 3),
        {"b": values[:, 0], "a": -values[:, 0]},
        np.array([True, False, True, False]),
        ("",) * n,
    )
    metadata = {"versions": {"shapefront": "0"}, "seed": 0}
    kept = Checkpoint(tmp_path, metadata)
    kept.keep_priced(block, priced)
    kept.close()
    found = Checkpoint(tmp_path, metadata).find(block)
    assert found is not None and list(found.violations) == ["b", "a"]
    for name in ("objectives", "throughput", "layout_index", "concurrency", "equal_quality"):
        a, b = getattr(found, name), getattr(priced, name)
        assert a.dtype == b.dtype and a.tobytes() == np.ascontiguousarray(b).tobytes()
    for name, value in priced.violations.items():
        assert found.violations[name].tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("workers", "limit", "kind"), [(1, FRONTS, "KILL"), (2, FRONTS, "INT"), (2, ALL, "KILL"), (1, ALL, "INT")]
)
def test_killed_at_random_moments(
    workers: int, limit: int, kind: str, tmp_path: Path, whole: dict[int, dict[str, bytes]], size: int
) -> None:
    """Each kill comes after a random number of further blocks; the runs together price no kept block twice."""
    dice = random.Random(10 * workers + limit)
    spec, folder = write_study(tmp_path / "s.toml", **CHANGES), tmp_path / "out"
    arguments = [sys.executable, "-c", STREAM.format(limit=limit), "run", spec, "--workers", str(workers), "-q", "--out", folder]
    path, kills = folder / NAME, 0
    for attempt in range(4):
        before = path.stat().st_size if path.exists() else 0
        process = subprocess.Popen(
            [*map(str, arguments), "--resume"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(), text=True
        )
        target = before + dice.randint(1, 60_000 if limit == ALL else 100)
        while attempt < 3 and process.poll() is None:
            if path.exists() and path.stat().st_size >= target:
                process.send_signal(getattr(signal, f"SIG{kind}"))
                kills += 1
                break
            time.sleep(0.002)
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == (-signal.SIGKILL if kind == "KILL" else 130), errors
        if kind == "INT" and limit == FRONTS:
            assert "designs are priced and kept; --resume continues after them" in errors
    assert process.returncode == 0, errors
    assert kills
    differ = [name for name, data in outputs(folder).items() if data != whole[limit][name]]
    assert not differ and not path.exists()
    log = (folder / "run.log").read_text()
    kept = re.findall(r"(\d+) designs are in exhaustive.checkpoint", log)
    priced = re.findall(r"(\d+) designs priced by this run", log)
    assert kept and 0 < int(kept[-1]) <= size
    members = len(outputs(folder)) and int(re.findall(r"(\d+) trials \(", log)[-1]) if limit == FRONTS else 0
    assert int(priced[-1]) == size - int(kept[-1]) + members
