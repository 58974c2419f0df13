"""The command line: light help, clear errors, exit codes, JSON."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shapefront.studies.cli import COMMANDS
from tests.studies.small import environment, run_cli

HEAVY = ("numpy", "optuna", "pandas", "scipy", "matplotlib")


def _modules(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    return set(found.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import shapefront",
        "import shapefront.studies.cli",
        "from shapefront.studies.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_help_and_import_are_light(code: str) -> None:
    modules = _modules(code)
    assert not modules & set(HEAVY)
    assert not any(name.startswith("shapefront.studies.commands.") for name in modules)


def _user_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_costs_less_than_0_3_seconds_above_python() -> None:
    help_ = "from shapefront.studies.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    bare = min(_user_seconds("pass") for _ in range(3))
    assert min(_user_seconds(help_) for _ in range(3)) - bare < 0.3
    assert min(_user_seconds("import shapefront") for _ in range(3)) - bare < 0.3


def test_help_names_every_command() -> None:
    text = run_cli("--help").stdout
    for name, (_, line, _) in COMMANDS.items():
        assert name in text
        assert line.split()[0] in text


def test_version() -> None:
    assert run_cli("--version").stdout.startswith("shapefront ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hardware", "gb30"], "did you mean 'gb300'"),
        (["profiles", "idea"], "did you mean 'ideal'"),
        (["run", "moe-30b-a3"], "did you mean 'moe-30b-a3b'"),
        (["run", "../../etc/passwd"], "must end in .toml"),
        (["studies", "no-such.toml"], "no such file"),
        (["kernel", "gemm", "--m", "0", "--n", "8", "--k", "8"], "m"),
        (["kernel", "gemm", "--m", "8", "--n", "8", "--k", "8", "--tile", "1,2"], "256,128,2,4"),
        (["run", "dense-8b", "--trials", "0"], "search.trials"),
        (["run", "dense-8b", "--trials", "-5"], "search.trials"),
        (["run", "dense-8b", "--seed", "-1"], "search.seed"),
        (["run", "dense-8b", "--engine", "magic"], "search.engine"),
        (["run", "dense-8b", "--workers", "0"], "workers must be between"),
        (["run", "dense-8b", "--resume", "--overwrite"], "give one of them"),
        (["run", "dense-8b", "--resume", "--storage", "memory"], "needs a storage that lasts"),
        (["run", "dense-8b", "--storage", "mysql://me:secret@host/db"], "unknown storage"),
        (["run", "dense-8b", "--dask", "localhost:1"], "tcp://"),
        (["worker", "--storage", "sqlite:///x.db", "--study", "a"], "PostgreSQL"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    found = run_cli(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert "secret" not in found.stderr
    assert found.stdout == ""
    assert not list(tmp_path.iterdir())


def test_an_unknown_command_is_refused() -> None:
    found = run_cli("optimise")
    assert found.returncode == 2
    assert "No such command" in found.stderr


def test_kernel_reproduces_table_2_of_the_post() -> None:
    # Table 2 (co-design post): M = 256, N = 8192, K = 512: math 0.14, read 0.30, write 0.26 µs
    arguments = "kernel gemm --m 256 --n 8192 --k 512 --a nvfp4 --b nvfp4 --c fp8 --profile ideal --json".split()
    found = json.loads(run_cli(*arguments).stdout)
    for key, microseconds in (("math_seconds", 0.14), ("read_seconds", 0.30), ("write_seconds", 0.26)):
        assert found[key] * 1e6 == pytest.approx(microseconds, abs=0.006)
    assert found["flop"] == 2 * 256 * 8192 * 512
    assert set(found) >= {"read_bytes", "write_bytes", "seconds", "bound"}


def test_lists_are_json() -> None:
    assert {row["name"] for row in json.loads(run_cli("studies", "--json").stdout)} >= {"dense-8b", "moe-30b-a3b", "moe-open"}
    assert json.loads(run_cli("studies", "--schema").stdout)["properties"]["budget"]
    gpu = json.loads(run_cli("hardware", "gb300", "--json").stdout)
    assert gpu["quantities"]["nvfp4_flop_per_second"]["value"] == 15e15
    assert {row["name"] for row in json.loads(run_cli("profiles", "--json").stdout)} >= {"ideal", "gb300-blog"}


def test_every_line_of_a_kernel_has_its_unit() -> None:
    arguments = "kernel gemm --m 256 --n 8192 --k 512 --a nvfp4 --b nvfp4 --c fp8 --profile ideal".split()
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in run_cli(*arguments).stdout.splitlines() if "│" in line
    ]
    shown = {(name, unit): value for name, value, unit in lines}
    assert shown["flop", "FLOP"] == "2,147,483,648"  # 2·256·8192·512
    assert shown["data written", "bytes"] == "2,097,152"  # 256·8192 values of one byte
    assert shown["write", "µs"] == "0.2621"  # 2,097,152 B at 8 TB/s
    # read 0.3041 + write 0.2621 = 0.5663 µs: 2.147 GFLOP in it are 3,792 TFLOP/s, and memory runs at its 8 TB/s
    assert shown["total", "µs"] == "0.5663" and shown["achieved", "TFLOP/s"] == "3,792" and shown["achieved", "GB/s"] == "8,000"
    assert {name for name, unit in shown if not unit} == {"bound"}


def test_kernels_print_for_people() -> None:
    assert "total" in run_cli("kernel", "attention", "--heads", "32", "--kv-heads", "8").stdout
    assert "total" in run_cli("kernel", "collective", "all-reduce", "--bytes", "1e6", "--ranks", "4").stdout
    moe = "kernel moe --tokens 64 --hidden-size 2048 --moe-intermediate-size 768 --num-experts 128 --top-k 8".split()
    assert "total" in run_cli(*moe).stdout
