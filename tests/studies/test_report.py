"""The report: what it says, and that a real browser shows it without an error, a request, or a mouse."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shapefront.costmodel import InvalidValueError
from shapefront.studies.report import report_html, write_report
from shapefront.studies.reporting.page import guidelines_section, table
from shapefront.studies.reporting.words import gains, headline, layout_text, percent, priced_gain
from shapefront.studies.result import Result
from shapefront.studies.study import Study
from tests.studies.small import small_study


@pytest.fixture(scope="module")
def result() -> Result:
    return Study.load("moe-30b-a3b").run(trials=24, seed=0)


@pytest.fixture(scope="module")
def page(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(result, tmp_path_factory.mktemp("report") / "report.html")


def _row(rates: list[float], name: str = "r", **more: Any) -> dict[str, Any]:
    points = [{"rate": rate, "tokens_per_second_per_gpu": value} for rate, value in zip((20.0, 100.0), rates, strict=True)]
    return {
        "architecture_id": name,
        "name": name,
        "equal_quality": True,
        "at_rates": points,
        "frontier_area_over_reference": 1.0,
        **more,
    }


def test_gains_are_relative_to_the_reference() -> None:
    # 120/100 − 1 = +20 %, 45/50 − 1 = −10 %; a reference that serves nobody at a rate has nothing to compare with
    (first, up), (second, down) = gains(_row([120.0, 45.0]), _row([100.0, 50.0]))
    assert (first, second) == (20.0, 100.0) and up == pytest.approx(0.2) and down == pytest.approx(-0.1)
    assert gains(_row([120.0, 45.0]), _row([100.0, 0.0]))[1] == (100.0, None)


def test_percent_has_sign_and_minus() -> None:
    assert (percent(0.2), percent(-0.013), percent(None), percent(float("nan"))) == ("+20.0 %", "−1.3 %", "–", "–")


def test_the_waterfalls_priced_steps_compound() -> None:
    gains = {"size": 5.0, "alignment": 0.1, "width_depth": 0.2, "ffn_split": 0.0, "kv": 9.0, "sparsity": 3.0}
    steps = [{"id": name, "gain": gain} for name, gain in gains.items()]
    assert priced_gain({"waterfall": {"steps": steps}}) == pytest.approx(1.1 * 1.2 - 1)
    assert priced_gain({}) is None


def test_the_headline_does_not_claim_what_is_not_there() -> None:
    reference = _row([100.0, 50.0], "Model-X")
    assert "nothing beats Model-X" in headline([_row([100.2, 50.1], "a1", frontier_area_over_reference=1.002)], reference)
    assert "No design of the front is at equal quality with Model-X" in headline(
        [_row([300.0, 90.0], equal_quality=False)], reference
    )
    assert "No design" in headline([], reference)
    kv_only = {"steps": [{"id": "width_depth", "gain": 0.001}, {"id": "kv", "gain": 0.5}]}
    text = headline([_row([150.0, 75.0], "a1", frontier_area_over_reference=1.5, waterfall=kv_only)], reference)
    assert "gain nothing over Model-X" in text and "not priced" in text


def test_a_budget_of_its_own_is_not_compared_in_quality() -> None:
    reference = _row([100.0, 50.0], "Model-X", total_params=8_000_000_000)
    shape = {"num_hidden_layers": 34, "hidden_size": 4096, "attention": "gqa", "num_attention_heads": 32, "head_dim": 128}
    shape |= {"num_key_value_heads": 4, "num_experts": 0, "intermediate_size": 23040}
    text = headline([_row([70.0, 30.0], "a1", equal_quality=False, **shape)], reference, 12e9)
    assert text.startswith("Best design for 12.00B parameters: a1, 34 layers of width 4,096")
    assert "Model-X has 8.00B: it is a yardstick" in text


def test_layouts_in_words() -> None:
    point = {"tpa": 1, "kvp": 1, "dpa": 8, "tpf": 1, "ep": 8, "pp": 1, "gpus": 8}
    assert layout_text(point) == "DPA 8 · EP 8 on 8 GPUs"
    assert layout_text(dict.fromkeys(point, 1)) == "1 GPU"
    assert layout_text(dict.fromkeys(point)) == "out of reach"


def test_table_cells_are_escaped_and_sortable_by_value() -> None:
    html = table([("name", False), ("size", True)], [("", ["<b>&", ("30.5B", 30.5e9)])], 'a "label"')
    assert "&lt;b&gt;&amp;" in html and "data-v='30500000000.0'" in html and "a &quot;label&quot;" in html


def test_the_answer_comes_first_and_five_designs_have_their_say(page: Path, result: Result) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.index("class='lead'") < text.index("class='designs'") < text.index("id='frontier'") < text.index("Provenance")
    cards = re.search(r"<ol class='designs'>(.*?)</ol>", text, re.S)
    assert cards and cards.group(1).count("<li ") == 5  # ranked designs, then the nearest ones off the fronts
    best = result.ranked_rows[0]
    ratio = best["frontier_area_over_reference"] - 1
    assert percent(ratio) in cards.group(1)
    assert "Qwen3-30B-A3B" in text and str(result.data["settings"]["profile"]) in text and "seed" in text


def test_nothing_in_the_page_points_outside(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text)
    assert "@import" not in text and "url(" not in text and "fetch(" not in text
    assert "default-src 'none'" in text


def test_hostile_names_stay_text(result: Result, tmp_path: Path) -> None:
    data = json.loads(json.dumps(result.data))
    evil = "</script><script>alert(1)</script>{{data}}"
    data["title"] = data["reference"]["name"] = evil
    text = report_html(Result(data), guidelines=False)
    assert "<script>alert" not in text and "{{data}}" in text  # shown as text, not filled in
    assert text.count("</script>") == 2


def test_a_result_with_no_design_still_has_a_page(result: Result) -> None:
    data = {**result.data, "architectures": [], "pareto": [], "runners_up": []}
    text = report_html(Result(data))
    assert "No design of the front" in text and "Provenance" in text


def test_a_dense_study_says_nothing_about_experts() -> None:
    text = report_html(small_study().run(trials=8, seed=0), guidelines=False)
    for word in ("MoE", "experts", "router", "routing", "shared"):
        assert word not in re.sub(r"<(style|script).*?</\1>|<details>.*?</details>|held-out.*?</tr>", "", text, flags=re.S), word


# A real browser, driven over the WebDriver protocol


class Browser:
    """One headless Chromium session."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.root = f"http://127.0.0.1:{port}"
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
        flags += f"--disable-sync --hide-scrollbars --user-data-dir={folder}"
        options = {"args": flags.split(), "binary": shutil.which("chromium") or shutil.which("chromium-browser")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        for _ in range(100):
            try:
                reply = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        self.base = f"/session/{reply['sessionId']}"

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.root + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())["value"]

    def open(self, page: Path, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._post(f"{self.base}/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self._post(f"{self.base}/url", {"url": page.as_uri()})

    def emulate(self, media: str = "", features: list[dict[str, str]] | None = None) -> None:
        params = {"media": media, "features": features or []}
        self._post(f"{self.base}/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": params})

    def run(self, script: str) -> Any:
        return self._post(f"{self.base}/execute/sync", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._post(f"{self.base}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._post(f"{self.base}/se/log", {"type": kind})
        return entries

    def close(self) -> None:
        request = urllib.request.Request(self.root + self.base, method="DELETE")  # closes the browser
        urllib.request.urlopen(request, timeout=60).close()
        self.process.terminate()
        self.process.wait(timeout=20)


TAB, RIGHT, DOWN, ENTER, HOME = "\ue004", "\ue014", "\ue015", "\ue007", "\ue011"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not shutil.which("chromedriver") or not (shutil.which("chromium") or shutil.which("chromium-browser")):
        pytest.skip("Chromium and chromedriver are not installed (packages chromium and chromium-driver)")
    driven = Browser(tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_a_browser_shows_it_without_error_or_request(browser: Browser, page: Path, width: int) -> None:
    browser.log("performance")
    browser.open(page, width)
    drawn = browser.run(
        "return [document.querySelectorAll('#frontier svg path.line').length, document.documentElement.scrollWidth]"
    )
    assert drawn[0] >= 2  # a design and the reference
    assert drawn[1] <= width  # the page itself never scrolls sideways; tables scroll in their frames
    assert [entry for entry in browser.log("browser") if entry["level"] != "INFO"] == []
    requests = [
        message["params"]["request"]["url"]
        for entry in browser.log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in requests
    assert [url for url in requests if not url.startswith(("file:", "data:", "chrome:"))] == []  # chrome: the start page's own
    small = browser.run(
        "return [...document.querySelectorAll('p, td, th, li, text')].filter(n => n.textContent.trim() && "
        "parseFloat(getComputedStyle(n).fontSize) < 11).length"
    )
    assert small == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_chart_texts_do_not_overlap(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    overlaps = browser.run(
        "const b = [...document.querySelectorAll('#frontier text')].map(t => [t.textContent, t.getBoundingClientRect()]);"
        "const hits = []; for (let i = 0; i < b.length; i++) for (let j = i + 1; j < b.length; j++) { const p = b[i][1], q = b[j][1];"
        "if (p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom) hits.push([b[i][0], b[j][0]]); } return hits"
    )
    assert overlaps == []


CONTRAST = """
const light = (text) => { const c = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
const ground = (node) => { for (let n = node; n; n = n.parentElement) { const c = getComputedStyle(n).backgroundColor;
  if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
return [...document.querySelectorAll('h1, h2, h3, p, td, th, li, dt, dd, label, summary, text')].filter(n => n.textContent.trim()).map(n => {
  const style = getComputedStyle(n), ink = light(n.tagName === 'text' ? style.fill : style.color), back = light(ground(n));
  return (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05); }).reduce((a, b) => Math.min(a, b));
"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_colour_schemes(browser: Browser, page: Path, scheme: str) -> None:
    browser.emulate(features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page, 1440)
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert browser.run(CONTRAST) >= 4.5  # WCAG 2.2, 1.4.3
    browser.emulate(features=[])


@pytest.mark.browser
def test_it_prints_on_a_landscape_page(browser: Browser, page: Path) -> None:
    width = round((297 - 2 * 12) / 25.4 * 96)  # A4 less the margins, CSS pixels
    browser.emulate(media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.open(page, width)
    cut = "return [...document.querySelectorAll('.scroll')].filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.ariaLabel)"
    assert browser.run(cut) == []  # paper does not scroll
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.emulate(features=[])


@pytest.mark.browser
def test_keyboard_reaches_every_point_and_the_panel_follows(browser: Browser, page: Path, result: Result) -> None:
    browser.open(page, 1440)
    for _ in range(60):
        browser.press(TAB)
        if browser.run("return document.activeElement.closest('#frontier svg') !== null"):
            break
    first = browser.run("return document.getElementById('point').textContent")
    browser.press(RIGHT)
    second = browser.run("return document.getElementById('point').textContent")
    assert first != second and "tokens/s/GPU" in second
    browser.press(HOME)
    browser.press(*[RIGHT] * 200)
    label = browser.run("return document.activeElement.getAttribute('aria-label')")
    top = result.ranked_rows[0]
    assert label.startswith(top["architecture_id"] + ":")
    fastest = top["frontier"][-1]["tokens_per_second_per_user"]
    shown = f"{round(fastest):,}" if fastest >= 1000 else f"{fastest:.4g}"
    assert f"{shown} tokens/s/user" in label
    browser.press(DOWN)
    assert not browser.run("return document.activeElement.getAttribute('aria-label')").startswith(top["architecture_id"] + ":")
    outline = browser.run("return getComputedStyle(document.activeElement).strokeWidth")
    assert outline == "4px"  # the focused point is visible as such


@pytest.mark.browser
def test_tables_sort_by_value_with_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    column = "[...document.querySelectorAll('table.sortable')][1]"
    browser.run(f"{column}.querySelectorAll('thead button')[2].focus()")
    browser.press(ENTER)
    state = browser.run(f"return {column}.querySelectorAll('thead th')[2].getAttribute('aria-sort')")
    values = browser.run(f"return [...{column}.tBodies[0].rows].map(r => Number(r.cells[2].dataset.v))")
    assert state == "descending" and values == sorted(values, reverse=True) and len(set(values)) > 1
    browser.press(ENTER)
    values = browser.run(f"return [...{column}.tBodies[0].rows].map(r => Number(r.cells[2].dataset.v))")
    assert values == sorted(values)


@pytest.mark.browser
def test_curves_differ_without_colour(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    roles = browser.run("return JSON.parse(document.getElementById('data').textContent).series.map(s => s.role)")
    looks = browser.run(
        "return [...document.querySelectorAll('#frontier svg path.line')].map(p => p.getAttribute('stroke-dasharray'))"
    )
    by_role = dict(zip(roles, looks, strict=True))
    marks = browser.run("return [...document.querySelectorAll('#legend svg path')].map(p => p.getAttribute('d'))")
    assert len(set(marks)) == len(roles)  # each curve has a marker of its own
    assert len(set(by_role.values())) == len(by_role)  # line style tells the reference, equal-quality and open designs apart


def test_a_report_needs_a_folder_that_can_be_written(result: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValueError, match="file"):
        write_report(result, tmp_path / "file" / "report.html", guidelines=False)


def test_the_guidelines_name_the_loss_of_a_fix() -> None:
    finding: dict[str, Any] = {
        "id": "SF009", "guideline": 6, "message": "deep", "cost_share_throughput": 0.355, "cost_share_latency": 0.333,
        "fix": {"num_hidden_layers": 22}, "gain_throughput": 0.6285, "gain_latency": None, "loss_change": 0.0094,
    }  # fmt: skip
    text = guidelines_section("a001", [finding])
    assert "+62.9 %" in text or "+62.8 %" in text
    assert "+0.0094, not equal quality" in text and "num_hidden_layers=22" in text and "equal quality allows 0.002" in text
    plain = guidelines_section("a001", [{**finding, "loss_change": None, "fix": {"formats.lm_head": "nvfp4"}}])
    assert "not equal quality" not in plain and "equal quality allows" not in plain


def test_designs_with_other_waterfall_steps_still_have_a_page(result: Result) -> None:
    first, *rest = result.data["architectures"]
    short = {**first, "waterfall": {**first["waterfall"], "steps": first["waterfall"]["steps"][:1]}, "twin_of": None}
    text = report_html(Result({**result.data, "architectures": [first, short, *rest]}), guidelines=False)
    assert "Where the gain comes from" in text
