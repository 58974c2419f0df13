"""Running studies: same seed same bytes, fronts by brute force, exact resume, clean stops, nothing half-written."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.search.exhaustive import exhaust
from shapefront.search.outcome import Progress
from shapefront.search.space import NothingLegalError
from shapefront.studies import Result, Study
from shapefront.studies.evaluators import LocalEngine, StudyEvaluator
from shapefront.studies.interrupts import Interrupts
from shapefront.studies.problem import build_problem
from shapefront.studies.progress import JsonLines, speed
from shapefront.studies.record import TrialRecorder
from shapefront.studies.result import JSON_KEYS, ResultError
from shapefront.studies.storage import StorageError, open_store
from shapefront.studies.workers import ProcessEngine
from tests.studies.small import command, environment, outputs, run_cli, small_study, small_table, write_study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One finished run of the small study."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    return folder, small_study().run(out=folder)


def test_everything_is_written(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "pareto.csv",
        "ranked.csv",
        "result.json",
        "study.toml",
        "run.log",
        "frontier.png",
        "configs",
        "study.journal",
    }
    assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")
    for row in result.ranked_rows:
        config = json.loads((folder / "configs" / f"rank-{row['rank']:02d}" / "config.json").read_text())
        assert config["hidden_size"] == row["hidden_size"]
    assert not [name for name in names if name.startswith(".writing")]


def test_same_seed_same_bytes(finished: tuple[Path, Result], tmp_path: Path) -> None:
    small_study().run(out=tmp_path / "again")
    assert outputs(tmp_path / "again") == outputs(finished[0])


def test_the_study_file_written_runs_the_same_study(finished: tuple[Path, Result], tmp_path: Path) -> None:
    Study.load(finished[0] / "study.toml").run(out=tmp_path / "again")
    assert outputs(tmp_path / "again") == outputs(finished[0])


@pytest.mark.parametrize("storage", ["sqlite", "memory"])
def test_the_storage_does_not_change_the_result(finished: tuple[Path, Result], tmp_path: Path, storage: str) -> None:
    small_study().run(out=tmp_path / "x", storage=storage)
    assert outputs(tmp_path / "x") == outputs(finished[0])


def test_two_workers_give_the_same_bytes(finished: tuple[Path, Result], tmp_path: Path) -> None:
    small_study().run(out=tmp_path / "x", workers=2)
    assert outputs(tmp_path / "x") == outputs(finished[0])


def _dominated(values: np.ndarray[Any, Any], point: np.ndarray[Any, Any]) -> bool:
    return bool(np.any(np.all(values >= point, axis=1) & np.any(values > point, axis=1)))


def test_fronts_are_non_dominated_and_equal_best_trials(finished: tuple[Path, Result]) -> None:
    """Brute force over every stored trial; ``best_trials`` of the stored study is the open front."""
    folder, result = finished
    with_store = open_store("journal", "small", folder)
    study = with_store.study()
    trials = [t for t in study.trials if all(value <= 0 for value in t.constraints.values())]
    values = np.array([t.values for t in trials])
    shapes = [tuple(sorted(t.params.items())) for t in trials]
    best = {tuple(sorted(t.params.items())) for t in study.best_trials}
    with_store.close()
    assert len(trials) >= 0.95 * len(study.trials)
    names = list(trials[0].params)
    rows = {tuple(sorted((n, row[n]) for n in names)): row for row in result.architectures}
    open_front = {shape for shape, value in zip(shapes, values, strict=True) if not _dominated(values, value)}
    assert open_front == best == {shape for shape, row in rows.items() if "open" in row["fronts"]}
    equal = np.array([t.user_attrs["equal_quality"] for t in trials])
    equal_front = {s for s, v, e in zip(shapes, values, equal, strict=True) if e and not _dominated(values[equal], v)}
    assert equal_front == {shape for shape, row in rows.items() if "equal_quality" in row["fronts"]}


def test_every_design_keeps_the_rules(finished: tuple[Path, Result]) -> None:
    _, result = finished
    for row in result.architectures:
        assert row["hidden_size"] % 128 == row["intermediate_size"] % 128 == 0
        assert abs(row["total_params"] / result.reference["total_params"] - 1) <= 0.01
        assert row["delta_loss_shape"] <= 0.010
        assert row["equal_quality"] == (not row["gives_up"])
    ranks = [row["rank"] for row in result.ranked_rows]
    assert ranks == list(range(1, len(ranks) + 1))
    marks = [row["equal_quality"] for row in result.ranked_rows]
    assert marks == sorted(marks, reverse=True)


def test_points_at_the_rates_obey_littles_law(finished: tuple[Path, Result]) -> None:
    """Sequences in flight = tokens/s/GPU x GPUs x seconds a token; every user gets at least the rate asked for."""
    for row in [*finished[1].architectures, *finished[1].data["runners_up"], finished[1].reference]:
        for point in row["at_rates"]:
            assert point["concurrency"] == pytest.approx(
                point["tokens_per_second_per_gpu"] * point["gpus"] * point["itl_seconds"]
            )
            assert point["tokens_per_second_per_user"] >= point["rate"] * (1 - 1e-9)


def test_a_disaggregated_study_counts_the_prefill_gpus(finished: tuple[Path, Result]) -> None:
    """The same points cost more GPUs: less per GPU than Little's law gives for the decode pool alone."""
    result = small_study(serving={"mode": "disaggregated"}).run()
    for row in result.architectures:
        for point in row["at_rates"]:
            decode_only = point["concurrency"] / (point["gpus"] * point["itl_seconds"])
            assert 0 < point["tokens_per_second_per_gpu"] < decode_only


