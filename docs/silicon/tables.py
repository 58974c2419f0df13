"""The error tables of ``docs/silicon.md``: ``python docs/silicon/tables.py`` measures again and writes them in place.

Every figure comes from ``shapefront.costmodel.calibration.validate`` (what ``shapefront validate`` prints), on held-out
rows only, and from the shipped profiles. Needs the extra ``silicon``; about a minute.
"""

from __future__ import annotations

import datetime
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shapefront.costmodel import load_profile
from shapefront.costmodel.calibration import STACKS, MeasuredTables, open_tables, validate
from shapefront.costmodel.calibration.pairs import pair_errors
from shapefront.costmodel.calibration.split import gemm_held_out

PAGE = Path(__file__).parents[1] / "silicon.md"
Goal = tuple[float, float, float]  # median, p90, Spearman; NaN where none is set
NONE = (float("nan"),) * 3
NAN = float("nan")
DTYPES = {"nvfp4": "nvfp4", "fp8_block": "fp8_block", "fp8": "fp8", "bf16": "bfloat16"}


def goal(row: dict[str, Any]) -> Goal:
    """The goals a line of the table is held to, as fractions."""
    family, name, stack = row["family"], row["format"], row["stack"]
    first = stack == "trtllm"
    if family == "gemm":
        return (0.07, 0.18, 0.99) if name in ("nvfp4", "fp8_block") else (0.08, 0.25, 0.99)
    if family == "attention_prefill":
        if "window" in name:
            return 0.06, 0.20, 0.99
        return (0.03, 0.08, 0.99) if first else (0.05, 0.14, 0.99)
    if family == "moe":
        return (0.06, 0.16, 0.98) if first else (0.08, 0.22, 0.98)
    if family == "all_to_all":
        low_latency = "deepep_ll" in name or (":" not in name and not first)
        return (0.04, 0.14, NAN) if low_latency else (0.07, 0.20, NAN)
    fixed = {
        "attention_decode": (0.055, 0.18, NAN) if stack == "sglang" else (0.05, 0.13, NAN),
        "mla_prefill": (0.04, 0.12, NAN),
        "mla_decode": (0.065, 0.18, NAN),
        "all_reduce": (0.03, 0.10, NAN),
        "collective": (0.03, 0.10, NAN),
    }
    return fixed.get(family, NONE)


def misses(row: dict[str, Any]) -> list[str]:
    """Which of the goals a line does not reach, rounded as printed."""
    median, p90, spearman = goal(row)
    out = []
    if round(row["median"], 3) > median:
        out.append(f"median > {100 * median:g}")
    if round(row["p90"], 3) > p90:
        out.append(f"p90 > {100 * p90:g}")
    if row["spearman"] < spearman:
        out.append(f"Spearman < {spearman}")
    return out


def percent(value: float | None) -> str:
    """A fraction in per cent, or a dash."""
    return "–" if value is None or value != value else f"{100 * value:.1f}"


