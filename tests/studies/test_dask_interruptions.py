"""A run on a Dask cluster that is interrupted, or whose scheduler dies: said in words, nothing lost, resumed to the same bytes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shapefront.studies.dask_engine import DaskError, scheduler_address
from shapefront.studies.interrupts import Interrupts
from shapefront.studies.storage import open_store
from tests.studies.dask_cluster import Cluster
from tests.studies.small import command, environment, outputs, run_cli, small_study, write_study
from tests.studies.test_user_objective import _user

pytestmark = [
    pytest.mark.dask,
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed (extra 'dask')"),
]
SECONDS = 180
SLOW = _user("slow") | {"search": {"trials": 12, "population": 8, "polish": False}}  # generations of 7 (seeds) and 5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "dask").mkdir()
    found = Cluster(tmp_path / "dask", workers=1, scheduler_file=tmp_path / "dask.json")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The outputs of the same study, never interrupted, in one process."""
    folder = tmp_path_factory.mktemp("whole")
    small_study(**SLOW).run(out=folder, allow_code=True, workers=8)
    return outputs(folder)


def _answers(out: Path) -> int:
    """Answers of the user function in the journal of a run that is going on."""
    path = out / "study.journal"
    return path.read_bytes().count(b'"call"') if path.exists() else 0


def _until(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _start(study: Path, out: Path, *more: str | Path) -> subprocess.Popen[str]:
    arguments = command("run", study, "--out", out, "--allow-code", "-q", *more)
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)


@pytest.mark.parametrize(("number", "answers"), [(signal.SIGINT, 2), (signal.SIGTERM, 9)])
def test_a_signal_to_the_coordinator(
    cluster: Cluster, tmp_path: Path, whole: dict[str, bytes], number: signal.Signals, answers: int
) -> None:
    """In the first generation and in the second; the answers so far are kept, the cluster goes on."""
    study, out = write_study(tmp_path / "s.toml", **SLOW), tmp_path / "out"
    process = _start(study, out, "--dask", cluster.address)
    _until(lambda: _answers(out) >= answers, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert _answers(out) >= answers
    assert (out / "result.json").exists() == (answers > 7)  # results so far need a whole generation
    found = run_cli("run", study, "--out", out, "--allow-code", "-q", "--resume", "--dask", tmp_path / "dask.json")
    assert found.returncode == 0, found.stderr
    assert outputs(out) == whole


def test_a_scheduler_that_is_killed(cluster: Cluster, tmp_path: Path, whole: dict[str, bytes]) -> None:
    study, out = write_study(tmp_path / "s.toml", **SLOW), tmp_path / "out"
    process = _start(study, out, "--dask", cluster.address)
    _until(lambda: _answers(out) >= 9, process)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert f"the Dask scheduler at {cluster.address} went away" in errors and "--resume" in errors
    assert "Traceback" not in errors
    with closing(open_store("journal", "small", out)) as store:
        stored = store.read()
    assert stored is not None and len(stored.trials) == 7 and len(stored.evaluations) >= 9
    cluster.start_scheduler()
    cluster.add_worker()
    found = run_cli("run", study, "--out", out, "--allow-code", "-q", "--resume", "--dask", cluster.address)
    assert found.returncode == 0, found.stderr
    assert outputs(out) == whole


def test_a_cluster_that_lost_its_workers(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    """Nobody is left to work: after a while it is said, not waited for ever."""
    monkeypatch.setattr("shapefront.studies.dask_engine.ASK_SECONDS", 0.1)
    study = small_study(**SLOW)
    out = tmp_path / "out"

    def check() -> None:
        if _answers(out) >= 3:
            cluster.workers[0].kill()
            monkeypatch.setattr("shapefront.studies.dask_engine.WAIT_SECONDS", 1)

    monkeypatch.setattr(Interrupts, "check", lambda self: check())
    with pytest.raises(
        DaskError, match=r"has no worker after 1 s any more; what is stored so far is kept: continue with --resume"
    ):
        study.run(out=out, allow_code=True, dask=cluster.address)
    monkeypatch.undo()
    study.run(out=out, allow_code=True, resume=True)
    assert outputs(out) == whole


def test_a_function_that_does_not_import_on_the_workers_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    study = write_study(tmp_path / "s.toml", user=[{"name": "mine", "entry": "no_such_module:function"}])
    found = run_cli("run", study, "--out", tmp_path / "out", "--allow-code", "-q", "--dask", cluster.address)
    assert found.returncode == 2 and "cannot import no_such_module:function" in found.stderr
    assert "Traceback" not in found.stderr and not (tmp_path / "out").exists()


def test_a_scheduler_file_is_waited_for_and_read(tmp_path: Path) -> None:
    """Half-written, of something else, a pipe (which would block), missing: waited for; then its address is taken."""
    path = tmp_path / "dask.json"
    os.mkfifo(tmp_path / "pipe.json")
    states = [None, "", '{"addr', "[1]", '{"id": "x"}', json.dumps({"address": "tcp://host:1"})]

    class Steps(Interrupts):
        def check(self) -> None:
            state = states.pop(0)
            if state is not None:
                path.write_text(state)

    assert scheduler_address("tcp://host:2", Steps()) == "tcp://host:2"
    assert scheduler_address(str(path), Steps(), seconds=SECONDS) == "tcp://host:1"
    for name in ("none.json", "pipe.json"):
        with pytest.raises(DaskError, match="no Dask scheduler wrote its address into this file within 0 s"):
            scheduler_address(str(tmp_path / name), Interrupts(), seconds=0)
