"""Write moe_gb300.csv and comm_gb300.csv: at most 200 measured rows a kernel family, held-out groups only.

Run: python tests/reference/make_moe_rows.py (needs aiconfigurator-core, Apache-2.0, NVIDIA).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shapefront.costmodel.calibration import collectives, exchange, moe, open_tables

HEADER = "# Measured on GB300 (expert exchange of trtllm: GB200), held-out groups; Apache-2.0, NVIDIA. Source:"
MOE_ENTRIES = ("nvfp4", "fp8_block")  # 33 rows each of three stacks
PER_ENTRY, PER_COLLECTIVE, PER_EXCHANGE = 32, 15, 20


def pick(held: NDArray[np.bool_], count: int, seed: int) -> NDArray[np.int64]:
    """``count`` held-out rows, drawn evenly at random."""
    where = np.flatnonzero(held)
    return np.random.default_rng(seed).choice(where, min(count, where.size), replace=False)


def moe_lines() -> tuple[list[str], list[str]]:
    """Sources and lines of the expert GEMM."""
    sources, lines = [], ["stack,entry,tokens,hidden_size,inner,num_experts,top_k,ep,gated,load,microseconds"]
    for seed, stack in enumerate(("trtllm", "sglang", "vllm")):
        for one in moe.every_kernel(open_tables("gb300", stack)):
            entry, rows = one.name, one.rows
            if entry in MOE_ENTRIES:
                sources.append(one.source)
                for i in pick(rows.held, PER_ENTRY, seed):
                    sizes = [f"{rows.columns[name][i]:.0f}" for name in ("tokens", "h", "inner", "e", "k", "ep")]
                    tail = [str(int(rows.gated[i])), str(rows.load[i]), f"{rows.seconds[i] * 1e6:.3f}"]
                    lines.append(",".join([stack, entry, *sizes, *tail]))
    return sources, lines


def comm_lines() -> tuple[list[str], list[str]]:
    """Sources and lines of all-reduce, NCCL and the expert exchange."""
    sources, lines = [], ["stack,family,operation,bytes,ranks,hidden_size,top_k,num_experts,token_bytes,microseconds"]
    for seed, stack in enumerate(("trtllm", "sglang", "vllm")):
        tables = open_tables("gb300", stack)
        for messages in collectives.read_messages(tables):
            if messages.family == "all_reduce" or stack == "trtllm":
                sources.append(messages.source)
                for i in pick(messages.held, PER_COLLECTIVE, seed):
                    size, n, t = messages.size[i], messages.ranks[i], messages.seconds[i] * 1e6
                    lines.append(f"{stack},{messages.family},{messages.operation},{size:.0f},{n:.0f},,,,,{t:.3f}")
        for rows in exchange.read_exchanges(tables):
            if rows.name in ("dispatch", "combine") and stack != "vllm":
                sources.append(rows.source)
                for i in pick(rows.held, PER_EXCHANGE, seed):
                    sizes = [f"{x[i]:.0f}" for x in (rows.tokens, rows.ranks, rows.h, rows.k, rows.e, rows.token_bytes)]
                    lines.append(",".join([stack, "all_to_all", rows.name, *sizes, f"{rows.seconds[i] * 1e6:.3f}"]))
    return sources, lines


def main() -> None:
    """Write both files beside this one."""
    for name, (sources, lines) in (("moe_gb300", moe_lines()), ("comm_gb300", comm_lines())):
        head = [HEADER, *(f"# {source}" for source in dict.fromkeys(sources))]
        (Path(__file__).parent / f"{name}.csv").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
