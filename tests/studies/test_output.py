"""Tables for people: every line fits the terminal, and no number is broken."""

import io
import json
import os
import subprocess
import sys

import pytest

from shapefront.studies.output import column_blocks, print_table

COLUMNS = ["rank", "id", "what", "tokens/s/GPU at 20", "tokens/s/GPU at 100"]
ROWS = [
    ["1", "a001", "a long sentence about the design that has to wrap somewhere", 18437.1, 13293.6],
    ["2", "a002", "short", 1.5, None],
]


def _lines(monkeypatch: pytest.MonkeyPatch, width: int, columns: list[str], rows: list[list[object]]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    print_table(columns, rows, file=out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_every_line_fits_and_numbers_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = _lines(monkeypatch, width, COLUMNS, ROWS)
    assert max(map(len, lines)) <= width
    assert any("18,437" in line for line in lines) and any("13,294" in line for line in lines)


def test_blocks_repeat_the_leading_columns() -> None:
    # each of the 10 columns of figures takes 6 + 3 characters; rank and id take 4 + 3 and 4 + 3, so 7 figures fit into 80
    columns = ["rank", "id", *(f"n{i}" for i in range(10))]
    blocks = column_blocks(columns, [["1", "a001", *["123456"] * 10]], 80)
    assert blocks == [[0, 1, *range(2, 9)], [0, 1, *range(9, 12)]]


def test_a_table_that_fits_is_one_block_without_a_wrapped_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert column_blocks(COLUMNS, [["1", "a001", "short", "18,437", "13,294"]], 200) == [[0, 1, 2, 3, 4]]
    lines = _lines(monkeypatch, 200, COLUMNS, ROWS)
    assert len(lines) == 6  # rule, heading, rule, two rows, rule


def test_a_table_without_rows_keeps_its_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("tokens/s/GPU at 100" in line for line in _lines(monkeypatch, 200, COLUMNS, []))


def test_rows_that_the_leading_columns_do_not_tell_apart_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ["system", "stack", *(f"figure {i}" for i in range(6))]
    rows: list[list[object]] = [["gb300", "trtllm", *["123,456"] * 6], ["gb300", "trtllm", *["654,321"] * 6]]
    lines = _lines(monkeypatch, 60, columns, rows)
    assert sum(line.startswith(("│ 1 │ gb300", "│  1 │ gb300")) for line in lines) >= 2  # once in every block
    assert not any("#" in line for line in _lines(monkeypatch, 200, columns, rows))  # one block: nothing to number


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_that_is_not_unicode_gets_the_nearest_text(encoding: str) -> None:
    program = "import sys; from shapefront.studies.cli import main; main(sys.argv[1:])"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "120"}
    shown = subprocess.run(
        [sys.executable, "-c", program, "kernel", "gemm", "--m", "8", "--n", "256", "--k", "256"],
        capture_output=True, env=environment, check=False,
    )  # fmt: skip
    text = shown.stdout.decode(encoding)
    assert shown.returncode == 0 and shown.stderr == b""
    assert "total" in text and ("µs" if encoding != "ascii" else " us ") in text
    assert "?" not in text


def test_json_holds_the_same_values_in_every_encoding() -> None:
    program = "from shapefront.studies.output import print_json; print_json({'name': '\u00b5 \u2032 \U0001f600'})"
    for encoding in ("ascii", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        assert json.loads(shown.stdout.decode(encoding)) == {"name": "\u00b5 \u2032 \U0001f600"}
