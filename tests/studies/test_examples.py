"""The job scripts and the manifest of the documentation: the Slurm script run with a stand-in for srun, the manifest read."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shapefront.studies.cli import EXIT_USER_ERROR
from tests.studies.small import ROOT, environment, outputs, small_study, write_study
from tests.studies.test_dask_interruptions import SLOW

EXAMPLES = ROOT / "docs" / "how-to" / "examples"
SECONDS = 240
SRUN = '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n'  # one task, here


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_shell(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert script.read_text().startswith("#!/bin/bash\n") and "#SBATCH --ntasks=" in script.read_text()


def _job(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A job of one task on this machine."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in (
        ("srun", SRUN),
        ("dask", f'#!/bin/sh\nexec "{sys.executable}" -m dask "$@"\n'),
        ("shapefront", f'#!/bin/sh\nexec "{sys.executable}" -m shapefront "$@"\n'),
    ):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    found = environment() | {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3"}
    found["PATH"] = f"{commands}{os.pathsep}{found['PATH']}"
    return subprocess.Popen(
        ["bash", str(EXAMPLES / script), *arguments], cwd=folder, env=found, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@pytest.mark.dask
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed (extra 'dask')")
def test_the_slurm_script_is_stopped_and_continued(tmp_path: Path) -> None:
    """SIGTERM, as before a time limit: the run says so, no process stays; the same line again gives the bytes of a plain run."""
    write_study(tmp_path / "s.toml", **SLOW)
    arguments = ("slurm-dask.sh", tmp_path, "s.toml", "--out", "out", "--allow-code")
    job = _job(*arguments)
    journal, deadline = tmp_path / "out" / "study.journal", time.monotonic() + SECONDS
    while not journal.exists() or journal.read_bytes().count(b'"call"') < 9:
        assert job.poll() is None and time.monotonic() < deadline, job.communicate()
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=SECONDS)  # until every process of the job closed its standard error
    assert job.returncode in (130, 143) and "continue with --resume" in errors and "shapefront: error" not in errors
    again = _job(*arguments)
    _, errors = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, errors
    small_study(**SLOW).run(out=tmp_path / "plain", allow_code=True, workers=8)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "plain")
    assert not list(tmp_path.glob("dask-*.json"))


def test_the_manifest_is_a_work_queue() -> None:
    """Kubernetes: without ``completions`` a Job ends when its pods did; a failure policy needs ``restartPolicy: Never``."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / "kubernetes-workers.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    job = manifest["spec"]
    assert "completions" not in job and job["parallelism"] > 1
    pod = job["template"]["spec"]
    (worker,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    (ends,) = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert ends == {"containerName": worker["name"], "operator": "In", "values": [EXIT_USER_ERROR]}
    assert {mount["name"] for mount in worker["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {f"$({variable['name']})" for variable in worker["env"]} & set(worker["args"]) == {"$(STORAGE)"}
    options = [argument for argument in worker["args"] if argument.startswith("--")]
    text = subprocess.run(
        [sys.executable, "-m", "shapefront", "worker", "--help"], capture_output=True, text=True, env=environment(), check=True
    ).stdout
    assert all(option in text for option in options)
    if importlib.util.find_spec("kubernetes_validate") is not None:
        importlib.import_module("kubernetes_validate").validate(manifest, "1.31", strict=True)
