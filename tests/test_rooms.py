"""The house rules: imports point one way, the package imports light, the rooms refuse to be packages."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("costmodel", "constraints", "search", "studies")
HEAVY = ("optuna", "pandas", "scipy", "matplotlib")


def targets(path: Path, room: str) -> set[str]:
    """Rooms that a file imports, resolved from its relative imports."""
    depth = len(path.relative_to(ROOT / room).parts)  # 1 for a file directly in the room
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shapefront."):
            found.add(node.module.split(".")[1])
    return found & set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_imports_point_one_way(room: str) -> None:
    allowed = set(ORDER[: ORDER.index(room) + 1])
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    wrong = {str(path.relative_to(ROOT)): targets(path, room) - allowed for path in files}
    assert {path: rooms for path, rooms in wrong.items() if rooms} == {}


def test_costmodel_needs_numpy_only() -> None:
    code = f"import shapefront.costmodel, sys; print([m for m in {(*HEAVY, 'pydantic', 'typer')} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["-c", "import shapefront"], ["-m", "shapefront", "--help"]])
def test_light_start(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert loaded.isdisjoint(HEAVY)


def test_a_room_is_not_a_package() -> None:
    for room in ORDER:
        done = subprocess.run(
            [sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode and f"import shapefront.{room}" in done.stderr


def test_entry_points_stand_at_the_cost_model_itself() -> None:
    """The names others build on (README): functions, although modules are called `decode` and `prefill` too."""
    code = (
        "from shapefront.costmodel import (all_reduce_seconds, all_to_all_seconds, attention_decode_seconds,"
        " attention_prefill_seconds, decode, frontier, gemm_seconds, moe_seconds, prefill)\n"
        "from shapefront.costmodel.decode import price_decode\n"
        "from shapefront.costmodel import decode as again\n"
        "print(callable(again) and again is decode and callable(prefill))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "True"
