"""A real PostgreSQL: batches, resume, independent workers one of which dies, a restart in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest

from shapefront.studies import Study
from shapefront.studies.storage import StorageError, open_store
from shapefront.studies.worker import Worker
from tests.studies.postgres import Server, why_not
from tests.studies.small import ROOT, command, environment, outputs, run_cli, small_study, write_study
from tests.studies.test_storage import HEADER, make_trials

pytestmark = [pytest.mark.postgres, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
TRIALS = 10


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server()) as started:
        yield started


def test_trials_and_answers_come_back(server: Server) -> None:
    trials = make_trials(60)
    with closing(open_store(server.url, "back")) as store:
        store.create(HEADER, ["a", "b"])
        store.append(trials[:25])
        store.append(trials[25:])
        store.add_evaluation("k", 0.1, "")
    with closing(open_store(server.url, "back")) as store:
        stored = store.read()
        assert stored is not None
        for number, (old, new) in enumerate(zip(trials, stored.trials, strict=True)):
            assert (new.number, new.state, new.values, new.params) == (number, old.state, old.values, old.params)
            assert (new.user_attrs, new.constraints) == (old.user_attrs, old.constraints)
        assert stored.evaluations == {"k": (0.1, "")}
        assert store.study().best_trials  # Optuna reads what COPY wrote


def test_many_may_find_an_empty_database_together(server: Server) -> None:
    """A job array starts its workers at the same instant, on a database without tables: one makes them, the others wait."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
    url, barrier = server.url.replace("/postgres", "/fresh"), threading.Barrier(8)

    def open_one(_: int) -> str:
        barrier.wait()
        with closing(open_store(url, "s")) as store:
            return type(store.storage).__name__

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_one, range(8))) == ["RDBStorage"] * 8


def test_a_run_on_postgresql_gives_the_same_bytes_and_resumes(server: Server, tmp_path: Path) -> None:
    small_study().run(out=tmp_path / "file")
    small_study().run(out=tmp_path / "shared", storage=server.url)
    assert outputs(tmp_path / "file") == outputs(tmp_path / "shared")
    with pytest.raises(StorageError, match="holds a finished study 'small'"):
        small_study().run(out=tmp_path / "shared", storage=server.url)
    small_study().run(out=tmp_path / "shared", storage=server.url, resume=True)
    assert outputs(tmp_path / "file") == outputs(tmp_path / "shared")
    small_study().run(out=tmp_path / "shared", storage=server.url, overwrite=True)
    assert outputs(tmp_path / "file") == outputs(tmp_path / "shared")


def test_a_restart_in_the_middle_of_a_run_is_survived(server: Server, tmp_path: Path) -> None:
    """The database goes down between two generations and comes back a second later."""
    from shapefront.studies.record import TrialRecorder

    changes: dict[str, Any] = {"name": "restart", "search": {"trials": 60, "population": 8}}
    small_study(**changes).run(out=tmp_path / "file")
    real, count = TrialRecorder.__call__, [0]
    threads: list[threading.Thread] = []

    def restart(self: TrialRecorder, trials: list[Any]) -> None:
        count[0] += 1
        if count[0] == 2:
            server.stop("immediate")
            threads.append(threading.Timer(1.0, server.start))
            threads[0].start()
        real(self, trials)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialRecorder, "__call__", restart)
        small_study(**changes).run(out=tmp_path / "shared", storage=server.url)
    threads[0].join()
    assert count[0] >= 2
    assert outputs(tmp_path / "file") == outputs(tmp_path / "shared")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StorageError, match="cannot be read") as error:
        open_store("postgresql://me:secret@127.0.0.1:9/none", "s")
    assert "secret" not in str(error.value)


def _worker_study(path: Path, name: str, function: str) -> Path:
    changes: dict[str, Any] = {
        "name": name,
        "objectives": ["throughput@20"],
        "search": {"trials": TRIALS, "population": 4},
        "user": [{"name": "mine", "entry": f"tests.studies.user_functions:{function}", "timeout_seconds": 30.0}],
    }
    return write_study(path / f"{name}.toml", **changes)


def _start(server: Server, study: Path, log: Path) -> subprocess.Popen[bytes]:
    arguments = command(
        "worker", "--storage", server.url, "--study", study.stem, "--spec", study, "--allow-code", "--heartbeat", "1", "--json"
    )
    with open(log, "wb") as file:
        return subprocess.Popen(arguments, stdout=file, stderr=file, env=environment(), cwd=ROOT)


