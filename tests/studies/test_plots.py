"""Pictures: the numbers in them, labelled axes with units, no text over another, a clear word where matplotlib is missing."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, UnknownKeyError
from shapefront.costmodel.models import load_model
from shapefront.studies.cli import main
from shapefront.studies.plot import KINDS, make_plot, subject_of
from shapefront.studies.plots.alignment import alignment_rows
from shapefront.studies.plots.formats import format_rows
from shapefront.studies.plots.frontier import Curve, draw_frontier, frontier_rows
from shapefront.studies.plots.history import draw_history
from shapefront.studies.plots.layers import layer_gemms
from shapefront.studies.plots.roofline import roofline_rows
from shapefront.studies.plots.sawtooth import sawtooth_rows, sweep_range
from shapefront.studies.plots.style import Plot, round_steps, rows_to_csv
from shapefront.studies.plots.sweep import threshold
from shapefront.studies.plots.ttft import ttft_rows
from shapefront.studies.study import Study

MODEL_KINDS = [kind for kind in KINDS if kind not in ("history", "importance")]


def needs_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'plot')")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result")
    Study.load("moe-30b-a3b").run(trials=24, seed=0, out=path, progress="quiet")
    return path


@pytest.fixture(scope="module")
def pictures(folder: Path) -> dict[str, Plot]:
    needs_matplotlib()
    return {kind: make_plot(subject_of(str(folder)), kind) for kind in KINDS}


def _texts(figure: Any) -> list[tuple[str, Any]]:
    """Every visible text with its box in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    unseen: set[int] = set()  # labels of ticks outside an axis' limits keep their text but are not drawn
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    unseen |= {id(tick.label1), id(tick.label2)}
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in unseen]
    return [(t.get_text(), box) for t in shown if (box := t.get_window_extent(renderer)).width > 0]


def test_the_importance_picture_claims_an_association_and_no_cause(pictures: dict[str, Plot]) -> None:
    shown = " ".join(text for text, _ in _texts(pictures["importance"].figure))
    assert "Association of each dimension with the objective" in shown and "not the effect of one dimension alone" in shown
    assert "tokens/s/GPU at 20 tokens/s/user" in shown  # the objective in words
    assert "decides" not in shown and "Importance" not in shown


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_text_lies_over_another_or_leaves_the_picture(pictures: dict[str, Plot], kind: str) -> None:
    texts = _texts(pictures[kind].figure)
    size = pictures[kind].figure.bbox
    assert len(texts) > 3
    for text, box in texts:
        assert box.x1 <= size.width + 1 and box.y1 <= size.height + 1, text
    for (one, a), (two, b) in itertools.combinations(texts, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart or (one == two and np.allclose(a.extents, b.extents)), f"'{one}' and '{two}' overlap"


@pytest.mark.parametrize("kind", list(KINDS))
def test_axes_are_labelled_and_legible_at_slide_size(pictures: dict[str, Plot], kind: str) -> None:
    figure = pictures[kind].figure
    heading = figure.get_suptitle() or "".join(axis.get_title(loc="left") for axis in figure.axes)
    assert heading
    if kind != "breakdown":  # pies have no axes
        first = figure.axes[0]
        assert first.get_xlabel() or first.get_ylabel()
        assert figure.axes[-1].get_xlabel() or figure.axes[-1].get_ylabel()
    from matplotlib.text import Text

    sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    assert min(sizes) >= 9  # points, on a figure at least 6.4 inches wide


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_picture_is_also_data(pictures: dict[str, Plot], kind: str, tmp_path: Path) -> None:
    image, numbers = pictures[kind].save(tmp_path / f"{kind}.png", dpi=50)
    assert image.read_bytes()[:4] == b"\x89PNG"
    read = list(csv.DictReader(io.StringIO(numbers.read_text())))
    assert len(read) == len(pictures[kind].rows) > 0
    for name, value in pictures[kind].rows[0].items():
        assert read[0][name] == ("" if value is None else repr(value) if isinstance(value, float) else str(value))


def test_same_numbers_give_the_same_svg(tmp_path: Path) -> None:
    needs_matplotlib()
    rows = [{"trials": i, "seconds": i / 10, "hypervolume": i / (i + 1)} for i in range(5)]
    first, second = (draw_history(rows).save(tmp_path / f"{n}.svg")[0].read_text() for n in "ab")
    assert "<svg" in first
    assert len(first) == len(second)


def test_curve_gives_the_best_point_with_at_least_the_rate() -> None:
    curve = Curve("c", np.array([50.0, 10.0, 100.0]), np.array([30.0, 40.0, 5.0]))  # unordered on purpose
    # at least 10 tokens/s/user: 40; at least 11: the point at 50; at least 100: 5; above: none
    assert curve.at(np.array([5.0, 10.0, 11.0, 50.0, 100.0, 101.0])).tolist() == [40.0, 40.0, 30.0, 30.0, 5.0, 0.0]
    assert [row["tokens_per_second_per_user"] for row in frontier_rows([curve])] == [10.0, 50.0, 100.0]


def test_the_drawn_line_is_straight_on_a_log_axis() -> None:
    curve = Curve("c", np.array([10.0, 1000.0]), np.array([40.0, 20.0]))
    # 100 lies half-way between 10 and 1000 on a log axis: 30; level before the first point, nothing beyond the last
    assert curve.between(np.array([1.0, 100.0, 1000.0, 1001.0])).tolist() == pytest.approx([40.0, 30.0, 20.0, 0.0])


def test_models_are_drawn_beside_a_result(folder: Path) -> None:
    needs_matplotlib()
    subject = dataclasses.replace(subject_of(str(folder)), models=("gpt-oss-20b", "Llama-3.1-8B"))
    rows = make_plot(subject, "frontier").rows
    roles = {row["name"]: row["role"] for row in rows}
    assert roles["gpt-oss-20b"] == roles["Llama-3.1-8B"] == "model" and roles["Qwen3-30B-A3B"] == "reference"


def test_bad_curves_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="role must be one of"):
        Curve("c", np.ones(1), np.ones(1), "best")
    with pytest.raises(InvalidValueError, match="same shape"):
        Curve("c", np.ones(2), np.ones(3))
    with pytest.raises(InvalidValueError, match="positive"):
        Curve("c", np.zeros(1), np.ones(1))
    with pytest.raises(InvalidValueError, match="at least one curve"):
        draw_frontier([])


