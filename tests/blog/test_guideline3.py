"""Guideline 3 emerges: nothing in the cost model or the search prefers width, yet the best design gets shallower as the guard opens."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

from shapefront.constraints.quality import delta_loss_shape

SCRIPT = Path(__file__).parents[2] / "docs" / "blog" / "guideline3.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guideline3", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_frontier_moves_to_fewer_layers_and_stops_at_the_guard(script: ModuleType) -> None:
    rows = script.best_depths()
    for rate in script.RATES:
        mine = [row for row in rows if row[1] == rate]
        layers = [row[2] for row in mine]
        throughput = [row[5] for row in mine]
        assert layers == sorted(layers, reverse=True) and layers[-1] < layers[0] / 4
        assert throughput == sorted(throughput)
        for limit, _, depth, hidden, penalty, _ in mine:
            assert penalty <= limit
            assert penalty == pytest.approx(float(delta_loss_shape(hidden, depth)))
            if limit < 0.02:
                assert penalty > 0.8 * limit  # it stops at the guard's edge
        assert mine[-1][0] == math.inf and mine[-1][4] > 0.05  # without a guard it goes where no real model is


def test_the_picture_is_drawn(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [(limit, rate, 30, 4096, 0.01, 1e4) for limit in script.LIMITS for rate in script.RATES]
    script.draw(rows, tmp_path / "guideline3.png")
    assert (tmp_path / "guideline3.png").stat().st_size > 10_000
