"""A real Dask cluster: a scheduler and two worker processes, one of which is killed."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shapefront.studies.dask_engine import DaskEngine, DaskError
from shapefront.studies.interrupts import Interrupts
from shapefront.studies.spec import UserObjectiveSpec
from tests.studies.dask_cluster import Cluster
from tests.studies.postgres import free_port
from tests.studies.small import outputs, small_study
from tests.studies.test_user_objective import _calls, _user

pytestmark = [
    pytest.mark.dask,
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed (extra 'dask')"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("dask"), workers=2)
    try:
        yield found
    finally:
        found.close()


def test_a_cluster_gives_the_bytes_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    small_study().run(out=tmp_path / "serial")
    small_study().run(out=tmp_path / "dask", dask=cluster.address)
    assert outputs(tmp_path / "serial") == outputs(tmp_path / "dask")


def test_the_exhaustive_engine_does_too(cluster: Cluster, tmp_path: Path) -> None:
    small_study().run(out=tmp_path / "serial", engine="exhaustive")
    small_study().run(out=tmp_path / "dask", engine="exhaustive", dask=cluster.address)
    assert outputs(tmp_path / "serial") == outputs(tmp_path / "dask")


def test_user_functions_run_on_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    study = small_study(**_user("depth"))
    study.run(out=tmp_path / "serial", allow_code=True)
    study.run(out=tmp_path / "dask", allow_code=True, dask=cluster.address)
    assert outputs(tmp_path / "serial") == outputs(tmp_path / "dask")


def test_one_process_a_worker_serves_all_calls_of_a_run_and_ends_with_it(cluster: Cluster, tmp_path: Path) -> None:
    """A process a call would cost a quarter of a second each; one that outlived its run would run its code of yesterday."""
    (tmp_path / "pid.py").write_text("import os\ndef f(architecture, point):\n    return float(os.getpid())\n")
    user = UserObjectiveSpec(entry="pid:f", name="pid")
    runs = []
    for _ in range(2):
        engine = DaskEngine(cluster.address, small_study(), [str(tmp_path)], Interrupts())
        runs.append({int(value) for value, _ in engine.call(user, _calls(12), lambda *_: None)})
        engine.close()
        deadline = time.monotonic() + 30
        while any(_alive(pid) for pid in runs[-1]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(_alive(pid) for pid in runs[-1])
    assert all(1 <= len(pids) <= 2 for pids in runs) and not runs[0] & runs[1]


def _alive(pid: int) -> bool:
    """Whether a process runs (one that ended and is not waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_worker_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """SIGKILL one of two workers while it runs user functions; its calls go to the other."""
    study = small_study(**_user("slow"))
    study.run(out=tmp_path / "serial", allow_code=True, workers=4)
    victim, journal = cluster.workers[0], tmp_path / "dask" / "study.journal"
    ended = threading.Event()

    def kill_after_two_answers() -> None:
        while not ended.wait(0.05):
            if journal.exists() and journal.read_bytes().count(b'"study_id":1,"datetime_start"') >= 2:
                victim.send_signal(signal.SIGKILL)
                return

    killer = threading.Thread(target=kill_after_two_answers)
    killer.start()
    study.run(out=tmp_path / "dask", allow_code=True, dask=cluster.address)
    ended.set()
    killer.join()
    assert victim.wait(10) == -signal.SIGKILL  # the kill came while it ran
    assert outputs(tmp_path / "serial") == outputs(tmp_path / "dask")


def test_no_scheduler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapefront.studies.dask_engine.CONNECT_SECONDS", 1)
    with pytest.raises(DaskError, match="no Dask scheduler answers"):
        DaskEngine(f"tcp://127.0.0.1:{free_port()}", small_study(), (), Interrupts())


def test_no_distributed_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: dict[str, Any] = {"distributed": None}
    monkeypatch.setitem(sys.modules, "distributed", modules["distributed"])
    with pytest.raises(DaskError, match="pip install 'shapefront\\[dask\\]'"):
        DaskEngine("tcp://127.0.0.1:1", small_study(), (), Interrupts())