def test_layer_products_of_a_known_model() -> None:
    found = {gemm.name: gemm for gemm in layer_gemms(load_model("Qwen3-30B-A3B"))}
    assert (found["qkv"].n, found["qkv"].k) == ((32 + 2 * 4) * 128, 2048)  # fused query, key, value
    assert (found["attention out"].n, found["attention out"].k) == (2048, 32 * 128)
    assert (found["expert gate-up"].n, found["expert gate-up"].k) == (2 * 768, 2048)
    assert (found["expert down"].n, found["expert down"].k) == (2048, 768)
    assert found["LM head"].format == "bf16" and found["LM head"].n == 151936
    shards = {gemm.name: gemm for gemm in layer_gemms(load_model("Qwen3-30B-A3B"), Layout(tpa=8, tpf=2, ep=4))}
    assert shards["qkv"].n == (4 + 2 * 1) * 128  # 32/8 query heads, ceil(4/8) KV heads
    assert shards["expert down"].k == 384 and shards["expert down"].experts == 32
    mla = {gemm.name: gemm for gemm in layer_gemms(load_model("DeepSeek-R1"))}
    assert mla["q, kv down"].n == 1536 + 512 + 64 and mla["q up"].n == 128 * 192


def test_layers_stay_under_the_roof() -> None:
    peak = {"nvfp4": 15e15, "bf16": 2.5e15}  # GB300, NVIDIA co-design post, Fig. 6
    for row in roofline_rows(load_model("Qwen3-30B-A3B"), profile="ideal"):
        roof = min(peak[row["format"]], row["flop_per_byte"] * 8e12)
        assert row["flop_per_second"] <= roof * (1 + 1e-9)
        assert row["flop_per_second"] >= roof / 2  # reads, writes and math overlap perfectly in the ideal profile


def test_format_bars_are_the_posts_figure_6() -> None:
    assert [row["flop_per_second"] for row in format_rows(["gb300"])] == [2.5e15, 5e15, 15e15]
    assert [row["format"] for row in format_rows(["h100"])] == ["BF16", "FP8"]  # no FP4 tensor cores


