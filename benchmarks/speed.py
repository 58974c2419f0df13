"""Speed of the cost model on one core: ``python benchmarks/speed.py [--profile NAME ...] [--json]``.

A point is one architecture x layout x concurrency, priced as a full decode step with its breakdown. Architectures are
distinct and mixed (dense, MoE, MLA). Beside it: the full frontier of one architecture, the seconds of ``np.exp`` of
10**7 doubles in the same run (yardstick), and the largest difference between the array and one point at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from shapefront.costmodel import Architecture, ArchitectureBatch, ArchitectureKind, Workload, enumerate_layouts, profile_names  # noqa: E402
from shapefront.costmodel.decode import decode  # noqa: E402
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates  # noqa: E402
from shapefront.costmodel.serving_frontier import frontier  # noqa: E402

CONTEXT = 8704.0
CONCURRENCY = tuple(2.0 ** (i / 2) for i in range(20))
REPEATS = 5


def mixed_batches(count: int, seed: int = 0) -> list[ArchitectureBatch]:
    """Three batches of together ``count`` distinct architectures: dense GQA, MoE GQA, MoE MLA."""
    rng = np.random.default_rng(seed)

    def pick(values: Sequence[int], n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return rng.choice(np.asarray(values, dtype=np.int64), n)

    def distinct(kind: ArchitectureKind, n: int, **choices: Sequence[int]) -> ArchitectureBatch:
        rows = np.stack([pick(values, 4 * n) for values in choices.values()], axis=1)
        rows = np.unique(rows, axis=0)
        rows = rows[rng.permutation(len(rows))[:n]]
        mla = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        fixed = {"vocab_size": 128256} | (mla if kind.attention == "mla" else {"head_dim": 128})
        return ArchitectureBatch.from_arrays(kind, **dict(zip(choices, rows.T, strict=True)), **fixed)

    third = count // 3
    widths, depths = range(2048, 8193, 128), range(16, 81)
    moe = {"moe_intermediate_size": range(512, 3073, 128), "num_experts": (32, 64, 128, 256), "num_experts_per_tok": (4, 6, 8)}
    return [
        distinct(ArchitectureKind(), count - 2 * third, hidden_size=widths, num_hidden_layers=depths,
                 intermediate_size=range(4096, 28673, 128), num_attention_heads=(32, 64), num_key_value_heads=(4, 8, 16)),
        distinct(ArchitectureKind(moe=True), third, hidden_size=widths, num_hidden_layers=depths,
                 num_attention_heads=(32, 64), num_key_value_heads=(4, 8), **moe),
        distinct(ArchitectureKind(moe=True, attention="mla"), third, hidden_size=widths, num_hidden_layers=depths,
                 num_attention_heads=(64, 128), q_lora_rank=(1024, 1536), n_shared_experts=(1,), **moe),
    ]


def best_seconds(action: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Smallest processor time of ``repeats`` calls, after one call to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def deepseek_r1() -> Architecture:
    """DeepSeek-R1's shape (its published config)."""
    return Architecture(
        name="DeepSeek-R1", hidden_size=7168, num_hidden_layers=61, num_attention_heads=128, vocab_size=129280,
        intermediate_size=18432, moe_intermediate_size=2048, n_shared_experts=1, num_experts=256, num_experts_per_tok=8,
        first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, attention="mla",
    )


def largest_difference(batches: list[ArchitectureBatch], profile: str, samples: int = 40) -> float:
    """Largest relative difference between the array and the same point priced alone."""
    rng, worst = np.random.default_rng(1), 0.0
    for batch in batches:
        layouts = enumerate_layouts([1, 2, 4, 8], moe=batch.kind.moe)
        whole = decode(batch, layouts, CONCURRENCY, context=CONTEXT, profile=profile).seconds
        for _ in range(samples):
            a, p, c = (int(rng.integers(n)) for n in whole.shape)
            alone = decode(batch.architecture(a), layouts.layout(p), CONCURRENCY[c], context=CONTEXT, profile=profile).seconds
            worst = max(worst, abs(float(alone[0, 0, 0] / whole[a, p, c]) - 1.0))
    return worst


def measure(profile: str, architectures: int) -> dict[str, Any]:
    """Points a second of the decode step, of the rate table and of one frontier."""
    batches = mixed_batches(architectures)
    layouts = [enumerate_layouts([1, 2, 4, 8], moe=batch.kind.moe) for batch in batches]
    points = sum(len(b) * len(p) * len(CONCURRENCY) for b, p in zip(batches, layouts, strict=True))
    steps = best_seconds(lambda: [decode(b, p, CONCURRENCY, context=CONTEXT, profile=profile)
                                  for b, p in zip(batches, layouts, strict=True)])
    setups = [ServingSetup(workload=Workload(), layouts=p, profile=profile, concurrency=CONCURRENCY) for p in layouts]
    rates = best_seconds(lambda: [throughput_at_rates(b, s, [20, 50, 100]) for b, s in zip(batches, setups, strict=True)])
    wide = ServingSetup(workload=Workload(), layouts=enumerate_layouts([4, 8, 16, 32, 36, 64, 72], moe=True, max_kvp=8),
                        profile=profile, concurrency=tuple(2.0 ** (i / 2) for i in range(40)))
    one = deepseek_r1()
    full = frontier(one, wide)
    return {
        "profile": profile,
        "architectures": sum(len(b) for b in batches),
        "points": points,
        "decode_points_per_second": points / steps,
        "rate_table_points_per_second": points / rates,
        "frontier_points": full.evaluated,
        "frontier_milliseconds": 1e3 * best_seconds(lambda: frontier(one, wide)),
        "largest_relative_difference": largest_difference(batches, profile),
    }


def yardstick() -> float:
    """Seconds of np.exp of 10**7 doubles."""
    values = np.linspace(-1.0, 1.0, 10_000_000)
    return best_seconds(lambda: np.exp(values), 3)


def machine() -> str:
    """Processor, cores and versions in one line."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = platform.processor()
    return f"{model or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="append", help="kernel profile (repeatable)")
    parser.add_argument("--architectures", type=int, default=1200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.profile or [n for n in ("ideal", "gb300-blog", "gb300-trtllm") if n in profile_names()]
    report: dict[str, Any] = {"machine": machine(), "yardstick_seconds_exp_1e7": yardstick()}
    report["rows"] = [measure(n, options.architectures) for n in names]
    report["yardstick_seconds_exp_1e7_after"] = yardstick()
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['machine']}\nnp.exp of 1e7 doubles: {report['yardstick_seconds_exp_1e7']:.3f} s before, "
          f"{report['yardstick_seconds_exp_1e7_after']:.3f} s after; processor time, one thread, best of {REPEATS}\n")
    print("profile        designs   points  decode pt/s   rates pt/s  frontier points      ms  |vector/scalar - 1|")
    for row in report["rows"]:
        print(f"{row['profile']:<14}{row['architectures']:>8}{row['points']:>9}{row['decode_points_per_second']:>13,.0f}"
              f"{row['rate_table_points_per_second']:>13,.0f}{row['frontier_points']:>17,}{row['frontier_milliseconds']:>8.1f}"
              f"{row['largest_relative_difference']:>21.1e}")


if __name__ == "__main__":
    main()
