"""Error and speed of the kernel models on held-out shapes, beside AIConfigurator's interpolation, in one run.

``python benchmarks/kernels.py [--stack trtllm] [--rows 3000] [--json]``: GEMM, attention and experts of GB300. Both
models have seen the same measured rows: the shipped profile was fitted on them, and AIConfigurator's engine gets the
tables without the held-out shapes. Errors are on rows that both price; what it refuses is counted. Times are processor
seconds of one core, with ``np.exp`` of 10**7 doubles in the same run as the yardstick.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from kernel_peer import QUANT, Peer  # noqa: E402

from shapefront.costmodel import attention, gemm, moe  # noqa: E402
from shapefront.costmodel.calibration import attention as attention_tables  # noqa: E402
from shapefront.costmodel.calibration import moe as moe_tables  # noqa: E402
from shapefront.costmodel.calibration import open_tables  # noqa: E402
from shapefront.costmodel.calibration.attention_rows import read_rows  # noqa: E402
from shapefront.costmodel.calibration.gemm_rows import read_gemm_rows  # noqa: E402
from shapefront.costmodel.calibration.report import errors  # noqa: E402

Floats = np.ndarray[Any, np.dtype[np.float64]]
Priced = tuple[Floats, float]  # seconds of each row, processor seconds it took


def yardstick() -> float:
    """Processor seconds of ``np.exp`` of 10**7 doubles, best of three."""
    values = np.linspace(0, 1, 10**7)
    return min(timed(lambda: np.exp(values))[1] for _ in range(3))


def timed(call: Callable[[], Floats]) -> Priced:
    """A result and its processor seconds."""
    begin = time.process_time()
    found = call()
    return found, time.process_time() - begin


def steady(call: Callable[[], Floats], count: int) -> Priced:
    """As :func:`timed`, repeated until 0.2 s have passed so that a small sample is timed too."""
    call()
    seconds, spent, repeats = call(), 0.0, 0
    while spent < 0.2:
        spent += timed(call)[1]
        repeats += 1
    return seconds, spent / repeats


def sample(held: Any, limit: int) -> Any:
    """Indices of at most ``limit`` held-out rows, the same in every run."""
    found = np.flatnonzero(held)
    return np.sort(np.random.default_rng(0).permutation(found)[:limit])


def line(name: str, format: str, measured: Floats, ours: Priced, peer: Priced) -> dict[str, Any]:
    """One row of the table: errors on the rows both price, rows a second of each."""
    both = np.isfinite(peer[0])
    row: dict[str, Any] = {"kernel": name, "format": format, "rows": int(both.sum()), "refused": int((~both).sum())}
    for who, (seconds, spent) in (("shapefront", ours), ("aiconfigurator", peer)):
        figures = errors(seconds[both], measured[both]) if both.any() else {}
        row |= {f"{who}_{key}": figures.get(key) for key in ("median", "p90", "bias", "spearman")}
        row[f"{who}_rows_per_second"] = measured.size / spent
    return row


def gemm_lines(peer: Peer, tables: Any, profile: str, limit: int) -> list[dict[str, Any]]:
    """Dense GEMMs, every format of the stack."""
    lines = []
    for rows in read_gemm_rows(tables):
        if len(rows) and rows.format in QUANT:
            at = sample(rows.held_out, limit)
            m, n, k = (np.asarray(x)[at] for x in (rows.m, rows.n, rows.k))

            def ours(m: Floats = m, n: Floats = n, k: Floats = k, format: str = rows.format) -> Floats:
                return gemm.gemm_seconds(m, n, k, format=format, profile=profile, warm_l2=True)

            lines.append(line("gemm", rows.format, rows.seconds[at], steady(ours, at.size), peer.gemm(rows.format, m, n, k)))
    return lines


def attention_lines(peer: Peer, tables: Any, profile: str, limit: int) -> list[dict[str, Any]]:
    """Prefill and decode attention, full and windowed apart."""
    lines = []
    for kind, prefill in (("context", True), ("generation", False)):
        for (rows, name), windowed in product(attention_tables.by_format(read_rows(tables, kind), both=prefill), (False, True)):
            part = rows.take(sample(rows.held & ((rows.columns["window"] > 0) == windowed), limit))
            if not part.seconds.size:
                continue
            c = dict(part.columns)
            sizes = {key: c[key] for key in ("heads", "kv_heads", "head_dim", "window")}
            fixed: dict[str, Any] = {**sizes, "kv_format": str(part.kv_format[0]), "profile": profile, "warm_l2": True}

            def ours(c: Any = c, fixed: Any = fixed, part: Any = part, prefill: bool = prefill) -> Floats:
                if prefill:
                    return attention.attention_prefill_seconds(c["batch"], c["new_tokens"], **fixed, format=str(part.format[0]))
                return attention.attention_decode_seconds(c["batch"], c["context"], **fixed)

            asked = peer.attention(prefill, str(part.format[0]), str(part.kv_format[0]), c)
            kernel = f"{'prefill' if prefill else 'decode'}{' window' if windowed else ''}"
            lines.append(line(kernel, name, part.seconds, steady(ours, part.seconds.size), asked))
    return lines


def moe_lines(peer: Peer, tables: Any, profile: str, version: str, limit: int) -> list[dict[str, Any]]:
    """Experts of one rank, balanced and power-law rows, where the compared version holds the stack's kernel."""
    lines = []
    for kernel in moe_tables.KERNELS.get(tables.stack, ()):
        found = moe_tables.read_table(tables, kernel)
        if found is None or found[1] != version or kernel.name not in QUANT:
            continue
        rows = moe_tables.read_rows(found[0], kernel, tables.stack)
        if rows is None:
            continue
        part = rows.take(sample(rows.held & rows.gated, limit))
        c = {name: values for name, values in part.columns.items()}
        c.setdefault("tp", np.ones(part.seconds.size))

        def ours(part: Any = part, c: Any = c, format: str = kernel.name) -> Floats:
            out = np.empty(part.seconds.size)
            for load in np.unique(part.load):
                at = part.load == load
                shape = {
                    "hidden_size": c["h"],
                    "moe_intermediate_size": c["inner"],
                    "num_experts": c["e"],
                    "top_k": c["k"],
                    "ep": c["ep"],
                }
                law = "even" if load in ("balanced", "uniform") else str(load)
                one = {key: values[at] for key, values in shape.items()}
                out[at] = moe.moe_seconds(c["tokens"][at], **one, format=format, load=law, warm_l2=True, profile=profile)
            return out

        asked = peer.moe(kernel.name, c, part.load)
        lines.append(line("experts", kernel.name, part.seconds, steady(ours, part.seconds.size), asked))
    return lines


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stack", default="trtllm", choices=["trtllm", "sglang", "vllm"])
    parser.add_argument("--rows", type=int, default=3000, help="held-out rows of each kernel and format at most")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tables = open_tables("gb300", options.stack)
    version = tables.versions("gemm", "gemm")[0]
    profile = f"gb300-{options.stack}"
    with tempfile.TemporaryDirectory() as scratch:
        peer = Peer(tables, Path(scratch), version)
        lines = gemm_lines(peer, tables, profile, options.rows)
        lines += attention_lines(peer, tables, profile, options.rows)
        lines += moe_lines(peer, tables, profile, version, options.rows)
    facts = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {np.__version__}",
        "tables": f"gb300 {options.stack} {version}",
        "yardstick_seconds": yardstick(),
    }
    if options.json:
        print(json.dumps(facts | {"rows": lines}, indent=1))
        return
    print(f"{facts['tables']}; {facts['machine']}; np.exp of 1e7 doubles {facts['yardstick_seconds']:.3f} s")
    print(f"{'':46}{'shapefront':>17}{'':12}{'AIConfigurator':>17}")
    print(f"{'kernel':18}{'format':14}{'rows':>6}{'refused':>8}" + f"{'median / p90 %':>17}{'rows/s':>12}" * 2)
    for row in lines:
        cells = f"{row['kernel']:18}{row['format']:14}{row['rows']:6}{row['refused']:8}"
        for who in ("shapefront", "aiconfigurator"):
            pair = " / ".join(
                "-" if row[f"{who}_{key}"] is None else f"{100 * row[f'{who}_{key}']:.1f}" for key in ("median", "p90")
            )
            cells += f"{pair:>17}{row[f'{who}_rows_per_second']:12,.0f}"
        print(cells)


if __name__ == "__main__":
    main()
