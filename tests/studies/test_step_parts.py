"""The signed step constant is a part of its own; the parts still add up to the step."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from shapefront.costmodel.step_options import constant_share
from shapefront.studies.cli import app
from shapefront.studies.step_parts import CONSTANT, step_parts

RUN = CliRunner(env={"COLUMNS": "200"})
POINT = ("estimate", "Qwen3-30B-A3B", "--layout", "dpa=8,ep=8", "--concurrency", "64")


def test_the_constant_leaves_other_what_takes_time() -> None:
    point = {"breakdown": {"gemm": 3.0, "other": -1.0}, "step_constant_seconds": -1.5}
    assert step_parts(point) == {"gemm": 3.0, "other": 0.5, CONSTANT: -1.5}  # -1.0 - (-1.5)
    assert step_parts({"breakdown": {"gemm": 3.0, "other": 1.0}}) == {"gemm": 3.0, "other": 1.0}  # an older result
    assert step_parts({}) == {}


@pytest.mark.parametrize(("kernels", "constant"), [(1.0, 0.3), (1.0, -0.3), (1.0, -0.5), (1.0, -7.0)])
def test_the_constant_is_found_again_in_the_whole_step(kernels: float, constant: float) -> None:
    applied = max(constant, -0.5 * kernels)  # the decode step's rule
    assert constant_share(constant, kernels + applied) == pytest.approx(applied)


def test_estimate_shows_the_constant_and_no_other_negative_part() -> None:
    row = json.loads(RUN.invoke(app, [*POINT, "--json"]).output)
    # the profile's constant for grouped-query attention; the step is far longer than twice that
    assert row["step_constant_seconds"] == pytest.approx(-0.0002991)
    assert sum(row["breakdown"].values()) == pytest.approx(row["itl_seconds"])
    parts = step_parts(row)
    assert sum(parts.values()) == pytest.approx(row["itl_seconds"])
    assert [name for name, seconds in parts.items() if seconds < 0] == [CONSTANT]
    # what is left are the element-wise kernels of the layers and the head
    kernels = row["breakdown_parts"]
    assert parts["other"] == pytest.approx(kernels["norm_elementwise"] + kernels["head_elementwise"], rel=1e-6)
    text = RUN.invoke(app, [*POINT]).output
    assert CONSTANT in text and "may be negative" in text


def test_the_frontier_shows_it_too() -> None:
    text = RUN.invoke(app, ["estimate", "Qwen3-30B-A3B", "--gpus", "4"]).output
    assert "signed" in text and "may be negative" in text
    rows = json.loads(RUN.invoke(app, ["estimate", "Qwen3-30B-A3B", "--gpus", "4", "--json"]).output)["frontier"]
    assert all(step_parts(row)["other"] > 0 for row in rows)


def test_a_profile_without_a_constant_has_no_such_part() -> None:
    text = RUN.invoke(app, [*POINT, "--profile", "ideal"]).output
    assert "step constant" not in text and "other" in text
