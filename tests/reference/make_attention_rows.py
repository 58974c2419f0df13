"""Write attention_*.csv and mla_*.csv: at most 200 measured rows a kernel family, held-out groups only.

Run: python tests/reference/make_attention_rows.py (needs aiconfigurator-core, Apache-2.0, NVIDIA).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shapefront.costmodel.calibration import mla, open_tables
from shapefront.costmodel.calibration.attention_rows import AttentionRows, read_rows

FAMILIES = {
    "attention_gb300_prefill": (read_rows, "context", ("trtllm", "sglang", "vllm")),
    "attention_gb300_decode": (read_rows, "generation", ("trtllm", "sglang", "vllm")),
    "mla_gb300_prefill": (mla.read_rows, "context", ("trtllm", "sglang")),
    "mla_gb300_decode": (mla.read_rows, "generation", ("trtllm", "sglang")),
}
ROWS = 198


def pick(rows: AttentionRows, count: int, seed: int) -> AttentionRows:
    """``count`` held-out rows, drawn evenly at random."""
    chosen = np.zeros(rows.seconds.size, dtype=bool)
    chosen[np.random.default_rng(seed).choice(np.flatnonzero(rows.held), count, replace=False)] = True
    return rows.take(chosen)


def main() -> None:
    """Write the four files beside this one."""
    for name, (read, kind, stacks) in FAMILIES.items():
        lines: list[str] = []
        sources: list[str] = []
        names: list[str] = []
        for seed, stack in enumerate(stacks):
            rows = read(open_tables("gb300", stack), kind)
            if rows is None:
                continue
            sources.append(rows.source)
            few = pick(rows, ROWS // len(stacks), seed)
            names = list(few.columns)
            for i in range(few.seconds.size):
                sizes = [f"{few.columns[column][i]:.0f}" for column in names]
                lines.append(",".join([stack, few.format[i], few.kv_format[i], *sizes, f"{few.seconds[i] * 1e6:.3f}"]))
        header = ",".join(["stack", "format", "kv_format", *names, "microseconds"])
        text = "".join(f"# {line}\n" for line in ["Measured on GB300, held-out groups; Apache-2.0, NVIDIA. Source:", *sources])
        (Path(__file__).parent / f"{name}.csv").write_text(text + "\n".join([header, *lines]) + "\n")


if __name__ == "__main__":
    main()