def _trials(server: Server, name: str) -> list[optuna.trial.FrozenTrial]:
    with closing(open_store(server.url, name)) as store:
        try:
            return list(store.study().get_trials(deepcopy=False))
        except StorageError:
            return []


def _wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_worker_killed_in_a_trial_is_made_good_by_the_other(server: Server, tmp_path: Path) -> None:
    """Two workers, one killed with SIGKILL inside a trial: it is requeued, the other finishes it, none is lost."""
    study = _worker_study(tmp_path, "killed", "slow")
    first = _start(server, study, tmp_path / "first.log")
    _wait_for(
        lambda: any(t.state.name == "RUNNING" and t.user_attrs.get("design_id") is not None for t in _trials(server, "killed"))
    )
    first.send_signal(signal.SIGKILL)
    first.wait()
    orphan = next(t for t in _trials(server, "killed") if t.state.name == "RUNNING")
    second = _start(server, study, tmp_path / "second.log")
    assert second.wait(timeout=120) == 0, (tmp_path / "second.log").read_text()
    trials = _trials(server, "killed")
    states = [t.state.name for t in trials]
    assert states.count("COMPLETE") == TRIALS
    assert states.count("FAIL") == 1 and not {"RUNNING", "WAITING"} & set(states)
    requeued = [t for t in trials if t.system_attrs.get("failed_trial") == orphan.number]
    assert len(requeued) == 1 and requeued[0].state.name == "COMPLETE" and requeued[0].params == orphan.params
    designs = [t.user_attrs["design_id"] for t in trials if t.state.name == "COMPLETE"]
    assert len(set(designs)) == TRIALS  # no design is priced twice
    found = run_cli("worker", "--storage", server.url, "--study", "killed", "--collect", "--out", tmp_path / "out", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["trials"] == TRIALS
    assert all(row["objectives"]["mine"] == row["num_hidden_layers"] for row in result["architectures"])
    assert (tmp_path / "out" / "ranked.csv").exists()


def test_two_workers_share_and_survive_a_restart(server: Server, tmp_path: Path) -> None:
    study = _worker_study(tmp_path, "shared", "slow")
    workers = [_start(server, study, tmp_path / f"{i}.log") for i in range(2)]
    _wait_for(lambda: sum(t.state.name == "COMPLETE" for t in _trials(server, "shared")) >= 2)
    server.stop("fast")
    time.sleep(1.0)
    server.start()
    for i, worker in enumerate(workers):
        assert worker.wait(timeout=120) == 0, (tmp_path / f"{i}.log").read_text()
    states = [t.state.name for t in _trials(server, "shared")]
    assert states.count("COMPLETE") == TRIALS
    assert not {"RUNNING", "WAITING"} & set(states)
    logs = [(tmp_path / f"{i}.log").read_text() for i in range(2)]
    reports = [json.loads(log[log.index("{\n") :]) for log in logs]
    assert sum(report["done"] for report in reports) == TRIALS


def test_a_worker_needs_leave_and_the_same_study(server: Server, tmp_path: Path) -> None:
    study = _worker_study(tmp_path, "leave", "depth")
    base = ["worker", "--storage", server.url, "--study", "leave"]
    found = run_cli(*base, "--spec", study)
    assert found.returncode == 2 and "--allow-code" in found.stderr and "Traceback" not in found.stderr
    broken = write_study(tmp_path / "broken.toml", name="leave", user=[{"name": "mine", "entry": "no_such_module:function"}])
    found = run_cli(*base, "--spec", broken, "--allow-code")
    assert found.returncode == 2 and "cannot import" in found.stderr and "Traceback" not in found.stderr
    found = run_cli(*base)
    assert found.returncode == 2 and "no study 'leave'" in found.stderr  # neither of them made it
    Worker(server.url, "leave", study=Study.load(study), allow_code=True).close()
    (tmp_path / "other").mkdir()
    other = write_study(tmp_path / "other" / "leave.toml", name="leave", search={"trials": 99})
    found = run_cli(*base, "--spec", other)
    assert found.returncode == 2 and "spec.search.trials: 10 → 99" in found.stderr
    found = run_cli("worker", "--storage", server.url, "--study", "no-such")
    assert found.returncode == 2 and "no study 'no-such'" in found.stderr
    found = run_cli(*base, "--collect")
    assert found.returncode == 2 and "no completed trial" in found.stderr
    with pytest.raises(StorageError, match="independent workers"):
        small_study(name="leave").run(storage=server.url, resume=True)


def test_workers_stop_and_collect_tell_what_failed(server: Server, tmp_path: Path) -> None:
    study = _worker_study(tmp_path, "hopeless", "fails_without_words")
    found = run_cli(
        "worker", "--storage", server.url, "--study", "hopeless", "--spec", study, "--allow-code", "--quiet", cwd=ROOT
    )
    assert found.returncode == 2 and "the first 10 calls of user function 'mine' all failed" in found.stderr
    states = {t.state.name for t in _trials(server, "hopeless")}
    assert states == {"FAIL"}  # none is left running
    found = run_cli("worker", "--storage", server.url, "--study", "hopeless", "--collect")
    assert found.returncode == 2 and "no completed trial yet, 10 failed (10 x user function 'mine'" in found.stderr
    study = _worker_study(tmp_path, "some", "fails_every_second_time")
    found = run_cli("worker", "--storage", server.url, "--study", "some", "--spec", study, "--allow-code", "--quiet", cwd=ROOT)
    assert found.returncode == 0, found.stderr
    failed = sum(t.state.name == "FAIL" for t in _trials(server, "some"))
    assert failed == TRIALS // 2
    assert f"failed: {failed} x user function 'mine' failed: RuntimeError" in " ".join(found.stdout.split())
    found = run_cli("worker", "--storage", server.url, "--study", "some", "--collect")
    shown = " ".join(found.stdout.split())
    print(shown[:700])
    assert f"{TRIALS} trials, {TRIALS - failed} legal, {failed} failed;" in shown
    assert f"note: user functions failed in {failed} trials" in shown


def test_a_worker_that_is_told_to_stop_hands_its_trial_back(server: Server, tmp_path: Path) -> None:
    """SIGTERM inside a trial: it is back in the queue before the worker is gone, without a missed heartbeat."""
    study = _worker_study(tmp_path, "stopped", "slow")
    arguments = command("worker", "--storage", server.url, "--study", "stopped", "--spec", study, "--allow-code", "--quiet")
    long = environment() | {"SHAPEFRONT_TEST_SECONDS": "60"}  # and with the default heartbeat: nobody would notice for 45 s
    worker = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=long, cwd=ROOT)
    _wait_for(
        lambda: any(t.state.name == "RUNNING" and t.user_attrs.get("design_id") is not None for t in _trials(server, "stopped"))
    )
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 130
    trials = _trials(server, "stopped")
    assert not [t for t in trials if t.state.name == "RUNNING"]
    (waiting,) = [t for t in trials if t.state.name == "WAITING"]
    (failed,) = [t for t in trials if t.state.name == "FAIL"]
    assert waiting.system_attrs["failed_trial"] == failed.number and "error" not in failed.user_attrs
    found = run_cli("worker", "--storage", server.url, "--study", "stopped", "--allow-code", "--quiet", cwd=ROOT)
    assert found.returncode == 0, found.stderr
    states = [t.state.name for t in _trials(server, "stopped")]
    assert states.count("COMPLETE") == TRIALS and states.count("FAIL") == 1 and len(states) == TRIALS + 1


def test_workers_run_the_code_the_study_was_begun_with(server: Server, tmp_path: Path) -> None:
    def work(*more: str) -> subprocess.CompletedProcess[str]:
        arguments = ("--storage", server.url, "--study", "code", "--spec", study, "--allow-code", "--quiet", "--trials", "1")
        return run_cli("worker", *arguments, *more, cwd=tmp_path)

    source = "def f(architecture, point):\n    return 1.0 * architecture.hidden_size\n"
    (tmp_path / "mine.py").write_text(source)
    study = write_study(tmp_path / "code.toml", name="code", user=[{"name": "mine", "entry": "mine:f"}])
    assert work().returncode == 0 and work().returncode == 0
    (tmp_path / "mine.py").write_text(source + "# another\n")
    found = work()
    assert found.returncode == 2 and "objective file mine.py (mine:f): SHA-256" in " ".join(found.stderr.split())
    assert work("--accept-changed-code").returncode == 0 and work().returncode == 0
