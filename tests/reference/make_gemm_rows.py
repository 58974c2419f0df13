"""Draws ``gemm_measured.csv``: held-out GB300 GEMM rows, 18 a stack and format (needs aiconfigurator-core)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shapefront.costmodel.calibration.gemm_rows import read_gemm_rows
from shapefront.costmodel.calibration.tables import STACKS, open_tables

ROWS, SEED = 18, 20261129


def main() -> None:
    """Write the file beside this script."""
    sources, lines = [], []
    for stack in STACKS:
        tables = open_tables("gb300", stack)
        sources.append(tables.source("gemm", "gemm"))
        for part in read_gemm_rows(tables):
            held = np.flatnonzero(part.held_out)
            if not held.size:
                continue
            some = np.random.default_rng(SEED).choice(held, ROWS, replace=False)
            some = some[np.lexsort((part.k[some], part.n[some], part.m[some]))]
            sizes = zip(part.m[some], part.n[some], part.k[some], part.seconds[some] * 1e6, strict=True)
            lines += [f"gb300,{stack},{part.format},{m:.0f},{n:.0f},{k:.0f},{t:.3f}" for m, n, k, t in sizes]
    head = [
        f"# Measured GB300 GEMMs: a random sample ({ROWS} a stack and format) of the rows the fits never saw; microseconds.",
        "# Source: PyPI package aiconfigurator-core 0.12 (Apache-2.0, NVIDIA): " + ", ".join(sources),
        "# Written by make_gemm_rows.py.",
        "hardware,stack,format,m,n,k,microseconds",
    ]
    (Path(__file__).parent / "gemm_measured.csv").write_text("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    main()