def test_the_open_points_are_the_envelope_of_the_designs_frontiers(finished: tuple[Path, Result]) -> None:
    result = finished[1]
    opened = [p for p in result.data["pareto"] if p["front"] == "open"]
    rates = [p["tokens_per_second_per_user"] for p in opened]
    throughput = [p["tokens_per_second_per_gpu"] for p in opened]
    assert opened and rates == sorted(rates) and throughput == sorted(throughput, reverse=True)
    for point in result.data["pareto"]:
        frontier = result.row(point["architecture_id"])["frontier"]
        assert any(p["concurrency"] == point["concurrency"] and p["itl_seconds"] == point["itl_seconds"] for p in frontier)


def test_pareto_csv_holds_every_equal_quality_design_with_its_layouts(finished: tuple[Path, Result]) -> None:
    """The headline must not be missing: each equal-quality row of ranked.csv has its own frontier here, in rank order."""
    folder, result = finished
    rows = list(csv.DictReader((folder / "pareto.csv").read_text().splitlines()))
    equal = [r["architecture_id"] for r in result.ranked_rows if r["equal_quality"]]
    own = [row for row in rows if row["front"] == "equal_quality"]
    assert equal and list(dict.fromkeys(row["architecture_id"] for row in own)) == equal
    for name in equal:
        mine = [float(row["tokens_per_second_per_gpu"]) for row in own if row["architecture_id"] == name]
        assert mine == [p["tokens_per_second_per_gpu"] for p in result.row(name)["frontier"]]
    assert all(int(row["gpus"]) >= 1 and int(row["tpa"]) >= 1 for row in rows)


def test_a_result_of_before_the_front_column_holds_the_open_envelope(finished: tuple[Path, Result]) -> None:
    result = finished[1]
    points = [{k: v for k, v in p.items() if k != "front"} for p in result.data["pareto"] if p["front"] == "open"]
    old = Result({**result.data, "pareto": points})
    assert set(old.pareto["front"]) == {"open"}


def test_json_has_the_stable_names(finished: tuple[Path, Result]) -> None:
    found = finished[1].to_json()
    assert tuple(found) == JSON_KEYS
    row = found["architectures"][0]
    for name in (
        "architecture_id equal_quality hidden_size intermediate_size moe_intermediate_size shared_expert_intermediate_size num_hidden_layers "
        "first_k_dense_replace num_attention_heads num_key_value_heads head_dim q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim "
        "v_head_dim num_experts num_experts_per_tok n_shared_experts sliding_window vocab_size tie_word_embeddings attention total_params "
        "active_params active_params_with_embedding tokens_per_second_per_gpu tokens_per_second_per_user concurrency ttft_seconds itl_seconds "
        "delta_loss_shape frontier_area kv_bytes_per_token objectives"
    ).split():
        assert name in row


