"""Kill runs at random moments with SIGKILL, resume them, and compare with an uninterrupted run.

``python -m tests.chaos --kills 30`` prints a dated report; the test suite runs a few kills of the same loop.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.studies.small import command, environment, outputs, run_cli, small_table, write_study

USER_CODE = """
import time
def score(architecture, point):
    with open({log!r}, "a") as file:
        file.write(f"{{architecture.hidden_size}},{{architecture.num_hidden_layers}},{{architecture.num_attention_heads}},"
                   f"{{architecture.num_key_value_heads}},{{architecture.intermediate_size}}\\n")
    time.sleep(0.02)
    return architecture.num_hidden_layers / architecture.hidden_size
"""
START_SECONDS = 60.0
KILLS_PER_RUN = 4  # then the run may finish and be compared


@dataclass
class Report:
    """What the kills did."""

    kills: int = 0
    runs: int = 0
    lost_trials: int = 0
    corrupt_files: int = 0
    unequal_results: int = 0
    repeated_calls: int = 0
    moments: list[int] = field(default_factory=list)  # trials stored when the kill came

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing corrupt, every final result equal."""
        return self.lost_trials == self.corrupt_files == self.unequal_results == 0


def stored_lines(journal: Path) -> list[str]:
    """Whole lines of a journal that record trials (a last line cut short by the kill is not a stored trial)."""
    if not journal.exists():
        return []
    lines = journal.read_bytes().split(b"\n")[:-1]
    return [line.decode() for line in lines if json.loads(line).get("op_code") == 4]


def whole(folder: Path) -> int:
    """How many result files are there but not whole."""
    bad = 0
    for name in ("pareto.csv", "ranked.csv", "study.toml", "result.json"):
        path = folder / name
        if path.exists():
            text = path.read_text()
            bad += not text.endswith("\n")
            if name == "result.json":
                try:
                    json.loads(text)
                except ValueError:
                    bad += 1
    return bad


def _start(arguments: list[Any], journal: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a run and wait until it is past its imports (the run log is written just before the search)."""
    before = log.stat().st_size if log.exists() else 0
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.stat().st_size > before:
            break
        time.sleep(0.01)
    return process


def _wait_for_moment(
    process: subprocess.Popen[bytes], journal: Path, dice: random.Random, size: int, length: float
) -> int | None:
    """Wait for a random moment: a size the journal grows to (while the search writes), or a time (any phase).

    Returns:
        The exit code where the run ended first, else None.
    """
    now = journal.stat().st_size if journal.exists() else 0
    if now < size and dice.random() < 0.8:
        target, deadline = dice.uniform(now, size), time.monotonic() + length
        while process.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.stat().st_size >= target:
                return None
            time.sleep(0.0005)
        return process.poll()
    try:
        return process.wait(timeout=dice.uniform(0.0, length * 0.7))
    except subprocess.TimeoutExpired:
        return None


def chaos(
    work: Path, *, kills: int, seed: int = 1, workers: int = 1, user: bool = False, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Kill and resume until ``kills`` kills hit a living run.

    Args:
        work: an empty folder.
        kills: SIGKILLs that must hit.
        seed: of the moments.
        workers: local processes of each run.
        user: with a user function, whose calls are counted.
        say: told of each kill.
    """
    dice, report = random.Random(seed), Report()
    dimensions = small_table()["dimensions"] | {"intermediate_size": {"low": 8192, "high": 20480, "step": 128}}
    changes: dict[str, Any] = {"dimensions": dimensions, "search": {"trials": 240, "population": 6}}
    calls = work / "calls.txt"
    extra: list[str] = []
    if user:
        (work / "chaos_user.py").write_text(USER_CODE.format(log=str(calls)))
        changes |= {
            "user": [{"name": "mine", "entry": "chaos_user:score"}],
            "search": {"trials": 80, "population": 6, "polish": False},
        }
        extra = ["--allow-code"]
    study = write_study(work / "chaos.toml", **changes)
    arguments: list[Any] = ["run", study, "--quiet", "--workers", str(workers), *extra]
    started = time.monotonic()
    whole_run = run_cli(*arguments, "--out", work / "whole")
    assert whole_run.returncode == 0, whole_run.stderr
    expected, length = outputs(work / "whole"), time.monotonic() - started
    size = (work / "whole" / "study.journal").stat().st_size
    distinct = len(set(calls.read_text().split())) if user else 0
    while report.kills < kills:
        folder = work / f"killed-{report.runs}"
        report.runs += 1
        calls.unlink(missing_ok=True)
        hit = 0
        while True:
            before = stored_lines(folder / "study.journal")
            process = _start([*arguments, "--out", folder, "--resume"], folder / "study.journal", folder / "run.log")
            if report.kills >= kills or hit >= KILLS_PER_RUN:
                code: int | None = process.wait()
            else:
                code = _wait_for_moment(process, folder / "study.journal", dice, size, length)
            if code is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                report.kills += 1
                hit += 1
                after = stored_lines(folder / "study.journal")
                report.lost_trials += after[: len(before)] != before
                report.corrupt_files += whole(folder)
                report.moments.append(len(after))
                say(f"kill {report.kills:3d}: run {report.runs}, {len(after):3d} trials stored")
                continue
            if code != 0:
                raise AssertionError(
                    f"a resumed run ended with {code}: {run_cli(*arguments, '--out', folder, '--resume').stderr}"
                )
            break
        after = stored_lines(folder / "study.journal")
        report.lost_trials += len(after) != len(stored_lines(work / "whole" / "study.journal"))
        found = outputs(folder)
        report.unequal_results += found != expected
        if user:
            report.repeated_calls += max(0, len(calls.read_text().split()) - distinct - hit * workers)
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--user", action="store_true", help="with a user function")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(
            Path(folder), kills=options.kills, seed=options.seed, workers=options.workers, user=options.user, say=print
        )
    print(
        f"{datetime.now(UTC).date()} {platform.system()} {platform.machine()}: {report.kills} kills over {report.runs} runs in "
        f"{time.monotonic() - started:.0f} s; completed trials lost {report.lost_trials}, corrupt files {report.corrupt_files}, "
        f"final results that differ {report.unequal_results}, calls of user functions repeated beyond those killed {report.repeated_calls}"
    )
    if not report.clean:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