def test_threshold_is_where_the_sweep_stays_above_the_share() -> None:
    shares = [0.1, 0.85, 0.7, 0.8, 0.95, 1.0]
    rows = [{"dimension": "K", "size": 100 * (i + 1), "share": share} for i, share in enumerate(shares)]
    assert threshold(rows, "K") == 400  # 200 is above 80 % too, but 300 falls below again
    assert threshold(rows, "K", 0.05) == 100


def test_sawtooth_marks_multiples_and_widens_for_the_design() -> None:
    rows = sawtooth_rows(low=1024, high=1536, step=64)
    assert {row["n"]: row["multiple"] for row in rows if row["n"] in (1024, 1280, 1408, 1088)} == {
        1024: 512,
        1280: 256,
        1408: 128,
        1088: 64,
    }
    assert (
        sweep_range({"a": 1536}) == (1024, 6144)
        and sweep_range({"a": 7000}) == (2048, 7680)
        and sweep_range({"far": 57344}) == (2048, 6144)
    )


def test_first_token_falls_and_throughput_stays_over_pipeline_depth() -> None:
    # NVIDIA co-design post, Fig. 9 (DeepSeek-R1, 256K input): FTL falls at every doubling, tokens/s/GPU roughly constant
    rows = ttft_rows(load_model("DeepSeek-R1"), Layout(tpa=2, ep=2), profile="gb300-blog")
    times, rates = [row["ttft_seconds"] for row in rows], [row["tokens_per_second_per_gpu"] for row in rows]
    assert [row["pp"] for row in rows] == [1, 2, 4, 8, 16, 32]
    assert all(later < 0.8 * earlier for earlier, later in itertools.pairwise(times))
    assert min(rates) > 0.9 * max(rates)


def test_alignment_map_is_the_sum_of_both_products() -> None:
    row = alignment_rows([2048], [768], tokens=1024, profile="ideal")[0]
    # gate-up 1024 x 1536 x 2048 and down 1024 x 2048 x 768 in NVFP4 at 4.5 bits, BF16 out, 8 TB/s: both memory-bound
    up = (1024 * 2048 + 1536 * 2048) * 4.5 / 8 + 1024 * 1536 * 2
    down = (1024 * 768 + 2048 * 768) * 4.5 / 8 + 1024 * 2048 * 2
    flop = 2 * 1024 * 2048 * (1536 + 768)
    assert row["flop_per_second"] == pytest.approx(flop / ((up + down) / 8e12), rel=0.35)
    assert row["aligned_256"] is True


def test_round_steps_and_csv() -> None:
    assert round_steps(8, 600) == [10, 20, 50, 100, 200, 500]
    assert rows_to_csv([{"a": 0.1, "b": "x"}, {"a": 2.0, "b": "y"}]) == "a,b\n0.1,x\n2.0,y\n"
    assert rows_to_csv([]) == ""


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidValueError, match=r"pip install 'shapefront\[plot\]'"):
        draw_history([{"trials": 1, "seconds": 0.1, "hypervolume": 1.0}])


def test_unknown_pictures_and_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError, match=r"unknown picture 'frontiers' \(did you mean 'frontier'\?\)"):
        make_plot(subject_of("Qwen3-30B-A3B"), "frontiers")
    with pytest.raises(InvalidValueError, match=r"ends in \.png, \.svg, \.pdf"):
        Plot("x", None, []).save(tmp_path / "x.gif")
    with pytest.raises(InvalidValueError, match="is of a search"):
        make_plot(subject_of("Qwen3-30B-A3B"), "history")


@pytest.mark.parametrize("model", ["Llama-3.1-70B", "DeepSeek-R1"])
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_models_have_pictures_too(model: str, kind: str) -> None:
    needs_matplotlib()
    texts = _texts(make_plot(subject_of(model), kind).figure)
    for (one, a), (two, b) in itertools.combinations(texts, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart or (one == two and np.allclose(a.extents, b.extents)), f"'{one}' and '{two}' overlap"


def test_the_command_writes_picture_and_numbers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_matplotlib()
    with pytest.raises(SystemExit) as done:
        main(["plot", str(folder), "alignment", "--out", str(tmp_path / "a.png")])
    assert done.value.code == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "a.png"), str(tmp_path / "a.csv")]
    with pytest.raises(SystemExit) as done:
        main(["plot", str(folder), "pie"])
    assert done.value.code == 2
    assert "unknown picture 'pie'" in capsys.readouterr().err
