import json
import math

import pytest

from shapefront.constraints.equal_quality import LOSS_SLACK
from shapefront.constraints.quality import delta_loss_shape, size_loss
from shapefront.costmodel import InvalidValueError
from shapefront.costmodel.models import load_model, model_names
from shapefront.costmodel.serving_frontier import AREA
from shapefront.search.objectives import AREA_RATES
from shapefront.studies.cli import main
from shapefront.studies.compare import compare


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_a_model_equals_itself() -> None:
    found = compare(["Llama-3.1-8B", "llama-3.1-8b"])
    first, second = found.models
    assert first.throughput == second.throughput
    assert second.area_over_first == 1 and second.gives_up == () and second.loss_change == 0


def test_what_is_given_up_is_named() -> None:
    found = compare(["Llama-3.1-8B", load_model("Llama-3.1-8B").with_(num_key_value_heads=4)])
    assert "a smaller KV cache a layer" in found.models[1].gives_up
    assert found.models[1].area_over_first > 1.5  # half the cache at 8k context: far more sequences a GPU


def test_frontiers_rise_and_fall() -> None:
    for model in compare(["Qwen3-8B", "Qwen3-30B-A3B"]).models:
        assert model.frontier is not None
        points = model.frontier.points
        assert all(
            a < b for a, b in zip(points.tokens_per_second_per_user[:-1], points.tokens_per_second_per_user[1:], strict=True)
        )
        assert all(
            a > b for a, b in zip(points.tokens_per_second_per_gpu[:-1], points.tokens_per_second_per_gpu[1:], strict=True)
        )
        assert math.isfinite(model.area) and model.area > 0


def test_a_model_that_does_not_fit_is_kept_with_its_reason() -> None:
    found = compare(["Llama-3.1-8B", "DeepSeek-V3"], gpus=(1,))
    assert found.models[1].frontier is None and "GPU" in found.models[1].error
    with pytest.raises(InvalidValueError, match="serves any of the models"):
        compare(["Kimi-K2", "DeepSeek-V3"], gpus=(1,))


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("compare", "Llama-3.1-8B", "Qwen3-8B", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["name"] for m in found["models"]] == ["Llama-3.1-8B", "Qwen3-8B"]
    assert found["models"][0]["frontier"]
    assert _run("compare", "Llama-3.1-8B", "Qwen3-8B") == 0
    text = capsys.readouterr().out
    assert "gives up: more parameters" in text and "area, 10–200 tokens/s/user" in text and "area ÷ first" in text
    assert _run("models", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == model_names()
    assert {"total_params", "active_params", "hidden_size", "attention"} <= set(rows[0])
    assert _run("models", "Qwen3-8B") == 0
    text = capsys.readouterr().out
    assert "aiconfigurator-core" in text and "nats/token" in text and "bytes (FP8 KV cache, all layers)" in text
    assert "q_lora_rank" not in text and "None" not in text and "[]" not in text  # Qwen3-8B has no latent attention, no notes


def test_estimate_and_compare_give_one_area(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("estimate", "Llama-3.1-8B", "--gpus", "1", "--json") == 0
    estimated = json.loads(capsys.readouterr().out)
    assert _run("compare", "Llama-3.1-8B", "Qwen3-8B", "--gpus", "1", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["models"]
    assert estimated["frontier_bounds"] == list(AREA[:2]) == [AREA_RATES[0], AREA_RATES[-1]]
    assert estimated["frontier_area"] == pytest.approx(first["frontier_area"], rel=1e-9)
    assert second["frontier_area_over_first"] == pytest.approx(second["frontier_area"] / first["frontier_area"], rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "Llama-3.1-8B"), "compare takes 2 to 20 models, got 1"),
        (("compare", "Llama-3.1-8B", "Qwen3-8B", "--rates", "20,x"), "rates reads like"),
        (("compare", "Llama-3.1-8B", "Qwen3-8B", "--rates", "0"), "rates must be above 0"),
        (("compare", "Llama-3.1-8B", "Qwen9-8B"), "did you mean 'Qwen3-8B'"),
        (("models", "Lama-3.1-8B"), "did you mean 'Llama-3.1-8B'"),
    ],
)
def test_errors_are_one_message(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err


def test_the_terms_that_decide_stand_beside_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The joint law's total may be above the limit at equal quality: it decides nothing, and the table says so."""
    own = load_model("Qwen3-30B-A3B")
    # 36 layers of width 2,048: fewer, wider experts at the same total and active parameters
    other = own.with_(
        num_hidden_layers=36, num_attention_heads=24, num_experts=80, num_experts_per_tok=6, moe_intermediate_size=1664
    )
    model = compare([own, other]).models[1]
    assert model.gives_up == () and model.size_law == "zhao"
    shapes = [float(delta_loss_shape(d.hidden_size, d.num_hidden_layers)) for d in (own, other)]
    assert model.shape_change == pytest.approx(shapes[1] - shapes[0])
    sizes = [float(size_loss(d, law="zhao")[0]) for d in (own, other)]
    assert model.size_change == pytest.approx(sizes[1] - sizes[0])
    assert max(model.shape_change, model.size_change) <= LOSS_SLACK < model.loss_change
    assert _run("compare", "Qwen3-30B-A3B", "Qwen3-8B") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "limit of ΔL_shape and of L_size: +0.002" in text and "decides nothing" in text and "the joint law, between" in text
