"""The page on user functions: its example as a user copies it, and what the page says a function is told."""

from __future__ import annotations

import json
from pathlib import Path

from tests.studies.small import ROOT, run_cli
from tests.studies.test_docs import blocks

PAGE = ROOT / "docs" / "how-to" / "own-objective.md"


def copy_example(folder: Path) -> None:
    """Every file of the page, written into ``folder``."""
    for block in blocks(PAGE):
        if block.title:
            (folder / block.title).write_text(block.text)


def test_the_example_of_the_page_has_legal_designs_with_its_values(tmp_path: Path) -> None:
    copy_example(tmp_path)
    found = run_cli("run", "my-objective.toml", "--trials", "4", "--allow-code", "--out", "out", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["legal_trials"] > 0 and result["architectures"]
    for row in result["architectures"]:
        assert row["num_hidden_layers"] <= 40  # the page's constraint
        best = max(p["tokens_per_second_per_gpu"] for p in row["at_rates"] if p["rate"] in (50, 100))  # the page's objective
        assert abs(row["objectives"]["tokens_per_dollar"] / (best * 3600 / 3.0) - 1) < 1e-9


def test_the_page_names_everything_a_function_is_told(tmp_path: Path) -> None:
    copy_example(tmp_path)
    (tmp_path / "cost_per_token.py").write_text(
        "import json\n"
        "def tokens_per_dollar(architecture, point):\n"
        "    with open('told.jsonl', 'a') as file:\n"
        "        file.write(json.dumps(point) + '\\n')\n"
        "    return float(architecture.num_hidden_layers)\n"
        "def shallow_enough(architecture, point):\n"
        "    return 0.0\n"
    )
    found = run_cli("run", "my-objective.toml", "--trials", "1", "--allow-code", "--out", "out", "--quiet", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    told = json.loads((tmp_path / "told.jsonl").read_text().splitlines()[0])
    text = PAGE.read_text()
    points = told["operating_points"]
    assert [p["tokens_per_second_per_user"] for p in points] == [20.0, 50.0, 100.0]  # as the page says
    for key in [*told, *points[0], *points[0]["layout"]]:
        assert f"`{key}`" in text, key
