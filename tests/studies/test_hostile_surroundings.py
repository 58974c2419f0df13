"""What a run stands in: odd folder names, closed streams, foreign messages, writers that meet, numbers beyond floats."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shapefront.studies import Study
from shapefront.studies.files import ASIDE, prepare_folder, to_csv, write_folder, write_whole
from shapefront.studies.opening import RunLog
from shapefront.studies.rdb import hide_password
from shapefront.studies.result_file import ResultError, read_result


@pytest.mark.parametrize("name", ["what?x", "x%41y", "a{b}c", "a#b;c"])
def test_sqlite_stays_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    Study.load("dense-8b").run(trials=10, out=out, storage="sqlite", progress="quiet")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (out / "study.db").stat().st_size > 10_000
    first = (out / "pareto.csv").read_bytes()
    Study.load("dense-8b").run(trials=10, out=out, storage="sqlite", progress="quiet", resume=True)
    assert (out / "pareto.csv").read_bytes() == first


def test_half_a_surrogate_pair_is_written_escaped(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run.log")
    log("bad \ud800 text")
    assert "bad \\ud800 text" in (tmp_path / "run.log").read_text("utf-8")
    write_whole(tmp_path / "x.json", json.dumps("\ud800", ensure_ascii=False))
    assert json.loads((tmp_path / "x.json").read_bytes()) == "\ud800"


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_standard_streams(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, "-m", "shapefront", "run", "dense-8b", "--trials", "10", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, preexec_fn=close, stdout=None, stderr=None, timeout=120)
    assert done.returncode == 0
    assert (tmp_path / "out" / "pareto.csv").is_file()


def test_writers_that_meet_publish_whole_files(tmp_path: Path) -> None:
    path, stop, bad = tmp_path / "file", threading.Event(), []

    def write(letter: str) -> None:
        for _ in range(60):
            write_whole(path, letter * 200_000)
            prepare_folder(tmp_path)
        stop.set()

    writers = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while not stop.is_set():
        seen = path.read_text() if path.exists() else "a" * 200_000
        if len(seen) != 200_000 or len(set(seen)) != 1:
            bad.append(len(seen))
    for writer in writers:
        writer.join()
    assert not bad
    assert not list(tmp_path.glob(f"{ASIDE}*"))


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    for text in ("first", "second"):
        write_folder(tmp_path / "configs", lambda folder, text=text: (folder / "a").write_text(text) and None)  # type: ignore[misc]
    assert (tmp_path / "configs" / "a").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["configs"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@ss@host/db", "postgresql://u:***@host/db"),
        ("postgresql://h/db?user=u&password=hunter2", "postgresql://h/db?user=u&password=***"),
        ("postgresql://h/db?sslpassword=x&a=b", "postgresql://h/db?sslpassword=***&a=b"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_a_number_beyond_floats_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"format": 1, "architectures": [{"hidden_size": 1' + "0" * 400 + "}]}")
    with pytest.raises(ResultError, match="not a whole result"):
        read_result(tmp_path)


def test_a_spreadsheet_runs_no_cell() -> None:
    rows = [{"family": "=cmd|'/C calc'!A0", "value": -1.5, "count": -2, "name": "+1"}]
    assert to_csv(["family", "value", "count", "name"], rows).splitlines()[1] == "'=cmd|'/C calc'!A0,-1.5,-2,'+1"


def _children(parent: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(stat.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux kills orphans where it is asked to")
def test_a_killed_run_leaves_no_worker_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shapefront", "run", "moe-120b", "--engine", "exhaustive", "--workers", "2", "-q"]
    run = subprocess.Popen([*command, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    children: set[int] = set()
    while len(children) < 3 and time.monotonic() < deadline and run.poll() is None:  # two workers and Python's own tracker
        children = _children(run.pid)
        time.sleep(0.05)
    time.sleep(0.5)
    run.kill()
    run.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline + 30:
        time.sleep(0.1)
    assert len(children) >= 3
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
