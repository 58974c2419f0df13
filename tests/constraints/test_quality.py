import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapefront.constraints import quality
from shapefront.constraints.laws import DENSE, JOINT, SHAPE, ZHAO, DenseLaw, fit_warnings, load_law, named_law, parse_law
from shapefront.costmodel import ArchitectureBatch
from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.models import load_model

REFERENCE = Path(__file__).parents[1] / "reference" / "quality.csv"


def _rows() -> list[dict[str, str]]:
    with REFERENCE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", _rows(), ids=lambda r: f"{r['law']} {r['arguments'][:40]}")
def test_published_values_to_the_printed_digits(row: dict[str, str]) -> None:
    arguments = {k: float(v) for k, v in (pair.split("=") for pair in row["arguments"].split(";"))}
    value = float(getattr(quality, row["law"])(**arguments))
    assert abs(value - float(row["value"])) <= 0.5 * 10.0 ** -int(row["digits"])


def test_zhao_optima_of_the_paper() -> None:
    # d/dG (0.1577 G + 7.2446/G) = 0 at G = sqrt(7.2446/0.1577) = 6.78; d/dS = 0 at S = 3.2363/(2*5.1395) = 0.3148
    g = np.linspace(1, 20, 19001)
    assert g[np.argmin(quality.size_loss_zhao(1e11, 5e9, 1e13, g, 0.1))] == pytest.approx(6.8, abs=0.05)
    s = np.linspace(0, 1, 10001)
    assert s[np.argmin(quality.size_loss_zhao(1e11, 5e9, 1e13, 8, s))] == pytest.approx(0.315, abs=0.001)


@pytest.mark.parametrize(("total", "share"), [(30e9, 0.40), (671e9, 0.22)])
def test_zhao_optimal_active_share(total: float, share: float) -> None:
    shares = np.linspace(0.02, 1, 981)
    loss = quality.size_loss_zhao(total, shares * total, 15e12, 6.78, 0.3148)
    assert shares[np.argmin(loss)] == pytest.approx(share, abs=0.012)


@given(st.integers(128, 65536), st.integers(2, 400))
def test_shape_penalty_is_never_negative(width: int, depth: int) -> None:
    assert float(quality.delta_loss_shape(width, depth)) >= 0.0


@given(st.floats(256, 32768), st.floats(3, 200))
def test_shape_penalty_is_zero_at_its_optimum_and_rises_away(width: float, depth: float) -> None:
    best = float(quality.optimal_depth(width, depth))
    n = depth * width**2
    depths = best * np.array([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])
    depths = depths[depths >= SHAPE.min_layers]
    penalty = quality.delta_loss_shape(np.sqrt(n / depths), depths)
    at = int(np.argmin(np.abs(depths - best)))
    assert penalty[at] == pytest.approx(0.0, abs=1e-12)
    assert np.all(np.diff(penalty[: at + 1]) < 0)
    assert np.all(np.diff(penalty[at:]) > 0)


@given(st.integers(256, 32768), st.integers(2, 200))
def test_closed_form_optimum_equals_a_search(width: int, depth: int) -> None:
    n = depth * width**2
    depths = np.geomspace(SHAPE.min_layers, 5000, 4001)
    searched = float(np.min(quality.shape_loss(np.sqrt(n / depths), depths)))
    found = float(quality.shape_loss(width, depth)) - float(quality.delta_loss_shape(width, depth))
    assert found == pytest.approx(searched, abs=1e-6)


def test_shallower_than_the_law_is_clipped() -> None:
    # one layer is below the law's two: compared with two layers of the same l*w^2, never negative
    assert float(quality.delta_loss_shape(4096, 1)) > float(quality.delta_loss_shape(4096, 2)) >= 0


def test_joint_law_of_one_expert_is_the_dense_form() -> None:
    # E = 1: 1/E_hat = 1/(1/(1/2.07 - 1/290.45)) + 1/290.45 = 1/2.07, so E_hat = 2.07
    e = 2.07
    expected = 35.91 * e**-0.2285 * 1e9 ** (-0.1889 + 0.0098 * math.log(e)) + 1.3637
    expected += 35.98 * e**0.5529 * 1e12 ** (-0.1775 - 0.0259 * math.log(e))
    assert float(quality.size_loss_joint(1e9, 1e12)) == pytest.approx(expected, rel=1e-12)


def test_more_of_anything_is_never_worse_in_the_dense_law() -> None:
    n = np.geomspace(1e8, 1e12, 50)
    assert np.all(np.diff(quality.size_loss_dense(n, 1e13)) < 0)
    assert np.all(np.diff(quality.size_loss_dense(1e10, n)) < 0)
    assert float(quality.size_loss_dense(1e30, 1e30)) == pytest.approx(DENSE.irreducible, abs=1e-6)


