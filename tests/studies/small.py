"""A small study that prices in about a second, and ways to run the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shapefront.studies import Study
from shapefront.studies.spec_file import to_toml

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ("pareto.csv", "ranked.csv", "result.json", "study.toml")


def small_table(**changes: Any) -> dict[str, Any]:
    """Spec of a dense study with about 90 legal designs; keys of ``changes`` replace whole sections."""
    table: dict[str, Any] = {
        "name": "small",
        "reference": "Llama-3.1-8B",
        "profile": "gb300-blog",
        "layouts": {"gpus": [1, 2]},
        "concurrency": {"low": 1.0, "high": 512.0, "per_octave": 1},
        "dimensions": {
            "hidden_size": {"low": 3072, "high": 4608, "step": 256},
            "intermediate_size": {"low": 8192, "high": 20480, "step": 512},
            "num_hidden_layers": {"low": 24, "high": 52, "step": 1},
            "num_attention_heads": {"low": 24, "high": 40, "step": 4},
            "num_key_value_heads": [4, 8],
        },
        "search": {"trials": 60, "population": 8},
    }
    return table | changes


def small_study(**changes: Any) -> Study:
    """The small study."""
    return Study.from_dict(small_table(**changes))


def write_study(path: Path, **changes: Any) -> Path:
    """The small study as a file."""
    path.write_text(to_toml(small_table(**changes)))
    return path


def environment() -> dict[str, str]:
    """Environment of a child process: this checkout, one thread, coverage of the parent kept."""
    found = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(ROOT), COLUMNS="200")
    found.pop("PYTHONWARNINGS", None)
    return found


def command(*arguments: str | Path) -> list[str]:
    """``shapefront …`` as a list."""
    return [sys.executable, "-m", "shapefront", *map(str, arguments)]


def run_cli(*arguments: str | Path, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment(), check=False
    )


def outputs(folder: Path) -> dict[str, bytes]:
    """The files of a result that must be byte-equal."""
    return {name: (folder / name).read_bytes() for name in OUTPUTS}