def test_a_result_is_read_back(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    again = Result.load(folder)
    assert again.ranked_csv().encode() == (folder / "ranked.csv").read_bytes()
    assert again.pareto_csv().encode() == (folder / "pareto.csv").read_bytes()
    assert again.architecture("a001") == result.architecture("a001")
    assert again.architecture("a001").total_params == again.row("a001")["total_params"]
    assert list(again.pareto["architecture_id"]) == [p["architecture_id"] for p in again.data["pareto"]]
    assert len(again.frontier("reference")) == len(again.reference["frontier"])
    with pytest.raises(ValueError, match="no architecture 'a999'"):
        again.row("a999")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format": 1}', b'{"format": 99, "architectures": []}', b"[" * 50_000, b'{"format": NaN}']
)
def test_a_damaged_result_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(data)
    with pytest.raises(ResultError, match=r"result\.json"):
        Result.load(path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kinds", "gqa"), "x"),
        (("kinds", "gqa", "attentio= n"), "gqa"),
        (("kinds", "gqa", "norms_per_layer"), "2"),
        (("kinds", "reference"), None),
        (("architectures", 0, "family"), ["gqa"]),
        (("architectures", 0, "hidden_size"), 1.5),
        (("architectures", 0, "frontier"), [1]),
        (("architectures", 0, "at_rates", 0, "rate"), "20"),
        (("reference", "objectives"), []),
        (("runners_up"), 3),
    ],
)
def test_a_result_with_a_damaged_part_is_refused(finished: tuple[Path, Result], tmp_path: Path, path: Any, value: Any) -> None:
    data = json.loads((finished[0] / "result.json").read_text())
    *before, last = path if isinstance(path, tuple) else (path,)
    place = data
    for key in before:
        place = place[key]
    place[last] = value
    (tmp_path / "result.json").write_text(json.dumps(data))
    with pytest.raises(ResultError, match=r"result\.json"):
        Result.load(tmp_path)


class _Stop(Exception):
    pass


