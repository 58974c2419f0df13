"""Documentation that runs: every code block of README and docs, every link, every figure of the post."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUN = ("bash", "python", "toml", "json", "yaml")
SHOWN = ("text",)
INSTALL = re.compile(r"python3 -m venv \.venv && \.venv/bin/pip install [^&]*&& ")  # covered by tests/check_wheel.py
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.S | re.M)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, file name if it is one, text, and why it is not run."""

    language: str
    title: str
    text: str
    reason: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        reason = NOT_RUN.search(text[: match.start()].rstrip() + "\n")
        found.append(Block(match.group(1), match.group(2) or "", match.group(3), reason.group(1) if reason else ""))
    return found


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_collector_sees_every_fence() -> None:
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
        assert len(fences) == 2 * len(blocks(page)), _name(page)
        for block in blocks(page):
            assert block.language in (*RUN, *SHOWN), f"{_name(page)}: a block in '{block.language}' is neither run nor text"


def test_blocks_that_are_not_run_say_why() -> None:
    reasons = {(_name(page), block.reason) for page in PAGES for block in blocks(page) if block.reason}
    assert len(reasons) <= 8
    assert all("needs" in reason or "changes" in reason for _, reason in reasons)


def _environment(folder: Path) -> dict[str, str]:
    commands = folder / ".bin"
    commands.mkdir(exist_ok=True)
    for name, call in (("shapefront", "-m shapefront"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        script.chmod(0o755)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    path = f"{commands}:{os.environ['PATH']}"
    return {**os.environ, **threads, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}.", "COLUMNS": "120"}


def _execute(block: Block, folder: Path) -> None:
    if block.title:
        target = folder / block.title
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text)
    if block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        pytest.importorskip("yaml").safe_load(block.text)
    elif block.language in ("bash", "python"):
        text = INSTALL.sub("", block.text).replace(".venv/bin/", "") if block.language == "bash" else block.text
        if re.search(r"^pytest\b", text, re.M):
            return  # the suite that is running
        call = (
            ["bash", "-euo", "pipefail", "-c", text] if block.language == "bash" else [sys.executable, "-W", "error", "-c", text]
        )
        done = subprocess.run(call, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    if "docs/blog" in page.read_text(encoding="utf-8"):
        shutil.copytree(DOCS / "blog", tmp_path / "docs" / "blog")
    if any("plot " in block.text or "figure" in block.text for block in blocks(page)):
        pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'plot')")
    for block in blocks(page):
        if not block.reason:
            _execute(block, tmp_path)


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{_name(page)}: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in _anchors(there), f"{_name(page)}: {target}"


def test_every_command_is_documented() -> None:
    from shapefront.studies.cli import COMMANDS

    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}" not in page and f"`{name}`" not in page] == []


def test_every_export_format_and_picture_is_documented() -> None:
    from shapefront.studies.export import FORMATS
    from shapefront.studies.plot import KINDS

    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert [name for name in FORMATS if name not in page] == []
    assert [name for name in KINDS if f"`{name}`" not in gallery or name not in page] == []


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra 'docs')")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (extra 'docs')")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"""<(?:script|link)[^>]+(?:src|href)=["']https?://(?!127\.)[^"']+\.(?:js|css)""", home)
    errors = (tmp_path / "site" / "cost-model" / "index.html").read_text(encoding="utf-8")
    assert "attention_decode" in errors  # the table of the profile's errors was filled in


def script(name: str) -> ModuleType:
    """A script of docs/blog as a module."""
    spec = importlib.util.spec_from_file_location(f"blog_{name}", DOCS / "blog" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_and_figure_of_the_post_has_a_script() -> None:
    names = {path.stem for path in (DOCS / "blog").glob("*.py")}
    assert names >= {"table1", "table2", *(f"figure{i}" for i in (1, 2, 3, 4, 5, 6, 8, 9))}  # figure 7 is measured accuracy
    page = (DOCS / "blog" / "index.md").read_text(encoding="utf-8")
    assert all(f"docs/blog/{name}.py" in page for name in names)


def test_table_1_is_the_posts() -> None:
    # H = 8192, H' = 28672, multi-head attention, plain FFN: N = 3H, H, H', H and K = H, H, H, H'
    assert [row[2:] for row in script("table1").rows(script("table1").POST)] == [
        [24576, 8192],
        [8192, 8192],
        [28672, 8192],
        [8192, 28672],
    ]


def test_table_2_is_the_posts_within_rounding() -> None:
    for m, math, read, write, *printed, bound in script("table2").rows():
        limit = 0.05 if m == 16384 else 0.006
        for value, shown, allowed in zip((math, read, write), printed, (0.006, 0.006, limit), strict=True):
            assert value == pytest.approx(shown, abs=allowed)
        assert bound == "memory"


def test_figure_1_gains_area() -> None:
    curves, ratio = script("figure1").curves()
    assert [curve.role for curve in curves] == ["design", "reference"] and ratio > 1.05


def test_figure_2_long_context_throughput_is_mostly_attention() -> None:
    share = {(row["context"], row["goal"], row["category"]): row["share"] for row in script("figure2").rows()}
    assert share[131072, "throughput", "attention"] > 0.5
    assert share[131072, "throughput", "attention"] > share[2048, "throughput", "attention"] > share[2048, "latency", "attention"]
    for regime in {key[:2] for key in share}:
        assert sum(value for key, value in share.items() if key[:2] == regime) == pytest.approx(1.0)


def test_figure_3_low_concurrency_lies_left_of_the_ridge() -> None:
    ridge = 15e15 / 8e12  # FLOP/byte of NVFP4 on GB300
    for row in script("figure3").rows():
        assert (row["flop_per_byte"] < ridge / 10) == (row["tokens"] == 16)


def test_figure_4_crosses_80_percent_where_the_post_says() -> None:
    module = script("figure4")
    rows = module.rows()
    assert 3072 < module.threshold(rows, "K") <= 3840
    assert 2560 < module.threshold(rows, "N") <= 3072
    at = {(row["dimension"], row["size"]): row["share"] for row in rows}
    assert at["K", 6144] >= 0.85 and at["N", 6144] >= 0.85


def test_figure_5_has_its_maxima_at_multiples_of_256() -> None:
    module = script("figure5")
    rows = module.rows()
    assert module.maxima(rows) == list(range(2304, 6144, 256))
    rate = {row["n"]: row["flop_per_second"] for row in rows}
    assert all(rate[n + 32] < rate[n] for n in range(2304, 6144, 256))  # a drop just past each
    high = [rate[n] for n in range(2560, 6144, 512)]
    low = [rate[n] for n in range(2304, 6144, 512)]
    assert sum(high) / len(high) > sum(low) / len(low)


def test_figures_6_8_and_9() -> None:
    assert [row["flop_per_second"] / 1e15 for row in script("figure6").rows()] == [2.5, 5.0, 15.0]
    rows = script("figure8").rows()
    assert {row["stage"] for row in rows} == {0, 1} and len(
        {row["chunk"] for row in rows}
    ) == 8  # 65,536 tokens in chunks of 8,192
    depths = script("figure9").rows()
    times = [row["ttft_seconds"] for row in depths]
    assert times == sorted(times, reverse=True) and len(set(times)) == 6


@pytest.mark.parametrize("name", ["table1", "table2", "figure4", "figure6"])
def test_scripts_run_as_programs(name: str, tmp_path: Path) -> None:
    if name.startswith("figure"):
        pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'plot')")
    call = [sys.executable, str(DOCS / "blog" / f"{name}.py")]
    done = subprocess.run(call, cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert (tmp_path / f"{name}.png").exists() == name.startswith("figure")
