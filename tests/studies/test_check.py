import json
from pathlib import Path
from typing import Any

import pytest

from shapefront.constraints.guidelines import RULES
from shapefront.constraints.quality import predicted_loss
from shapefront.costmodel import Architecture, InvalidValueError
from shapefront.costmodel.models import load_model
from shapefront.studies.check import check, fix_loss_text
from shapefront.studies.cli import main
from shapefront.studies.sarif import to_sarif

CONFIGS = Path(__file__).parents[1] / "reference" / "configs"
KEYS = {"id", "dimension", "value", "threshold", "cost_share_throughput", "cost_share_latency", "fix", "source"}
# 512-aligned in every dimension and shard, 131072 rows, at the edge of the depth band: nothing to find
CLEAN = Architecture(
    hidden_size=4096,
    intermediate_size=16384,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=131072,
)


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["check", *arguments])
    code = stopped.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture
def clean(tmp_path: Path) -> str:
    path = tmp_path / "clean.json"
    path.write_text(json.dumps(CLEAN.to_dict()), encoding="utf-8")
    return str(path)


def test_exit_codes(clean: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(clean) == 0
    assert "no findings" in capsys.readouterr().out
    assert _run("Qwen3-30B-A3B") == 1
    broken = tmp_path / "broken.json"
    broken.write_text('{"model_type": "llama"', encoding="utf-8")
    assert _run(str(broken)) == 2
    captured = capsys.readouterr()
    assert "not valid JSON" in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("model", "fail_on", "code"),
    [
        ("Qwen3-30B-A3B", "never", 0),
        ("Qwen3-30B-A3B", "SF009", 1),
        ("Qwen3-30B-A3B", "sf009, SF001", 1),
        ("Qwen3-30B-A3B", "SF003", 0),
        ("gpt-oss-20b", "SF003", 1),  # named, so it counts whatever it costs
        ("Llama-3.1-8B", "information", 1),
        ("Qwen3-30B-A3B", "SF099", 2),
        ("Qwen3-30B-A3B", "sometimes", 2),
    ],
)
def test_fail_on(model: str, fail_on: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(model, "--fail-on", fail_on) == code
    capsys.readouterr()


def test_json_has_the_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    _run(str(CONFIGS / "gpt-oss-20b.json"), "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["name"] == "gpt-oss-20b" and found["hidden_size"] == 2880
    assert all(set(f) >= KEYS for f in found["findings"])
    wart = next(f for f in found["findings"] if (f["id"], f["dimension"]) == ("SF003", "hidden_size"))
    assert (wart["value"], wart["threshold"], wart["fix"]) == (2880, 128, {"hidden_size": 2816})
    levels = [f["level"] for f in found["findings"]]
    assert levels == sorted(levels)  # findings before information
    assert found["points"]["throughput"]["gpus"] >= 1


def test_python_and_command_agree(capsys: pytest.CaptureFixture[str]) -> None:
    _run("Falcon-7B", "--json")
    printed = json.loads(capsys.readouterr().out)
    typed = check("Falcon-7B")
    assert [f["id"] for f in printed["findings"]] == [f.id for f in typed.review.all]
    assert typed.design == load_model("Falcon-7B")


def _required(table: dict[str, Any], *names: str) -> None:
    assert set(names) <= set(table), table


def test_sarif_is_2_1_0(capsys: pytest.CaptureFixture[str]) -> None:
    # required properties of the OASIS schema, section by section: 3.13 log, 3.14 run, 3.18 tool, 3.19 driver, 3.27 result
    path = CONFIGS / "gpt-oss-20b.json"
    assert _run(str(path), "--format", "sarif", "--fail-on", "information") == 1
    log = json.loads(capsys.readouterr().out)
    _required(log, "$schema", "version", "runs")
    assert log["version"] == "2.1.0"
    run = log["runs"][0]
    driver = run["tool"]["driver"]
    _required(driver, "name", "version", "rules")
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    for rule in driver["rules"]:
        _required(rule, "id", "shortDescription", "fullDescription", "help")
    assert run["results"]
    lines = path.read_text(encoding="utf-8").splitlines()
    for result in run["results"]:
        _required(result, "ruleId", "ruleIndex", "level", "message", "locations")
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("warning", "note")
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].endswith("gpt-oss-20b.json")
        if result["properties"]["dimension"] == "hidden_size":
            assert '"hidden_size"' in lines[place["region"]["startLine"] - 1]
    keys = [tuple(r["partialFingerprints"].values()) for r in run["results"]]
    assert len(keys) == len(set(keys))


def test_sarif_of_a_built_in_model_has_logical_locations() -> None:
    results = to_sarif(check("Falcon-7B"))["runs"][0]["results"]
    assert all("physicalLocation" not in r["locations"][0] for r in results)
    assert {"Falcon-7B.hidden_size"} <= {r["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for r in results}


def test_the_threshold_moves_findings() -> None:
    strict, lax = check("gpt-oss-20b", finding_share=1e-9), check("gpt-oss-20b", finding_share=0.9)
    assert len(strict.findings) > 0 and lax.findings == ()
    assert {(f.id, f.dimension) for f in strict.review.all} == {(f.id, f.dimension) for f in lax.review.all}
    with pytest.raises(InvalidValueError, match="above 0 and below 1"):
        check("Falcon-7B", finding_share=0)


def test_shapes_the_engine_only_approximates_say_so() -> None:
    assert any("MiMo-V2-Flash" in warning for warning in check("MiMo-V2-Flash").warnings)
    assert check(CLEAN.with_(hidden_size=2048, num_hidden_layers=16, intermediate_size=8192)).warnings == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-like-this",), "unknown model"),
        (("Qwen3-8B", "--gpus", "1,two"), "gpus reads like"),
        (("Qwen3-8B", "--profile", "gb301-blog"), "gb300-blog"),
        (("Qwen3-8B", "--linear", "nvfp5"), "did you mean 'nvfp4'"),
        (("Qwen3-8B", "--throughput-rate", "-1"), "rates must be two positive numbers"),
        (("Qwen3-8B", "--input", "0"), "input_tokens must be"),
        (("DeepSeek-V3", "--gpus", "1"), "GPU"),
        (("Qwen3-8B", "--format", "xml"), "format must be one of text, json, sarif"),
    ],
)
def test_errors_are_one_message(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen2.5-0.5B", "Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"])
def test_no_advice_without_its_price(name: str) -> None:
    """A fix states its gain, its size and its predicted loss; what is refused states what it would cost."""
    result = check(name)
    for f in result.review.all:
        if not f.fix:
            assert f.gain_throughput is None and f.loss_change is None, f.id
            continue
        dimensions = [key for key in f.fix if "." not in key]
        if dimensions:
            fixed = result.design.with_(**{key: f.fix[key] for key in dimensions})
            assert f.loss_change == pytest.approx(float(predicted_loss(fixed)[0] - predicted_loss(result.design)[0]), abs=1e-12)
            assert f.loss_change is not None and f.loss_change <= 0.010 + 1e-12 and f.total_params_change is not None
            assert max(f.gain_throughput or 0.0, f.gain_latency or 0.0) >= 0
            if abs(f.loss_change or 0.0) >= 0.0001:
                assert "predicted loss" in f.note, f.id


def test_where_rounding_down_costs_too_much_loss_the_neighbour_above_is_offered() -> None:
    """SmolLM2-135M: H = 576 to 512 takes 11 % of the parameters; 640 keeps them with fewer layers."""
    found = {(f.id, f.dimension): f for f in check("SmolLM2-135M").review.all}
    wide = found["SF003", "hidden_size"]
    assert wide.fix["hidden_size"] == 640 and wide.fix["num_hidden_layers"] < 30
    assert wide.total_params_change is not None and abs(wide.total_params_change) <= 0.01
    assert "rounded up, because hidden_size=512 would raise the predicted loss" in wide.note
    assert "the gain is that of the depth as well" in wide.note
    stages = found[
        "SF015", "num_hidden_layers"
    ]  # 32 layers hold 5 % more parameters and KV cache: slower, so told and not offered
    assert not stages.fix
    assert "rounded up it is slower at every rate: num_hidden_layers=32: tokens/s/GPU -" in stages.note
    assert "total +5.26%, predicted loss -" in stages.note


def test_a_fix_beyond_equal_quality_is_marked_beside_its_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert [fix_loss_text(loss) for loss in (None, 0.0019, 0.0021, -0.5)] == [
        "–", "+0.0019", "+0.0021, not equal quality", "-0.5000",
    ]  # fmt: skip
    _run("Qwen3-30B-A3B", "--json")
    findings = json.loads(capsys.readouterr().out)["findings"]
    for found in findings:
        assert found["fix_equal_quality"] == (None if found["loss_change"] is None else found["loss_change"] <= 0.002)
    deep = next(found for found in findings if found["id"] == "SF009")
    assert 0.002 < deep["loss_change"] <= 0.01  # the check's own limit
    _run("Qwen3-30B-A3B")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "not equal" in text and "up to 0.01 nats/token" in text and "equal quality allows 0.002" in text
    assert "finding: costs at least 0.50%" in text and "information: costs less" in text
    assert any("not equal quality" in r["message"]["text"] for r in to_sarif(check("Qwen3-30B-A3B"))["runs"][0]["results"])


def test_the_limit_named_is_the_one_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _run("Qwen3-30B-A3B", "--max-delta-loss-shape", "0.005")
    assert "up to 0.005 nats/token" in capsys.readouterr().out