def test_batch_equals_scalar_and_the_law_follows_the_class() -> None:
    names = ("Llama-3.1-8B", "Llama-3.1-70B", "Mistral-7B-v0.3")
    designs = [load_model(name) for name in names]
    batch = ArchitectureBatch.from_architectures(designs)
    together = quality.predicted_loss(batch, 15e12)
    alone = [float(quality.predicted_loss(d, 15e12)[0]) for d in designs]
    assert together.tolist() == alone
    dense = quality.size_loss_dense(designs[0].total_params, 15e12)
    assert float(quality.size_loss(designs[0], 15e12)[0]) == float(dense)


def test_granularity_counts_shared_experts_in_routed_widths() -> None:
    g, s = quality.granularity(load_model("DeepSeek-V3"))
    assert (float(g[0]), float(s[0])) == (9.0, 1 / 9)  # 8 routed + 1 shared of the same width
    g, s = quality.granularity(load_model("Llama-3.1-8B"))
    assert (float(g[0]), float(s[0])) == (1.0, 0.0)
    design = load_model("DeepSeek-V3").with_(shared_expert_intermediate_size=4096)
    assert float(quality.granularity(design)[0][0]) == 10.0  # one shared expert twice as wide


def test_a_callable_and_own_coefficients_serve_as_law(tmp_path: Path) -> None:
    design = load_model("Llama-3.1-8B")
    assert quality.size_loss(design, 1e12, lambda batch, tokens: np.full(len(batch), tokens / 1e12)).tolist() == [1.0]
    file = tmp_path / "law.toml"
    file.write_text('form = "dense"\nsource = "our own runs"\nirreducible = 2.0\na = 0.0\nb = 0.0\n')
    law = load_law(file)
    assert law == DenseLaw(irreducible=2.0, a=0.0, b=0.0)
    assert quality.size_loss(design, 1e12, law).tolist() == [2.0]
    assert quality.size_loss(design, 1e12, "joint")[0] == pytest.approx(
        float(quality.size_loss_joint(design.active_params, 1e12, 1.0, JOINT))
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"form": "cubic", "source": "x"}, "form must be one of dense, zhao, joint"),
        ({"form": "dense"}, "key 'source' is missing"),
        ({"form": "dense", "source": " "}, "source must name where"),
        ({"form": "dense", "source": "x", "alpa": 1.0}, "did you mean 'alpha'"),
        ({"form": "zhao", "source": "x", "alpha": math.nan}, "alpha must be a finite number"),
        ({"form": "zhao", "source": "x", "alpha": True}, "alpha must be a finite number"),
    ],
)
def test_own_laws_are_checked(table: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_law(table, "laws.toml")


def test_unknown_law() -> None:
    with pytest.raises(UnknownKeyError, match="did you mean 'joint'"):
        named_law("joynt")


def test_violations_are_relative_to_their_limit() -> None:
    batch = ArchitectureBatch.from_architectures([load_model("Llama-3.1-8B")])
    found = quality.quality_violations(batch, max_delta_loss_shape=0.0076143)["delta_loss_shape"]
    assert found[0] == pytest.approx(0.0, abs=1e-3)  # 0.00761 sits on that limit
    reference = load_model("Llama-3.1-8B")
    found = quality.quality_violations(batch, reference=reference, max_loss_above_reference=0.01)["loss_above_reference"]
    assert found[0] == pytest.approx(-1.0)  # equal to the reference: a whole τ inside


def test_moe_laws_disagree_about_sparsity() -> None:
    # 671B from an active share of 0.30 to 0.03: +0.023 nats by one law, +0.095 by the other
    shares = np.array([0.30, 0.03])
    zhao = quality.size_loss_zhao(6.71e11, shares * 6.71e11, 15e12, 8, 1 / 9, ZHAO)
    assert zhao[1] - zhao[0] == pytest.approx(0.023, abs=0.002)


def test_warnings_beyond_the_fit() -> None:
    small = load_model("Gemma-2-2B").with_(hidden_size=2048, num_hidden_layers=24)
    assert fit_warnings(small) == []
    large = " ".join(fit_warnings(load_model("DeepSeek-V3")))
    assert "MoE law (Zhao et al.)" in large and "joint law (Ludziejewski et al.)" in large and "width 7168, 61 layers" in large


def test_laws_side_by_side() -> None:
    deepseek, qwen = load_model("DeepSeek-V3"), load_model("Qwen3-30B-A3B")
    rows = quality.compare_laws(deepseek, qwen)
    assert [r.law for r in rows] == ["zhao", "joint"]
    assert rows[0].times_beyond == pytest.approx(671.03 / 9, rel=1e-3)  # validated to 9B
    for row in rows:
        own = quality.predicted_loss(deepseek, law=row.law)[0] - quality.predicted_loss(qwen, law=row.law)[0]
        assert row.change == pytest.approx(float(own)) and row.change < 0 and row.source
    assert [r.law for r in quality.compare_laws(load_model("Llama-3.1-8B"), qwen)] == ["joint"]
    assert all(r.change == 0 for r in quality.compare_laws(qwen, qwen))
