import numpy as np
import pytest

from shapefront.constraints.bands import DENSE_RATIOS, MOE_RATIOS, band_statistics, load_bands, ratios
from shapefront.costmodel import ArchitectureBatch
from shapefront.costmodel.errors import InvalidValueError
from shapefront.costmodel.models import load_model, model_rows

# p10, p50, p90, min, max as published with the project's survey of 38 dense and 23 MoE shapes, to its printed digits;
# None = not stated. Source: percentiles of costmodel/data/models (recounted here, row by row, from its shapes).
SURVEY = {
    (False, "width_over_depth"): ("52", "99", "129", "19", "205"),
    (False, "ffn_over_hidden"): ("2.7", "3.5", "5.6", "2.7", "7.5"),
    (False, "attention_over_hidden"): ("0.97", "1", "1.09", "0.76", "2"),
    (False, "heads_per_kv_head"): ("1", "3.5", "8", "1", "16"),
    (True, "width_over_depth"): ("76", "99", "120", "43", "128"),
    (True, "active_ffn_over_hidden"): ("2.1", "3", "5.1", "1.6", "10.7"),
    (True, "active_ffn_with_shared_over_hidden"): ("2.6", "3.2", "5.7", None, None),
    (True, "experts_per_active_expert"): ("4.8", "16", "32", "4", "48"),
    (True, "active_share"): ("0.049", "0.134", "0.27", "0.032", "0.28"),
    (True, "attention_over_hidden"): ("1", "1.4", "2", None, None),
    (True, "heads_per_kv_head"): ("4", "8", "16", None, None),
}


def _one(name: str) -> ArchitectureBatch:
    return ArchitectureBatch.from_architectures([load_model(name)])


@pytest.mark.parametrize(("moe", "name"), SURVEY)
def test_the_survey_is_reproduced_from_the_data(moe: bool, name: str) -> None:
    band = next(b for b in band_statistics(moe) if b.name == name)
    for value, printed in zip((band.p10, band.p50, band.p90, band.minimum, band.maximum), SURVEY[moe, name], strict=True):
        if printed is not None:
            decimals = len(printed.partition(".")[2])
            assert abs(value - float(printed)) <= 0.5 * 10.0**-decimals + 1e-9


def test_every_row_of_a_class_is_counted() -> None:
    counted = {moe: sum((r.architecture.num_experts > 0) == moe for r in model_rows()) for moe in (False, True)}
    assert (counted[False], counted[True]) == (38, 24)
    assert next(b for b in band_statistics(False) if b.name == "width_over_depth").count == 38
    assert next(b for b in band_statistics(True) if b.name == "width_over_depth").count == 23  # LongCat-Flash left out


def test_ratios_by_hand() -> None:
    # Qwen3-30B-A3B: H 2048, L 48, k 8, H'e 768, E 128, 32 heads of 128, 4 KV heads
    found = {k: float(v[0]) for k, v in ratios(_one("Qwen3-30B-A3B")).items()}
    assert found.pop("active_share") == pytest.approx(3.04 / 30.53, rel=0.01)
    assert found == {
        "width_over_depth": 2048 / 48,
        "active_ffn_over_hidden": 3.0,  # 8*768/2048
        "active_ffn_with_shared_over_hidden": 3.0,
        "experts_per_active_expert": 16.0,
        "attention_over_hidden": 2.0,
        "heads_per_kv_head": 8.0,
    }


def test_which_ratios_a_class_has() -> None:
    assert set(ratios(_one("Llama-3.1-8B"))) == set(DENSE_RATIOS)
    assert set(ratios(_one("Qwen3-30B-A3B"))) == set(MOE_RATIOS)
    assert set(MOE_RATIOS) - set(ratios(_one("DeepSeek-V3"))) == {"attention_over_hidden", "heads_per_kv_head"}
    assert "ffn_over_hidden" not in ratios(_one("Falcon-7B"))  # two FFN matrices: not the gated ratio


def test_violations_grow_with_the_distance() -> None:
    bands = load_bands(False).with_limits({"width_over_depth": [64, 128]})
    widths = np.array([64, 32, 128, 256, 100]) * 32
    batch = ArchitectureBatch.from_arrays(
        _one("Llama-3.1-8B").kind,
        hidden_size=widths,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=8192,
        vocab_size=1000,
    )
    found = bands.violations(batch)["width_over_depth"]
    # edges inside; half the lower limit and twice the upper both count 1.0 (one hundred per cent outside)
    assert found == pytest.approx([0, 1, 0, 1, 100 / 128 - 1], abs=1e-6)
    assert np.array_equal(found <= 0, [True, False, True, False, True])


@pytest.mark.parametrize("row", [r for r in model_rows() if "shape" not in r.not_covered], ids=lambda r: r.name)
@pytest.mark.parametrize("mode", ["p10-p90", "min-max"])
def test_a_reference_is_inside_its_own_bands(row, mode) -> None:  # type: ignore[no-untyped-def]
    design = row.architecture
    bands = load_bands(design.num_experts > 0, mode=mode, include=design)
    worst = max(float(v[0]) for v in bands.violations(ArchitectureBatch.from_architectures([design])).values())
    assert worst <= 0


def test_narrow_bands_lie_inside_wide_ones_and_both_budgets_free_the_share() -> None:
    narrow, wide = load_bands(True), load_bands(True, mode="min-max")
    for name, (low, high) in narrow.limits.items():
        assert wide.limits[name][0] <= low < high <= wide.limits[name][1]
    assert "active_share" in narrow.limits
    assert "active_share" not in load_bands(True, both_budgets=True).limits
    assert "width_over_depth" not in narrow.without("width_over_depth").limits


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"width_over_dept": [1, 2]}, "did you mean 'width_over_depth'"),
        ({"width_over_depth": [2, 1]}, "0 < low <= high"),
        ({"width_over_depth": 3}, "0 < low <= high"),
        ({"width_over_depth": [float("nan"), 2]}, "0 < low <= high"),
    ],
)
def test_own_limits_are_checked(limits: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_bands(True).with_limits(limits)


def test_unknown_mode() -> None:
    with pytest.raises(InvalidValueError, match="p10-p90, min-max"):
        load_bands(True, mode="p25")
