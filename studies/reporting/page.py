"""The report's sections as HTML, and the data its script draws from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..check import fix_loss_text, limits_text
from ..output import count, number, plain
from ..ranking import differing, extra_objectives, ranked_by, ranked_by_text
from ..step_parts import CONSTANT, EXPLAINED, step_parts
from .words import Row, design_sentences, headline, hypervolume_text, layout_text, percent, runner_up_sentences, shape_text

if TYPE_CHECKING:
    from ..result import Result

SHOWN = 5  # designs of the answer
DRAWN = 6  # designs of the chart
COLUMNS = (
    ("H", "hidden_size"),
    ("H′", "intermediate_size"),
    ("H′e", "moe_intermediate_size"),
    ("layers", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
    ("KV heads", "num_key_value_heads"),
    ("head size", "head_dim"),
    ("MLA rank", "kv_lora_rank"),
    ("experts", "num_experts"),
    ("top-k", "num_experts_per_tok"),
    ("shared", "n_shared_experts"),
)  # of the ranked table; those that are 0 everywhere are left out


def page(
    result: Result, *, guidelines: str = "", provenance: Mapping[str, str] | None = None, caveats: Sequence[str] = ()
) -> str:
    """The whole page, self-contained.

    Args:
        result: what a study found.
        guidelines: section from :func:`guidelines_section`, empty for none.
        provenance: name → text lines about versions, profile and machine.
        caveats: what the quality figures do not say.
    """
    body = "\n".join(
        [
            _answer(result),
            _chart(result),
            _ranked(result),
            _layouts(result),
            _waterfalls(result),
            guidelines,
            _caveats(result, caveats),
            _provenance(result, provenance or {}),
        ]
    )
    parts = {
        "title": escape(f"shapefront: {result.data['study']}"),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        "body": body,
        "data": _script_json(_chart_data(result)),
    }
    text = _asset("template.html")
    head, *rest = text.split("{{")
    out = [head]
    for piece in rest:  # each placeholder once, never inside what was filled in
        name, _, tail = piece.partition("}}")
        out += [parts[name], tail]
    return "".join(out)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _answer(result: Result) -> str:
    data, reference = result.data, result.reference
    rows = result.ranked_rows
    items, extra = [], extra_objectives(result)
    for row in rows[:SHOWN]:
        kind, tag = ("equal", "equal quality") if row["equal_quality"] else ("open", "open front")
        items.append(_item(kind, f"{row['rank']}. {row['architecture_id']}", tag, design_sentences(row, reference, extra)))
    for index, row in enumerate(data.get("runners_up", [])[: max(0, SHOWN - len(rows))], 1):
        name = row.get("architecture_id") or f"close behind {index}"
        tag = f"just off the fronts, {'equal quality' if row['equal_quality'] else 'open'}"
        items.append(_item("near", str(name), tag, runner_up_sentences(row, reference)))
    lead = headline(rows, reference, data.get("settings", {}).get("total_params"), ranked_by(result))
    state = " The run was interrupted; these are the results so far." if result.interrupted else ""
    return (
        f"<header><p class='soft'>shapefront report · study {escape(data['study'])}</p><h1 id='answer' tabindex='-1'>"
        f"{escape(data.get('title') or data['study'])}</h1></header>"
        f"<p class='lead'>{escape(lead)}{state}</p>"
        f"<p class='soft'>Reference: {escape(str(reference.get('name', 'reference')))}: {escape(shape_text(reference))}. "
        f"{escape(_setting(result))}</p><ol class='designs'>{''.join(items)}</ol>"
    )


def _item(kind: str, heading: str, tag: str, sentences: Sequence[str]) -> str:
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<li class='{kind}'><h3>{escape(heading)}</h3><div class='tag'>{escape(tag)}</div>{text}</li>"


def _setting(result: Result) -> str:
    s = result.data.get("settings", {})
    return f"Priced with profile {s.get('profile', '?')} for {s.get('workload_text', 'the study workload')}."


def _chart(result: Result) -> str:
    rows = [*result.ranked_rows, result.reference]
    constant = any(CONSTANT in step_parts(point) for row in rows for point in row["frontier"])
    said = f"<p class='soft'>{escape(EXPLAINED[0].upper() + EXPLAINED[1:])}.</p>" if constant else ""
    return (
        "<h2>Frontier</h2><p>Each point is one layout at one concurrency. Point at it, or press Tab and then the arrow keys, "
        "for its layout and where the time goes.</p><fieldset class='legend' id='legend' aria-label='Curves shown'></fieldset>"
        "<div class='chart'><div id='frontier'><noscript>The chart needs JavaScript; its numbers are in the tables below and in "
        "result.json.</noscript></div><div id='point' aria-live='polite'></div></div>"
        f"{said}"
    )


def _chart_data(result: Result) -> dict[str, Any]:
    rows = result.ranked_rows
    chosen = rows[: DRAWN - 1]
    chosen += [row for row in rows[DRAWN - 1 :] if not row["equal_quality"]][: DRAWN - len(chosen)]
    series = []
    for row in [*chosen, result.reference]:
        reference = row["architecture_id"] == "reference"
        series.append(
            {
                "id": row["architecture_id"],
                "name": row.get("name", "reference") if reference else row["architecture_id"],
                "role": "reference" if reference else "design" if row["equal_quality"] else "open",
                "shape": shape_text(row),
                "points": [_chart_point(point) for point in row["frontier"]],
            }
        )
    return {"series": series, "goals": result.data["rates"]}


def _chart_point(point: Row) -> dict[str, Any]:
    found = {
        "user": point["tokens_per_second_per_user"],
        "gpu": point["tokens_per_second_per_gpu"],
        "layout": layout_text(point),
        "concurrency": point["concurrency"],
        "itl": point["itl_seconds"],
        "ttft": point.get("ttft_seconds"),
        "parts": step_parts(point),
    }
    if point.get("prefill_layout"):
        found["prefill"] = (
            f"{number(point['prefill_workers'] / point['decode_workers'], 3)} × {layout_text(point['prefill_layout'])}"
        )
    return found


def table(
    heads: Sequence[tuple[str, bool]], rows: Sequence[tuple[str, Sequence[Any]]], label: str, *, sortable: bool = True
) -> str:
    """An HTML table inside a frame that scrolls sideways.

    Args:
        heads: (text, numeric).
        rows: (class of the row, cells); a cell is text, a number, or (shown text, sort value).
        label: what the table is, for screen readers.
        sortable: let the script add sort buttons.
    """
    head = "".join(f"<th scope='col'{' class=n' if numeric else ''}>{escape(text)}</th>" for text, numeric in heads)
    body = []
    for kind, cells in rows:
        line = []
        for (_, numeric), cell in zip(heads, cells, strict=True):
            shown, value = cell if isinstance(cell, tuple) else (cell if isinstance(cell, str) else number(cell), cell)
            sort = "" if value is None or isinstance(value, str) else f" data-v='{float(value)!r}'"
            kind_of = " class=n" if numeric else " class=long" if len(shown) > 40 else ""
            line.append(f"<td{kind_of}{sort}>{escape(shown)}</td>")
        body.append(f"<tr{f' class={kind}' if kind else ''}>{''.join(line)}</tr>")
    kind = " class='sortable'" if sortable else ""
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(label, quote=True)}'><table{kind}>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _ranked(result: Result) -> str:
    reference = result.reference
    runners_up = [row for row in result.data.get("runners_up", []) if row.get("at_rates")]
    everything = [*result.ranked_rows, *runners_up, reference]
    columns = [(name, key) for name, key in COLUMNS if any(row.get(key) for row in everything)]
    rates = [point["rate"] for point in reference["at_rates"]]
    heads = [("rank", True), ("design", False), ("quality", False), ("area ÷ ref", True)]
    extra = extra_objectives(result)
    heads[3:3] = [(heading, True) for heading, _ in extra]
    heads += [(f"tok/s/GPU @{rate:g}", True) for rate in rates]
    differ = [(heading, key) for heading, key in differing(everything[:-1], reference) if key not in dict(COLUMNS).values()]
    heads += [(heading, key != "family") for heading, key in differ]
    heads += [*((name, True) for name, _ in columns), ("total", True), ("active", True), ("KV B/token", True)]
    heads += [("ΔL_shape, nats/token", True), ("gives up", False)]
    rows: list[tuple[str, list[Any]]] = []
    for row in everything:
        own = row["architecture_id"] == "reference"
        cells: list[Any] = ["" if own else row["rank"], str(row.get("name") or "reference") if own else row["architecture_id"]]
        kind = "equal" if row["equal_quality"] else "open"
        cells.append("reference" if own else f"{kind}, off the front" if row.get("dominated") else kind)
        cells += [row["objectives"].get(name) for _, name in extra]
        cells.append(1.0 if own else row["frontier_area_over_reference"])
        cells += [point["tokens_per_second_per_gpu"] for point in row["at_rates"]]
        cells += [str(row.get(key, "")) if key == "family" else row.get(key) for _, key in differ]
        cells += [row.get(key) for _, key in columns]
        cells += [(count(row["total_params"]), row["total_params"]), (count(row["active_params"]), row["active_params"])]
        cells += [row.get("kv_bytes_per_token"), row["delta_loss_shape"], "; ".join(row.get("gives_up") or [])]
        rows.append(("reference" if own else "", cells))
    note = (
        f"<p class='soft'>Equal-quality designs first, each front by {escape(ranked_by_text(result))}, near-twins grouped; "
        "then what comes next to the fronts. tok/s/GPU @20: output tokens/s of a GPU while every user gets at least 20 tokens/s. "
        "ΔL_shape: predicted loss above that of the best split of width and depth.</p>"
    )
    return f"<h2>Ranked designs</h2>{note}{table(heads, rows, 'Ranked designs')}"


def _layouts(result: Result) -> str:
    heads = [("design", False), ("goal, tokens/s/user", True), ("tokens/s/GPU", True), ("tokens/s/user", True), ("layout", False)]
    heads.append(("sequences in flight", True))
    rows = []
    for row in [*result.ranked_rows[:SHOWN], result.reference]:
        name = str(row.get("name") or "reference") if row["architecture_id"] == "reference" else row["architecture_id"]
        for point in row["at_rates"]:
            figures = [point["rate"], point["tokens_per_second_per_gpu"], point["tokens_per_second_per_user"]]
            rows.append(("", [name, *figures, layout_text(point), point["concurrency"]]))
    return f"<h2>Best layout at each goal</h2>{table(heads, rows, 'Best layouts')}"


def _waterfalls(result: Result) -> str:
    rows = [row for row in result.ranked_rows[:SHOWN] if row.get("waterfall")]
    if not rows:
        return ""
    steps = rows[0]["waterfall"]["steps"]
    heads = [("design", False), *((s["label"] + ("" if s["quality_priced"] else " *"), True) for s in steps), ("together", True)]
    heads += [("total", True), ("active", True)]
    lines = []
    for row in rows:
        found = row["waterfall"]
        gained = {step["id"]: step["gain"] for step in found["steps"]}  # a foreign file may hold other steps for each design
        cells = [(percent(gained.get(step["id"])), gained.get(step["id"])) for step in steps]
        sizes = [(count(row[key]), row[key]) for key in ("total_params", "active_params")]
        lines.append(("", [row["architecture_id"], *cells, (percent(found["total"]), found["total"]), *sizes]))
    note = (
        "<p class='soft'>Frontier area gained step by step from the reference to the design; gains multiply. After ‘size’ every "
        "step is priced at the design’s own total parameters. * quality not priced by any published law.</p>"
    )
    return f"<h2>Where the gain comes from</h2>{note}{table(heads, lines, 'Waterfall of gains')}"


def guidelines_section(name: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """The seven guidelines held against one design.

    Args:
        name: the design.
        findings: dictionaries of a check, worst first.
    """
    if not findings:
        return f"<h2>Guidelines</h2><p>{escape(name)} departs from none of the seven guidelines.</p>"
    heads = [("rule", False), ("guideline", True), ("what", False), ("step time, throughput", True), ("step time, latency", True)]
    heads += [("fix", False), ("gain, throughput", True), ("gain, latency", True), ("fix’s predicted loss, nats/token", True)]
    rows = [
        (
            "",
            [
                finding["id"],
                finding["guideline"],
                finding["message"],
                (percent(finding["cost_share_throughput"]), finding["cost_share_throughput"]),
                (percent(finding["cost_share_latency"]), finding["cost_share_latency"]),
                ", ".join(f"{name}={value}" for name, value in finding["fix"].items()) or "–",
                (percent(finding["gain_throughput"]), finding["gain_throughput"]),
                (percent(finding["gain_latency"]), finding["gain_latency"]),
                (fix_loss_text(finding["loss_change"]), finding["loss_change"]),
            ],
        )
        for finding in findings
    ]
    lead = f"Design {escape(name)} against the seven guidelines of the co-design post: what each departure costs in step time."
    if any(finding["loss_change"] is not None for finding in findings):
        said = limits_text()
        lead += f" {escape(said[0].upper() + said[1:])}."
    return f"<h2>Guidelines</h2><p>{lead}</p>{table(heads, rows, 'Guidelines')}"


def _caveats(result: Result, caveats: Sequence[str]) -> str:
    error = result.data.get("pairwise_error")
    profile = escape(str(result.data.get("settings", {}).get("profile", "?")))
    model = (
        f"The profile {profile} carries no pairwise error, so small differences between designs are not judged."
        if error is None
        else f"The cost model's pairwise error is {error:.1%}: designs closer than that are not told apart."
    )
    items = "".join(
        f"<li>{escape(text)}</li>" for text in [model, "Steady state, no queueing; every figure is an estimate.", *caveats]
    )
    return f"<h2>What these numbers do not say</h2><ul>{items}</ul>"


def failed_text(data: Mapping[str, Any]) -> str:
    """How many trials failed in a user function, and of what."""
    found = "; ".join(f"{row['trials']} x {row['cause']}" for row in data.get("failures", []))
    return f"{data['failed_trials']} ({found})" if found else str(data["failed_trials"])


def _provenance(result: Result, provenance: Mapping[str, str]) -> str:
    data = result.data
    facts = {
        "study": data["study"], "seed": data["seed"], "engine": data.get("engine", ""), "trials": data["trials"],
        "legal trials": data["legal_trials"],
        **({"failed trials": failed_text(data)} if data.get("failed_trials") else {}),
        "legal architectures priced": f"{data['legal_architectures']} of {data.get('legal_in_study', '?')}",
        "hypervolume (objectives over the reference's, larger is better)": hypervolume_text(data["hypervolume"]),
        "certificate": (data.get("certificate") or {}).get("status", "none"),
    }  # fmt: skip
    rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(str(v))}</td></tr>" for k, v in {**facts, **provenance}.items())
    spec = escape(json.dumps(plain(data.get("spec", {})), indent=2))
    frame = "<div class='scroll' tabindex='0' role='region' aria-label='Provenance'>"
    return (
        f"<h2>Provenance</h2>{frame}<table class='facts'><tbody>{rows}</tbody></table></div>"
        f"<details><summary>Study settings</summary><pre tabindex='0'>{spec}</pre></details>"
    )
