"""The built-in studies: enough legal designs, each said how many; the same answer from any seed; honest gains."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import Architecture, InvalidValueError, TensorFormats
from shapefront.studies import Result, Study, study_names
from shapefront.studies.problem import area_rates
from shapefront.studies.waterfall import STEPS, Stage, Step, _sentence, areas, path, waterfall
from tests.studies.small import run_cli, small_study

BUDGET_STUDIES = ("dense-8b", "dense-70b", "moe-30b-a3b", "moe-120b", "moe-671b-a37b")


@lru_cache(maxsize=8)
def _study(name: str) -> Any:
    return Study.load(name).problem()


@lru_cache(maxsize=8)
def _result(name: str, seed: int) -> Result:
    return Study.load(name).run(seed=seed)


def test_every_built_in_study_is_named_after_its_file() -> None:
    assert {*BUDGET_STUDIES, "moe-open"} <= set(study_names())
    for name in study_names():
        assert Study.load(name).spec.name == name


@pytest.mark.parametrize("name", BUDGET_STUDIES)
def test_a_budget_study_has_at_least_a_hundred_legal_designs(name: str) -> None:
    problem = _study(name)
    assert 100 <= len(problem.table) <= 10_000
    batch = problem.table.candidates(np.arange(len(problem.table))).batches(problem.spaces)[0][2]
    assert np.all(np.abs(batch.total_params / problem.reference.total_params - 1) <= 0.01)
    assert problem.budget.tolerance == 0.01


def test_a_study_says_how_many_designs_it_has() -> None:
    found = json.loads(run_cli("studies", "dense-8b", "--json").stdout)
    assert found["legal_architectures"] == len(_study("dense-8b").table)
    assert f"{found['legal_architectures']} legal architectures" in run_cli("studies", "dense-8b").stdout


@pytest.mark.slow
def test_the_open_study_has_a_million_designs() -> None:
    assert len(Study.load("moe-open").problem().table) >= 10**6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense-8b", "dense-70b", "moe-30b-a3b"])
def test_another_seed_finds_the_same_best_three(name: str) -> None:
    names = (
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    best = []
    for seed in (0, 1):
        rows = _result(name, seed).ranked.head(3)
        assert len(rows) == 3
        best.append([tuple(int(row[n]) for n in names) for _, row in rows.iterrows()])
    assert best[0] == best[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense-8b", "dense-70b", "moe-30b-a3b"])
def test_an_equal_quality_design_is_compared_with_the_reference(name: str) -> None:
    result = _result(name, 0)
    best = result.ranked_rows[0]
    assert best["equal_quality"] and best["gives_up"] == []
    assert [point["rate"] for point in best["at_rates"]] == [20.0, 50.0, 100.0]
    assert [step["id"] for step in best["waterfall"]["steps"]] == [id_ for id_, _, _ in STEPS]
    product = np.prod([1 + step["gain"] for step in best["waterfall"]["steps"]]) - 1
    assert best["waterfall"]["total"] == pytest.approx(product)
    assert best["frontier_area_over_reference"] == pytest.approx(1 + best["waterfall"]["total"])


LLAMA = Architecture(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
)


def test_each_step_changes_what_it_says_and_keeps_the_designs_total() -> None:
    design = LLAMA.with_(
        hidden_size=3584, intermediate_size=19968, num_hidden_layers=29, num_attention_heads=28, num_key_value_heads=4
    )
    stages = path(LLAMA, design)
    assert stages[0] == Stage(LLAMA, LLAMA) and stages[-1] == Stage(design, design)
    assert stages[2] == stages[1]  # aligned already: nothing to gain from alignment
    # (b) takes width and depth; heads in proportion: 32·3584/4096 = 28, rounded to a multiple of the 8 KV heads: 32
    wide = stages[3].low
    assert (wide.hidden_size, wide.num_hidden_layers, wide.num_attention_heads) == (3584, 29, 32)
    assert wide.num_key_value_heads == stages[4].low.num_key_value_heads == 8
    assert stages[5].low.num_key_value_heads == 4
    for stage in stages[1:]:
        assert stage.total_params == pytest.approx(design.total_params, rel=1e-12)
        assert (stage.high.intermediate_size - stage.low.intermediate_size) in (0, 256)  # 19968 = 78·256


def test_another_size_is_booked_in_a_row_of_its_own() -> None:
    design = LLAMA.with_(intermediate_size=14336 + 512)
    stages = path(LLAMA, design)
    # 512 more columns of three matrices of 4096 rows in each of 32 layers
    assert stages[1].total_params - LLAMA.total_params == pytest.approx(3 * 512 * 4096 * 32)
    assert all(stage == Stage(design, design) for stage in stages[1:])  # nothing but the size differs


def test_a_size_no_ffn_can_give_is_not_split() -> None:
    small = LLAMA.with_(num_hidden_layers=2, intermediate_size=256)
    with pytest.raises(InvalidValueError, match="32 layers of width 4096 exceed"):
        path(LLAMA, small)  # attention and embeddings of 32 layers alone are larger


def test_a_misaligned_reference_gains_from_alignment_alone() -> None:
    odd, design = LLAMA.with_(intermediate_size=14300), LLAMA.with_(num_hidden_layers=30)
    stages = path(odd, design)
    # 14336 = 56·256: aligned widths are multiples of 256, the misaligned ones of gcd(256, 14300) = 4
    assert stages[1].low.intermediate_size % 256 and stages[1].high.intermediate_size - stages[1].low.intermediate_size == 4
    assert stages[2].low.intermediate_size % 256 == 0 and stages[2].high.intermediate_size % 256 == 0
    assert stages[1].low.num_hidden_layers == stages[2].low.num_hidden_layers == 32


def test_a_moe_path_splits_experts_before_sparsity() -> None:
    qwen = Architecture(
        hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        vocab_size=151936, num_experts=128, num_experts_per_tok=8,
    )  # fmt: skip
    design = qwen.with_(num_experts=72, num_experts_per_tok=6, moe_intermediate_size=1408)
    stages = path(qwen, design)
    assert (stages[4].low.num_experts_per_tok, stages[4].low.num_experts) == (6, 96)  # E/k kept at 128/8 = 16
    assert (stages[6].low.num_experts_per_tok, stages[6].low.num_experts) == (6, 72)
    assert all(stage.total_params == pytest.approx(design.total_params, rel=1e-12) for stage in stages[1:])
    # 6 of 96 experts are active where 8 of 128 were: at the same total the same share
    assert stages[4].active_params < design.active_params < 1.1 * stages[4].active_params * 96 / 72


def test_the_steps_add_up_and_multiply_to_the_end() -> None:
    study = small_study()
    problem, rates = study.problem(), area_rates(study.spec)
    for i in (0, 5, 9):
        design = problem.table.candidates([i]).batches(problem.spaces)[0][2].architecture(0)
        found = waterfall(problem, design, rates=rates)
        before, after = areas(problem, [problem.reference, design], TensorFormats(), rates, "log")
        assert found.total == pytest.approx(after / before - 1, rel=1e-12)
        assert sum(step.change for step in found.steps) == pytest.approx(found.total, abs=1e-12)
        assert np.prod([1 + step.gain for step in found.steps]) - 1 == pytest.approx(found.total, abs=1e-12)
        assert [step.total_params for step in found.steps] == pytest.approx([design.total_params] * 6, rel=1e-12)
        assert found.steps[-1].active_params == design.active_params


def test_between_two_widths_the_time_is_interpolated() -> None:
    stage = Stage(LLAMA, LLAMA.with_(intermediate_size=14592), 0.25)
    # a quarter of the way from 2 s to 4 s is 2.5 s
    assert stage.between(2.0, 4.0) == 2.5
    assert stage.total_params == LLAMA.total_params + 0.25 * 3 * 256 * 4096 * 32


def test_the_same_design_has_no_gain() -> None:
    study = small_study()
    problem = study.problem()
    found = waterfall(problem, problem.reference, rates=area_rates(study.spec))
    assert found.total == pytest.approx(0.0, abs=1e-12)
    assert found.message.startswith("no gain over the reference model")


def test_a_batch_of_areas_equals_one_by_one() -> None:
    study = small_study()
    problem, rates = study.problem(), area_rates(study.spec)
    designs = [problem.table.candidates([i]).batches(problem.spaces)[0][2].architecture(0) for i in (0, 5, 9)]
    together = areas(problem, designs, TensorFormats(), rates, "log")
    alone = [areas(problem, [design], TensorFormats(), rates, "log")[0] for design in designs]
    assert together == pytest.approx(alone, rel=1e-12)


def _steps(*gains: float) -> tuple[Step, ...]:
    return tuple(Step(id_, label, gain, priced) for (id_, label, priced), gain in zip(STEPS, gains, strict=True))


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ((0.0, 0.0, 0.0, 0.0, 0.5, 0.0), "gain nothing"),
        ((0.0, 0.0, 0.001, 0.0, 0.5, 0.0), "gain nothing"),
        ((0.0, 0.0, 0.2, 0.0, 0.0, 0.0), "KV and sparsity add nothing"),
        ((0.0, 0.0, 0.2, 0.0, 0.5, 0.0), "quality not priced"),
        ((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), "no gain over the reference model"),
        ((0.0, 0.0, -0.34, 0.0, 0.0, 0.0), "slower than the reference model by 34% in frontier area"),
        ((float("nan"), 0.1, 0.1, 0.1, 0.1, 0.1), "cannot be split"),
        ((0.2, 0.0, 0.0, 0.0, 0.0, 0.0), "the other parameter total +20.0%"),
    ],
)
def test_the_sentence_is_honest(gains: tuple[float, ...], text: str) -> None:
    total = float(np.prod([1 + g for g in gains]) - 1)
    assert text in _sentence(_steps(*gains), total, 0.0)


def test_a_gain_below_the_model_error_is_none() -> None:
    assert "model error" in _sentence(_steps(0.0, 0.0, 0.015, 0.0, 0.0, 0.0), 0.015, 0.02)