def _stop_after(monkeypatch: pytest.MonkeyPatch, generations: int, error: BaseException) -> None:
    """Make the recorder fail after some generations, as a kill between two writes would."""
    real, count = TrialRecorder.__call__, [0]

    def call(self: TrialRecorder, trials: list[Any]) -> None:
        real(self, trials)
        count[0] += 1
        if count[0] == generations:
            raise error

    monkeypatch.setattr(TrialRecorder, "__call__", call)


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_resume_gives_the_bytes_of_an_uninterrupted_run(
    finished: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    _stop_after(monkeypatch, 2, _Stop())
    with pytest.raises(_Stop):
        small_study().run(out=tmp_path, storage=storage)
    monkeypatch.undo()
    with pytest.raises(StorageError, match=r"unfinished study 'small' with .* continue with --resume"):
        small_study().run(out=tmp_path, storage=storage)
    small_study().run(out=tmp_path, storage=storage, resume=True)
    assert outputs(tmp_path) == outputs(finished[0])


def test_resume_of_a_finished_study_replays_it(finished: tuple[Path, Result], tmp_path: Path) -> None:
    small_study().run(out=tmp_path)
    (tmp_path / "pareto.csv").unlink()  # as if the machine died while results were written
    small_study().run(out=tmp_path, resume=True)
    assert outputs(tmp_path) == outputs(finished[0])
    small_study().run(out=tmp_path)  # a finished study may simply be repeated
    assert outputs(tmp_path) == outputs(finished[0])


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"budget": {"tolerance": 0.02}}, {}, r"spec\.budget\.tolerance: 0\.01 → 0\.02"),
        ({}, {"seed": 3}, r"seed: 0 → 3"),
        ({}, {"trials": 61}, r"spec\.search\.trials: 60 → 61"),
        ({"reference": "Qwen3-8B", "budget": {"total_params": 8030261248}}, {}, r'spec\.reference: "Llama-3\.1-8B" → "Qwen3-8B"'),
        ({"profile": "ideal"}, {}, "hash of profile"),
    ],
)
def test_a_changed_study_is_not_resumed(tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    small_study().run(out=tmp_path)
    before = outputs(tmp_path)
    with pytest.raises(StorageError, match=message):
        small_study(**changes).run(out=tmp_path, resume=True, **options)
    assert outputs(tmp_path) == before
    with pytest.raises(StorageError, match="holds a finished study"):
        small_study(**changes).run(out=tmp_path, **options)
    assert small_study(**changes).run(out=tmp_path, overwrite=True, **options).data["study"] == "small"


def test_stored_trials_that_were_changed_are_noticed(tmp_path: Path) -> None:
    small_study().run(out=tmp_path)
    path = tmp_path / "study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"values":[' in line)
    log = json.loads(lines[at])
    log["values"][0] += 1.0
    path.write_bytes(b"".join([*lines[:at], json.dumps(log).encode() + b"\n", *lines[at + 1 :]]))
    with pytest.raises(StorageError, match="stored trial 0 is not the one this run computes"):
        small_study().run(out=tmp_path, resume=True)


def test_an_interrupt_leaves_the_results_so_far(
    finished: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_after(monkeypatch, 2, KeyboardInterrupt())
    result = small_study().run(out=tmp_path)
    monkeypatch.undo()
    assert result.interrupted and json.loads((tmp_path / "result.json").read_text())["interrupted"]
    assert result.data["trials"] < finished[1].data["trials"]
    small_study().run(out=tmp_path, resume=True)
    assert outputs(tmp_path) == outputs(finished[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """A real process: exit code 130, whole results, no traceback, and --resume finishes it."""
    study = write_study(tmp_path / "s.toml", search={"trials": 100_000, "population": 2}, dimensions=_many())
    out = tmp_path / "out"
    arguments = command("run", study, "--out", out, "--json-lines", "--quiet")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)
    assert process.stderr is not None
    lines = [json.loads(process.stderr.readline()) for _ in range(2)]
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with --resume" in errors and "Traceback" not in errors
    assert set(lines[0]) == {
        "phase",
        "trials",
        "priced",
        "total",
        "front_size",
        "hypervolume",
        "designs_per_second",
        "eta_seconds",
    }
    found = Result.load(out)
    assert found.interrupted and found.architectures
    assert (out / "pareto.csv").read_text().count("\n") > 1


def _many() -> dict[str, Any]:
    dimensions: dict[str, Any] = small_table()["dimensions"]
    return dimensions | {
        "intermediate_size": {"low": 6144, "high": 24576, "step": 128},
        "num_attention_heads": {"low": 16, "high": 48, "step": 1},
    }


def test_two_runs_on_one_folder(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s.toml", search={"trials": 100_000, "population": 2}, dimensions=_many())
    first = subprocess.Popen(
        command("run", study, "--out", tmp_path / "o", "-q"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    try:
        while not (tmp_path / "o" / "run.log").exists():
            time.sleep(0.05)
            assert first.poll() is None
        second = run_cli("run", study, "--out", tmp_path / "o", "-q")
        assert second.returncode == 2 and f"process {first.pid}" in second.stderr and "Traceback" not in second.stderr
    finally:
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=60) == 130


def test_an_empty_study_writes_nothing(tmp_path: Path) -> None:
    study = small_study(budget={"total_params": "80B"})
    with pytest.raises(NothingLegalError, match=r"no design is legal"):
        study.run(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        found = run_cli("run", write_study(Path("/tmp") / f"s{os.getpid()}.toml"), "--out", tmp_path / "out", "-q")
    else:  # root may write anywhere but below a file and in /proc
        found = run_cli("run", "dense-8b", "--out", "/proc/none", "-q")
    assert found.returncode == 2 and "cannot be written" in found.stderr and "Traceback" not in found.stderr


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="unknown option 'worker'"):
        small_study().run(worker=2)


def test_progress_lines_and_speed() -> None:
    import io

    stream, now = io.StringIO(), [0.0]
    report = JsonLines(stream, clock=lambda: now[0])
    for priced in (10, 20, 30):
        now[0] += 0.4
        report(Progress("sample", priced, priced, 100, 2, 1.5))
    report(Progress("polish", 40, 40, 0, 2, float("nan")))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["priced"] for line in lines] == [10, 40]  # one a second, and one at each change of phase
    assert lines[1]["hypervolume"] is None
    # 10 designs in 0.4 s are 25 a second; 90 left take 3.6 s
    rate, left = speed(Progress("x", 10, 10, 100, 0, 0.0), 0.4)
    assert rate == pytest.approx(25.0) and left == pytest.approx(3.6)


def test_a_second_interrupt_comes_at_once() -> None:
    interrupts = Interrupts()
    with interrupts.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_suggested_layouts_give_one_row_an_architecture() -> None:
    """Layout and concurrency as parameters of the search: a front of points, ranked as architectures."""
    result = small_study(layouts={"gpus": [1, 2], "mode": "suggest"}).run()
    assert result.data["objectives"] == ["tokens_per_second_per_gpu", "tokens_per_second_per_user"]
    shapes = [tuple(row[n] for n in ("hidden_size", "num_hidden_layers", "num_key_value_heads")) for row in result.architectures]
    assert shapes and len(set(shapes)) == len(shapes)


def test_streamed_chunks_give_the_figures_of_one_process() -> None:
    """The path of studies too large to record: front and figures of a stream over processes, bit for bit."""
    study, interrupts = small_study(), Interrupts()
    problem = study.problem()
    alone = exhaust(problem, record=False)
    for engine in (LocalEngine(), ProcessEngine(study, (), 2, interrupts)):
        found = exhaust(problem, evaluator=StudyEvaluator(study.spec, engine, None, {}), record=False)
        engine.close()
        assert np.array_equal(found.evaluated.ids, alone.evaluated.ids)
        assert np.array_equal(found.priced.objectives, alone.priced.objectives)
        assert found.hypervolume == alone.hypervolume


def test_exhaustive_and_optuna_agree_on_the_small_study(finished: tuple[Path, Result]) -> None:
    other = small_study().run(engine="exhaustive")
    assert other.data["legal_architectures"] == len(build_problem(small_study().spec).table)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    shapes = [[tuple(row[n] for n in names) for row in result.architectures] for result in (other, finished[1])]
    assert shapes[0] == shapes[1]


def test_a_runner_up_names_the_front_member_it_is_near(finished: tuple[Path, Result]) -> None:
    front = {row["architecture_id"]: list(row["objectives"].values()) for row in finished[1].architectures}
    for row in finished[1].data["runners_up"]:
        own = list(row["objectives"].values())
        shares = {name: min(x / y for x, y in zip(own, values, strict=True)) for name, values in front.items()}
        # an open design may beat the equal-quality front; it is held against the member that dominates it
        assert any(abs(share - row["of_the_front"]) < 1e-9 for share in shares.values()) and row["of_the_front"] <= 1
        if row["within_model_error_of"]:
            assert shares[row["within_model_error_of"]] == pytest.approx(row["of_the_front"])


def test_a_finished_folder_says_that_it_is_shown_again(finished: tuple[Path, Result], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = finished
    spec = write_study(folder.parent / "small.toml")
    assert "shown again" in run_cli("run", str(spec), "--out", str(folder)).stdout


def test_designs_without_a_hugging_face_family_are_named_before_the_search(tmp_path: Path) -> None:
    """Qwen2 layers with heads that do not fill the hidden size: known at the start, and on standard error, not only at the end."""
    study = write_study(tmp_path / "qwen.toml", reference="Qwen2.5-7B", search={"trials": 8, "population": 8, "polish": False})
    ran = run_cli("run", study, "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert "no Hugging Face config.json" in ran.stderr and "nearest is qwen2" in ran.stderr
    lines = (tmp_path / "out" / "run.log").read_text().splitlines()
    [said] = [i for i, line in enumerate(lines) if "designs looked at" in line]
    [ended] = [i for i, line in enumerate(lines) if "legal architectures priced" in line]
    assert said < ended
    assert not run_cli("run", study, "--out", tmp_path / "quiet", "-q").stderr
