"""Study files: bounded, typed, errors that name key and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapefront.constraints.laws import DenseLaw
from shapefront.search.evaluate import price_reference
from shapefront.studies import Study
from shapefront.studies.problem import build_problem
from shapefront.studies.spec import SpecError, study_schema
from shapefront.studies.spec_file import library_directory, load_spec, parse_spec, spec_hash, spec_to_dict, study_names, to_toml
from shapefront.studies.toml_lines import key_lines, line_of
from tests.studies.small import small_table, write_study


@pytest.mark.parametrize(
    "budget",
    [0, -1, float("nan"), float("inf"), "30X", 1e30, 10**30, -(1 << 20_000), True, "", "B", "1e400", [], {}],
    ids=lambda value: type(value).__name__,
)
def test_a_budget_that_is_no_parameter_count_is_refused(budget: object) -> None:
    with pytest.raises(SpecError, match=r"budget\.total_params"):
        parse_spec(small_table(budget={"total_params": budget}), "case")


@pytest.mark.parametrize(("text", "value"), [("30B", 30e9), ("1.5T", 1.5e12), ("8_000M", 8e9), (30.5e9, 30.5e9)])
def test_a_parameter_count_is_read(text: object, value: float) -> None:
    assert parse_spec(small_table(budget={"total_params": text}), "case").budget.total_params == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../x"}, "no path"),
        ({"name": "/etc/passwd"}, "no path"),
        ({"name": ""}, "no path"),
        ({"search": {"trials": 0}}, r"search\.trials"),
        ({"search": {"trials": -5}}, r"search\.trials"),
        ({"search": {"trials": 2.5}}, r"search\.trials"),
        ({"search": {"trials": True}}, r"search\.trials"),
        ({"search": {"sampler": "nsga"}}, r"search\.sampler"),
        ({"serach": {}}, r"unknown key 'serach' \(did you mean 'search'"),
        ({"budget": {"tolerence": 1}}, r"budget: unknown key 'tolerence' \(did you mean 'tolerance'"),
        ({"budget": {"tolerance": 0}}, r"budget\.tolerance"),
        ({"dimensions": {"hidden": 1}}, r"unknown key 'hidden'"),
        ({"dimensions": {"hidden_size": {"low": 1, "high": 2}}}, "'step' is missing"),
        ({"dimensions": {"hidden_size": {"low": 1, "high": 2, "stepp": 1}}}, "did you mean 'step'"),
        ({"dimensions": {"hidden_size": [4, 2]}}, "rise"),
        ({"dimensions": {"hidden_size": []}}, "1 to 4096 values"),
        ({"dimensions": {"hidden_size": {"low": 0, "high": 1 << 30, "step": 1}}}, "high"),
        ({"dimensions": {"hidden_size": 1 << 20_000}}, "2\\^"),
        ({"dimensions": {}}, "needs searched dimensions"),
        ({"formats": {"ffn": "fp3"}}, "unknown number format 'fp3'"),
        ({"objectives": ["latency"]}, "unknown objective"),
        ({"objectives": []}, "needs an objective"),
        ({"objectives": ["throughput@0"]}, "rate"),
        ({"objectives": ["throughput@20", "throughput@20"]}, "differ"),
        ({"workload": {"input_tokens": 0}}, r"workload\.input_tokens"),
        ({"layouts": {"gpus": []}}, r"layouts\.gpus"),
        ({"layouts": {"gpus": [0]}}, r"layouts\.gpus"),
        ({"concurrency": {"low": 8.0, "high": 4.0}}, "high must be at least low"),
        ({"area": {"low": 8.0, "high": 4.0}}, "high must be above low"),
        ({"user": [{"name": "a", "entry": "os.system"}]}, "module:function"),
        ({"user": [{"name": "a", "entry": "a b:c"}]}, "module:function"),
        ({"families": [{"name": "a"}, {"name": "a"}]}, "differ"),
        ({"families": [{"name": "a", "formats": {"kvv": "fp8"}}]}, "did you mean 'kv'"),
        ({"rules": {"alignment": 0}}, r"rules\.alignment"),
    ],
)
def test_a_broken_rule_names_its_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(small_table(**changes), "case")


def test_an_error_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        'name = "a"\nreference = "Llama-3.1-8B"\n\n[budget]\ntotal_params = "30X"\n[dimensions]\nhidden_size = 1024\n'
    )
    with pytest.raises(SpecError, match=r"s\.toml:5: budget\.total_params"):
        load_spec(path)


@pytest.mark.parametrize(
    "text", ["name = ", "[", "a = 1\na = 2", "\x00", "name = '" + "x" * 2_000_000 + "'", "a = [" * 20_000, "a = " + "9" * 5000]
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"s\.toml"):
        load_spec(path)


@pytest.mark.parametrize("name", study_names())
def test_a_spec_survives_being_written(name: str) -> None:
    spec = load_spec(name)
    again = parse_spec(__import__("tomllib").loads(to_toml(spec_to_dict(spec))), name)
    assert again == spec
    assert spec_hash(again) == spec_hash(spec)


def test_the_schema_covers_every_section() -> None:
    schema = study_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) >= {"name", "reference", "budget", "dimensions", "families", "search", "user"}


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3))
def test_lines_are_found_by_the_longest_prefix(path: list[str]) -> None:
    lines = key_lines("a = 1\n[b]\nc = 2\n[[c]]\na = 3\n[[c]]\nb = 4\n")
    assert lines[("b", "c")] == 3
    assert lines[("c", 1, "b")] == 7
    found = line_of(lines, path)
    assert found == {"a": 1, "b": 2 if path[1:2] != ["c"] else 3, "c": None}[path[0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "Llama-9"}, "Llama"),
        ({"reference": "missing.json"}, "missing.json"),
        ({"profile": "gb300-blg"}, "did you mean 'gb300-blog'"),
        ({"hardware": "gb30"}, "did you mean 'gb300'"),
        ({"layouts": {"gpus": [144]}}, "scale-up domain"),
        ({"layouts": {"gpus": [2520, 3600, 3960, 2880, 1680], "max_pp": 64}}, "may make"),
        ({"rules": {"free_bands": ["H/L"]}}, "no band"),
        ({"families": [{"name": "m", "attention": "mla", "dimensions": {"head_dim": 64}}]}, "not a dimension of MLA"),
        ({"budget": {"total_params": "8B", "active_params": "9B"}}, "at most the total"),
    ],
)
def test_parts_that_contradict_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_problem(parse_spec(small_table(**changes), "case"))


def test_what_is_not_searched_is_the_reference_models(tmp_path: Path) -> None:
    problem = Study.load(write_study(tmp_path / "s.toml")).problem()
    [space] = problem.spaces
    assert space.fixed["vocab_size"] == problem.reference.vocab_size == 128256
    assert space.fixed["head_dim"] == 128
    assert problem.budget.total_params == problem.reference.total_params


def test_a_mla_reference_keeps_its_ranks_and_leading_layers() -> None:
    problem = Study.load("moe-671b-a37b").problem()
    [space] = problem.spaces
    assert (space.fixed["kv_lora_rank"], space.fixed["q_lora_rank"], space.fixed["first_k_dense_replace"]) == (512, 1536, 3)
    assert "intermediate_size" not in space.fixed  # follows (k + shared)·H′e
    assert "head_dim" not in space.fixed


def test_a_windowed_reference_keeps_its_pattern() -> None:
    [space] = Study.load("moe-120b").problem().spaces
    assert (space.fixed["sliding_window"], space.fixed["sliding_window_period"]) == (128, 2)


def test_loss_limit_and_own_law_reach_the_problem(tmp_path: Path) -> None:
    (tmp_path / "law.toml").write_text('form = "dense"\nsource = "my own runs"\nalpha = 0.35\n')
    text = (library_directory() / "dense-8b.toml").read_text()
    head = 'quality_law = "law.toml"\nobjectives = ["throughput@20", "quality"]\n'
    (tmp_path / "mine.toml").write_text(head + text + "\n[rules]\nmax_loss_above_reference = 0.005\n")
    problem = build_problem(load_spec(tmp_path / "mine.toml"), folder=tmp_path)
    guard = problem.rules.loss
    assert guard is not None and guard.max_above_reference == 0.005
    assert isinstance(guard.law, DenseLaw) and guard.law.alpha == 0.35
    assert [o.name for o in problem.objectives] == ["tokens_per_second_per_gpu_at_20", "quality"]
    assert 0 < problem.table.counts["gqa"] <= build_problem(load_spec("dense-8b")).table.counts["gqa"]


def test_serving_mode_reaches_the_setup_and_counts_both_pools(tmp_path: Path) -> None:
    text = (library_directory() / "dense-8b.toml").read_text()
    rates = {}
    for mode in ("decode", "disaggregated", "aggregated"):
        (tmp_path / "mine.toml").write_text(text + f'\n[serving]\nmode = "{mode}"\nchunk_tokens = 4096\n')
        problem = build_problem(load_spec(tmp_path / "mine.toml"))
        assert (problem.setup.mode, problem.setup.chunk_tokens) == (mode, 4096)
        rates[mode] = price_reference(problem)[0]
    # prefill takes GPUs (disaggregated) or steps (aggregated): both cost throughput
    assert 0 < rates["disaggregated"] < rates["decode"] and 0 < rates["aggregated"] < rates["decode"]
    (tmp_path / "mine.toml").write_text(text + '\n[serving]\nmode = "split"\n')
    with pytest.raises(SpecError, match=r"serving.mode"):
        load_spec(tmp_path / "mine.toml")