def error_lines(rows: list[dict[str, Any]], *, goals: bool) -> list[str]:
    """The error table as Markdown."""
    head = "| stack | family | format | rows | excluded | median % | p90 % | bias % | Spearman | roofline % | three numbers % |"
    lines = [head + (" goal |" if goals else ""), "|---|---|---|" + "---:|" * 8 + ("---|" if goals else "")]
    for row in rows:
        figures = [percent(row[k]) for k in ("median", "p90", "bias")]
        rank = "–" if row["spearman"] is None else f"{row['spearman']:.4f}"
        cells = [row["stack"], row["family"], row["format"], f"{row['n']:,}", f"{row['excluded']:,}", *figures, rank]
        cells += [percent(row["roofline_median"]), percent(row["three_number_median"])]
        if goals:
            set_goal = goal(row)[0] == goal(row)[0]
            cells.append("no rows" if not row["n"] else "none set" if not set_goal else ", ".join(misses(row)) or "met")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def excluded_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What was left out and how many rows, by table line."""
    lines = ["| stack | family | format | rows left out |", "|---|---|---|---|"]
    for row in rows:
        note = re.sub(r"^(modules, )?(above 30 us: [^;]*; ?)?", "", row["note"])
        if row["excluded"] and note:
            lines.append(f"| {row['stack']} | {row['family']} | {row['format'].removesuffix(' window')} | {note} |")
    return list(dict.fromkeys(lines))


def pair_lines() -> list[str]:
    """Predicted ratios of neighbouring held-out GEMMs beside what a second measurement of the same chip gives."""
    lines = [
        "| stack | format | pairs | ours: median / p90 %, sign % | B300 for GB300: median / p90 %, sign % | goal |",
        "|---|---|---:|---|---|---|",
    ]
    for stack in STACKS:
        first, second = (gemm_table(open_tables(gpu, stack)) for gpu in ("gb300", "b300"))
        for name, dtype in DTYPES.items():
            ours = load_profile(f"gb300-{stack}").family("gemm", name).pairs
            if not ours or name not in load_profile(f"gb300-{stack}").families["gemm"]:
                continue
            both = first[first["dtype"] == dtype].merge(second[second["dtype"] == dtype], on=["m", "n", "k"])
            both = both[gemm_held_out(both["n"], both["k"])]
            sizes = {c: both[c].to_numpy(np.float64) for c in "mnk"}
            again = pair_errors(sizes, both["latency_y"].to_numpy(), both["latency_x"].to_numpy())
            met = round(ours["median"], 3) <= 0.03 and round(ours["p90"], 3) <= 0.08 and ours["sign"] >= 0.95
            cells = [f"{percent(p['median'])} / {percent(p['p90'])}, {percent(p['sign'])}" for p in (ours, again)]
            lines.append(f"| {stack} | {name} | {int(ours['rows']):,} | {cells[0]} | {cells[1]} | {'met' if met else 'missed'} |")
    return lines


def gemm_table(tables: MeasuredTables) -> pd.DataFrame:
    """Measured GEMMs, one row a shape."""
    frame = tables.read("gemm", "gemm")
    if frame is None:
        raise SystemExit("the GEMM tables are not installed: pip install 'shapefront[silicon]'")
    return frame.rename(columns={"gemm_dtype": "dtype"}).groupby(["dtype", "m", "n", "k"], as_index=False)["latency"].first()


def put(text: str, name: str, lines: list[str]) -> str:
    """The page with the block between ``<!-- NAME -->`` and ``<!-- end NAME -->`` replaced."""
    block = "\n".join([f"<!-- {name} -->", *lines, f"<!-- end {name} -->"])
    return re.sub(f"<!-- {name} -->.*?<!-- end {name} -->", lambda _: block, text, flags=re.DOTALL)


def main() -> None:
    """Measure, and write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = [row for row in validate("gb300") if row["family"] != "elementwise"]
    missed = [f"{r['stack']} {r['family']} {r['format']}" for r in rows if r["n"] and misses(r)]
    judged = [r for r in rows if r["n"] and goal(r)[0] == goal(r)[0]]
    met = f"{len(judged) - len(missed)} of {len(judged)} lines with a goal meet it"
    said = f"{today}, aiconfigurator-core {version('aiconfigurator-core')}: {met}."
    text = put(text, "errors", [said, "", *error_lines(rows, goals=True)])
    text = put(text, "excluded", excluded_lines(rows))
    text = put(text, "pairs", [today + ".", "", *pair_lines()])
    for name, on in (("b300", "b300"), ("gb200", "gb200")):
        found = [r for r in validate("gb300", on=on) if r["n"] and r["family"] not in ("elementwise", "bmm")]
        text = put(text, name, [today + ".", "", *error_lines(found, goals=False)])
    PAGE.write_text(text, encoding="utf-8")
    print(said)
    print("missed:", "; ".join(missed))


if __name__ == "__main__":
    main()
