"""Files that are not what they should be: refused at once, in words, and left as they are."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.costmodel.calibration.serving_figures import validate_figures
from shapefront.costmodel.hardware import read_toml
from shapefront.studies import Result
from shapefront.studies.files import OutputError, prepare_results, write_whole
from shapefront.studies.hf_config import read_config
from shapefront.studies.report import report_html
from shapefront.studies.result_file import ResultError
from shapefront.studies.spec import SpecError
from shapefront.studies.spec_file import parse_spec
from shapefront.studies.storage import StorageError, open_store
from shapefront.studies.suggest import suggest
from tests.studies.small import small_study

FOREIGN = {
    "one line, no newline": b'{"name":"mine","values":[1,2,3]}',
    "text, last line open": b"first line\nsecond line",
    "JSON lines of another program": b'{"event":"start"}\n{"event":"st',
    "binary": bytes(range(256)) * 20,
    "a list": b"[1,2,3]",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_another_program_is_no_storage_and_stays(tmp_path: Path, what: str) -> None:
    """What looks like a torn tail is only cut once the lines before it are known to be ours."""
    path = tmp_path / "mine.jsonl"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(StorageError, match=r"is not a shapefront journal|is damaged"):
        open_store(str(path), "s")
    assert path.read_bytes() == FOREIGN[what]


def test_a_first_line_that_was_cut_short_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    path.write_bytes(b'{"op_code":0,"worker')
    with closing(open_store("journal", "s", tmp_path)) as store:
        assert store.read() is None and store.repaired_bytes == 20


def test_a_pipe_a_device_and_an_endless_line_are_no_storage(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.journal")
    (tmp_path / "zero.journal").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(StorageError, match="not a plain file"):
            open_store(str(tmp_path / f"{name}.journal"), "s")
    with open(tmp_path / "sparse.journal", "wb") as file:
        file.truncate(10**10)  # sparse: costs nothing to make, and must cost nothing to refuse
    with pytest.raises(StorageError, match="is not a shapefront journal"):
        open_store(str(tmp_path / "sparse.journal"), "s")
    assert (tmp_path / "sparse.journal").stat().st_size == 10**10


def test_a_run_replaces_nothing_of_the_users(tmp_path: Path) -> None:
    """``--out .`` in a project that has a folder ``configs`` or a ``study.toml`` of its own."""
    (tmp_path / "a" / "configs" / "mine").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "study.toml").write_text("# mine")
    for name in ("a", "b"):
        with pytest.raises(OutputError, match="no run wrote it"):
            prepare_results(tmp_path / name)
    (tmp_path / "c" / "configs" / "rank-01").mkdir(parents=True)
    for name in ("study.toml", "run.log"):
        (tmp_path / "c" / name).write_text("")
    prepare_results(tmp_path / "c")  # what an earlier run left is replaced


def test_a_storage_that_cannot_be_used_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match="cannot be read"):
        small_study().run(out=tmp_path / "out", storage=str(tmp_path / "other.db"))
    assert not (tmp_path / "out").exists()


def test_a_pipe_is_no_result(tmp_path: Path) -> None:
    """Reading one would wait for a writer for ever."""
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(ResultError, match="not a plain file"):
        Result.load(tmp_path)


def test_figures_need_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidValueError, match="column 'id' is missing"):
        validate_figures(path)
    with open(path, "wb") as file:
        file.truncate(10**10)
    with pytest.raises(InvalidValueError, match="more than"):
        validate_figures(path)


@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim"])
def test_no_model_has_zero_heads(tmp_path: Path, name: str) -> None:
    """0 is our word for 'derived'; in a Hugging Face config it is a mistake."""
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "vocab_size": 128256, name: 0}
    (tmp_path / "c.json").write_text(json.dumps(config))
    with pytest.raises(InvalidValueError, match=f"{name} must be at least 1, got 0"):
        read_config(tmp_path / "c.json")


def test_a_deep_dotted_key_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """The parser needs time that grows with the square of the depth: 40 kB of 'a.a.a' took seconds."""
    path = tmp_path / "deep.toml"
    path.write_text("a." * 20_000 + "b = 1\n")
    with pytest.raises(InvalidValueError, match="nested deeper than"):
        read_toml(path)
    path.write_text(f"x = [\n{', '.join(['0.5'] * 200)}\n]\ny = '{'.' * 200}'\n")
    assert len(read_toml(path)["x"]) == 200  # dots of numbers and of text are no depth


def test_of_many_errors_five_are_shown() -> None:
    with pytest.raises(SpecError, match=r"… and at least \d+ more") as found:
        parse_spec({f"key_{i}": i for i in range(5000)}, "mine.toml")
    assert len(str(found.value).splitlines()) == 6


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("nan"), float("inf")])
def test_training_tokens_have_bounds(tokens: float) -> None:
    with pytest.raises(InvalidValueError, match="train_tokens must be above"):
        suggest("8B", train_tokens=tokens, profile="ideal", with_review=False)


def test_a_width_of_zero_cannot_be_pinned() -> None:
    with pytest.raises(InvalidValueError, match="a pinned hidden_size must be at least 1"):
        suggest("8B", fix={"hidden_size": 0}, profile="ideal")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of nested data, the first two items of each list."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def test_a_damaged_result_is_refused_or_shown_whole(tmp_path: Path) -> None:
    """One key of result.json removed or replaced at a time: what the reader lets through, page, table and picture can show."""
    small_study(search={"trials": 8, "population": 4, "polish": False}).run(out=tmp_path)
    healthy = json.loads((tmp_path / "result.json").read_text())
    dice = random.Random(1)
    for path in dice.sample(list(_paths({key: item for key, item in healthy.items() if key != "spec"})), 150):
        data = copy.deepcopy(healthy)
        place = data
        for key in path[:-1]:
            place = place[key]
        if dice.random() < 0.4:
            del place[path[-1]]
        else:
            place[path[-1]] = dice.choice([None, True, -1, 1e308, "x", "<b>", [], [[]], {}, {"a": 1}])
        (tmp_path / "result.json").write_text(json.dumps(data))
        with suppress(ResultError):
            result = Result.load(tmp_path)
            report_html(result, guidelines=False)
            result.ranked_csv()
            result.pareto_csv()
            plt.close(result.plot().figure)


def test_a_device_or_a_folder_is_never_replaced(tmp_path: Path) -> None:
    """Writing aside and renaming would turn /dev/stdout into a file where the user may do that."""
    (tmp_path / "stdout").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("stdout", "pipe", "folder"):
        with pytest.raises(OutputError, match="is not a plain file, so it is not replaced"):
            write_whole(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe", "stdout"]
    assert (tmp_path / "stdout").is_symlink()
