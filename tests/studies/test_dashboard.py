"""optuna-dashboard on real storages of ours: studies, directions, objective names, trials and their attributes over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from shapefront.studies import Result
from tests.studies import postgres
from tests.studies.postgres import free_port
from tests.studies.small import small_study

DASHBOARD = shutil.which("optuna-dashboard")
pytestmark = pytest.mark.skipif(DASHBOARD is None, reason="optuna-dashboard is not on the PATH (pip install optuna-dashboard)")
SECONDS = 60


@contextmanager
def dashboard(storage: str, folder: Path) -> Iterator[str]:
    """The address of a dashboard on a storage."""
    port = free_port()
    with open(folder / "dashboard.log", "wb") as log:
        process = subprocess.Popen([str(DASHBOARD), storage, "--port", str(port)], cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                _get(f"http://127.0.0.1:{port}/api/studies")
                break
            except URLError:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "dashboard.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _get(address: str) -> bytes:
    with urlopen(address, timeout=SECONDS) as answer:
        return bytes(answer.read())


def _check(address: str, result: Result) -> None:
    studies = json.loads(_get(f"{address}/api/studies"))["study_summaries"]
    (summary,) = [s for s in studies if s["study_name"] == "small"]
    assert summary["directions"] == ["maximize", "maximize"]
    study: dict[str, Any] = json.loads(_get(f"{address}/api/studies/{summary['study_id']}"))
    assert study["objective_names"] == result.data["objectives"]
    assert len(study["trials"]) == result.data["trials"]
    best = {tuple(trial["values"]) for trial in study["best_trials"]}
    front = [row for row in result.architectures if "open" in row["fronts"]]
    assert best == {tuple(row["objectives"].values()) for row in front}
    for trial in study["trials"]:
        assert trial["state"] == "Complete"
        assert {"hidden_size", "num_hidden_layers"} <= {p["name"] for p in trial["params"]}
        assert {"source", "equal_quality", "total_params"} <= {a["key"] for a in trial["user_attrs"]}
    assert b"<html" in _get(f"{address}/dashboard/studies/{summary['study_id']}").lower()


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_file(tmp_path: Path, kind: str) -> None:
    """The commands of the documentation; looking changes nothing."""
    result = small_study().run(out=tmp_path / "long", storage=kind)
    name, storage = {"journal": ("study.journal", "long/study.journal"), "sqlite": ("study.db", "sqlite:///long/study.db")}[kind]
    before = (tmp_path / "long" / name).read_bytes()
    with dashboard(storage, tmp_path) as address:
        _check(address, result)
    assert (tmp_path / "long" / name).read_bytes() == before
    small_study().run(out=tmp_path / "long", storage=kind, resume=True)


@pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())
def test_a_database(tmp_path: Path) -> None:
    server = postgres.Server()
    try:
        result = small_study().run(storage=server.url)
        with dashboard(server.url.replace("postgresql://", "postgresql+psycopg://"), tmp_path) as address:
            _check(address, result)
    finally:
        server.close()
