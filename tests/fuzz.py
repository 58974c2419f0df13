"""Malformed specs, results and storages: each must give a clear error or a correct reading.

``python -m tests.fuzz --cases 10000`` prints a dated report; the test suite runs a slice of the same cases.
Watched in process: no exception that is not ours, no case above two seconds, no file outside the case's folder, no
process started, nothing unpickled.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import platform
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shapefront.costmodel import ShapefrontError
from shapefront.studies import Result, Study
from shapefront.studies.spec_file import to_toml
from shapefront.studies.storage import open_store
from tests.studies.small import small_study, small_table

LIMIT_SECONDS = 2.0  # of processor time, so that a busy machine is no failure
WALL_SECONDS = 10.0  # a hang that burns nothing
FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.spawn", "os.posix_spawn", "pickle.find_class", "os.fork")
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, -(10**30), 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "30X", "1e400", "../../etc/passwd",
    "a" * 5000, "é\u0000☃", "os:system", "__import__('os')", [], [[]], [1, 2], ["a"], {}, {"a": 1}, {"low": 1, "high": 2}, {"low": 5, "high": 1, "step": 0},
    [{}], datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip


@dataclass
class Report:
    """What the cases did."""

    cases: int = 0
    errors: int = 0
    readings: int = 0
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


class Watch:
    """An audit hook that notes what reading data must never do."""

    def __init__(self) -> None:
        self.active: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active is None:
            return
        if event.startswith(FORBIDDEN):
            self.seen.append(f"{event} {arguments!r:.100}")
        elif event == "open" and isinstance(arguments[1], str) and any(flag in arguments[1] for flag in "wax+"):
            path = arguments[0]
            if (
                isinstance(path, str | bytes)
                and not str(path).startswith((str(self.active), "/dev/null"))
                and "__pycache__" not in str(path)
            ):
                self.seen.append(f"write to {path!r:.100}")

    @contextlib.contextmanager
    def on(self, folder: Path) -> Iterator[list[str]]:
        """Watch while the block runs."""
        self.active, self.seen = folder, []
        try:
            yield self.seen
        finally:
            self.active = None


def mutate(dice: random.Random, value: Any, depth: int = 0) -> Any:
    """A copy of nested data with one random change somewhere."""
    value = copy.deepcopy(value)
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        action = dice.random()
        if action < 0.55:
            value[key] = mutate(dice, value[key], depth + 1)
        elif action < 0.7:
            del value[key]
        elif action < 0.85:
            value[dice.choice((key[:-1] + "x", key + "s", "unknown", key.upper()))] = dice.choice(ODD)
        else:
            value[key] = dice.choice(ODD)
        return value
    if isinstance(value, list) and value and dice.random() < 0.7:
        index = dice.randrange(len(value))
        value[index] = mutate(dice, value[index], depth + 1)
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and dice.random() < 0.5:
        return dice.choice((value + 1, -value, value * 1000, value / 3 if value else 1, str(value)))
    return dice.choice(ODD)


def damage(dice: random.Random, data: bytes) -> bytes:
    """Bytes with a random cut, flip, repeat or insertion."""
    raw = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(raw)) if raw else 0
        action = dice.randrange(6)
        if action == 0:
            raw = raw[:at]
        elif action == 1 and raw:
            raw[at] = dice.randrange(256)
        elif action == 2:
            raw[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 7, 64))))
        elif action == 3:
            del raw[at : at + dice.choice((1, 10, 100, 5000))]
        elif action == 4:
            raw[at:at] = raw[at : at + dice.choice((20, 400))]
        else:
            raw[at:at] = dice.choice(
                (b"\n", b"{", b"}", b"[" * 3000, b"\x00", b'"', b"= ", b"9" * 5000, b"null", b"NaN", b"1e999")
            )
    return bytes(raw)


def toml_text(table: Any) -> str:
    """TOML of a mutated table, or of something near to TOML where it has none."""
    try:
        return to_toml(table)
    except Exception:
        return "\n".join(f"{key} = {value!r}" for key, value in table.items()) if isinstance(table, dict) else repr(table)


class Corpus:
    """Healthy originals to be damaged, made once."""

    def __init__(self, folder: Path) -> None:
        self.spec = small_table(
            title="t", rules={"alignment": 128, "bands": "p10-p90"}, families=[{"name": "one", "dimensions": {"head_dim": 128}, "formats": {"kv": "fp8"}}],
            user=[{"name": "mine", "entry": "os:system", "timeout_seconds": 1.0}], budget={"total_params": "8B"}, workload={"input_tokens": 100},
        )  # fmt: skip
        study = small_study(search={"trials": 12, "population": 4, "polish": False})
        result = study.run(out=folder / "journal")
        study.run(out=folder / "sqlite", storage="sqlite")
        self.result: dict[str, Any] = json.loads(json.dumps(result.data, default=float))
        self.journal = (folder / "journal" / "study.journal").read_bytes()
        self.sqlite = (folder / "sqlite" / "study.db").read_bytes()


def read_spec(path: Path) -> None:
    """Read a study and build its problem."""
    Study.load(path).problem()


def read_result(path: Path) -> None:
    """Read a result and everything in it."""
    result = Result.load(path)
    result.ranked_csv()
    result.pareto_csv()
    for row in result.architectures:
        result.architecture(row["architecture_id"])


def read_storage(path: Path) -> None:
    """Read a stored study."""
    store = open_store(str(path), "small")
    try:
        stored = store.read()
        if stored is not None:
            [trial.params for trial in stored.trials]
    finally:
        store.close()


def cases(dice: random.Random, corpus: Corpus) -> Iterator[tuple[str, str, bytes, Callable[[Path], None]]]:
    """Endless malformed files: (kind, file name, bytes, reader)."""
    while True:
        kind = dice.choice(("spec", "spec-text", "result", "result-text", "journal", "journal-lines", "sqlite"))
        if kind == "spec":
            yield kind, "case.toml", toml_text(mutate(dice, corpus.spec)).encode("utf-8", "surrogatepass"), read_spec
        elif kind == "spec-text":
            yield kind, "case.toml", damage(dice, to_toml(corpus.spec).encode()), read_spec
        elif kind == "result":
            changed = mutate(dice, corpus.result)
            yield kind, "result.json", json.dumps(changed, default=str).encode(), read_result
        elif kind == "result-text":
            yield kind, "result.json", damage(dice, json.dumps(corpus.result).encode()), read_result
        elif kind == "journal":
            yield kind, "case.journal", damage(dice, corpus.journal), read_storage
        elif kind == "journal-lines":
            lines = [json.loads(line) for line in corpus.journal.splitlines()]
            at = dice.randrange(len(lines))
            lines[at] = mutate(dice, lines[at])
            yield kind, "case.journal", b"".join(json.dumps(line, default=str).encode() + b"\n" for line in lines), read_storage
        else:
            yield kind, "case.db", damage(dice, corpus.sqlite), read_storage


def fuzz(count: int, *, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Report:
    """Run ``count`` cases in process."""
    dice, report, watch = random.Random(seed), Report(), Watch()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        folder = Path(name)
        corpus = Corpus(folder)
        box = folder / "box"
        for kind, file, data, reader in cases(dice, corpus):
            if report.cases == count:
                break
            report.cases += 1
            report.kinds[kind] += 1
            box.mkdir()
            path = box / file
            path.write_bytes(data)
            before = {p.name for p in box.iterdir()}
            started, wall = time.process_time(), time.perf_counter()
            outcome = ""
            with watch.on(box) as seen:
                try:
                    reader(path)
                    report.readings += 1
                except ShapefrontError as error:
                    report.errors += 1
                    if not str(error).strip() or len(str(error)) > 20_000:
                        outcome = f"unclear message ({len(str(error))} characters)"
                except BaseException as error:
                    outcome = f"{type(error).__name__}: {error!s:.200}"
            took, wall = time.process_time() - started, time.perf_counter() - wall
            report.slowest = max(report.slowest, took)
            extra = {p.name for p in box.iterdir()} - before - {"case.db-journal"}
            for problem in [
                outcome,
                *seen[:1],
                f"took {took:.1f} s, {wall:.1f} s of wall" if took > LIMIT_SECONDS or wall > WALL_SECONDS else "",
                f"left {extra}" if extra else "",
            ]:
                if problem:
                    report.failures.append(f"case {report.cases} ({kind}): {problem}")
                    say(report.failures[-1])
            for left in box.iterdir():
                left.unlink()
            box.rmdir()
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    report = fuzz(options.cases, seed=options.seed, say=print)
    print(
        f"{datetime.now(UTC).date()} {platform.system()} {platform.machine()}: {report.cases} cases in {time.monotonic() - started:.0f} s "
        f"({', '.join(f'{kind} {n}' for kind, n in sorted(report.kinds.items()))}): {report.errors} clear errors, {report.readings} readings, "
        f"{len(report.failures)} failures; slowest {report.slowest:.2f} s"
    )
    if report.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
