"""A disk that is really full (a small tmpfs) and a folder that is really read-only: a clear message, nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shapefront.studies.storage import open_store
from tests.studies.small import outputs, run_cli, small_study, write_study


def _mount(folder: Path, options: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    found = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {found.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, "size=512k")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(folder: Path, leave: int) -> Path:
    """Fill a disk but for about ``leave`` bytes."""
    filler = folder / "filler"
    free = shutil.disk_usage(folder).free
    filler.write_bytes(b"x" * max(0, free - leave))
    return filler


@pytest.mark.parametrize("leave", [0, 8_192, 40_960, 131_072, 180_224])
def test_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path, leave: int) -> None:
    """Full at the start, while trials are stored, or while results are written; after making room --resume finishes."""
    filler = _fill(small_disk, leave)
    study = write_study(tmp_path / "s.toml")
    found = run_cli("run", study, "--out", small_disk / "out", "-q")
    assert found.returncode == 2, found.stderr
    assert "No space left on device" in found.stderr and "Traceback" not in found.stderr
    stored_trials = 0
    if (small_disk / "out" / "study.journal").exists():
        store = open_store("journal", "small", small_disk / "out")
        stored = store.read()
        stored_trials = len(stored.trials) if stored else 0
        store.close()
    filler.unlink()
    found = run_cli("run", study, "--out", small_disk / "out", "-q", "--resume")
    assert found.returncode == 0, found.stderr
    store = open_store("journal", "small", small_disk / "out")
    stored = store.read()
    assert stored is not None and len(stored.trials) >= stored_trials
    store.close()
    small_study().run(out=tmp_path / "whole")
    assert outputs(small_disk / "out") == outputs(tmp_path / "whole")


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, "size=2m")
    try:
        study = write_study(tmp_path / "s.toml")
        assert run_cli("run", study, "--out", folder / "out", "-q").returncode == 0
        before = outputs(folder / "out")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        cases: list[list[str | Path]] = [["--out", folder / "out", "--resume"], ["--out", folder / "new"]]
        for arguments in cases:
            found = run_cli("run", study, "-q", *arguments)
            assert found.returncode == 2
            assert "Read-only file system" in found.stderr and "Traceback" not in found.stderr
        assert outputs(folder / "out") == before
    finally:
        subprocess.run(["umount", str(folder)], check=True)
