"""How good is the search: samplers, peers, ablations, exhaustive engine, certificates.

    python benchmarks/search.py built-in  [--seeds 5]                        every built-in budget study against its truth
    python benchmarks/search.py samplers  [--seeds 5] [--seconds 4]          which sampler is the default, and why
    python benchmarks/search.py peers     [--seeds 10] [--evaluations 2000]  against plain Optuna, pymoo and random
    python benchmarks/search.py ablation  [--seeds 5] [--evaluations 2000]   without seeds, without polish, without the sweep
    python benchmarks/search.py open      [--seeds 5]                        moe-open: share of the proven front against time
    python benchmarks/search.py certify                                      certificates: time, memory, priced and pruned
    python benchmarks/search.py workers                                      exhaustive engine on one and two processes
    python benchmarks/search.py slice                                        what continuous integration runs
    python benchmarks/search.py all                                          all of them: the text of docs/search-benchmark.md

Hypervolume is a share of the proven front's (a certificate of the same problem); its reference point is 0 tokens/s/GPU in
each throughput and 0.05 nats/token worse than the reference model in quality. Seconds are processor seconds of one
process (set OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1); the table of legal designs, built once, is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import optuna
from search_meter import BUILT_IN, Meter, load, proven
from search_peers import Contender, ablations, ours, peers

from shapefront.costmodel.profile import load_profile
from shapefront.search.certify import certify
from shapefront.search.exhaustive import exhaust, priced_blocks
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.parallel import PIECE, PoolEvaluator
from shapefront.search.problem import SearchProblem
from shapefront.search.sampler import SAMPLERS

LARGE = ("moe-open", "moe-120b-wide")  # the second is this folder's own study: other budget, other reference, 16 GPUs
SLOW = {"Optuna TPE, projected": 500, "Optuna GP, projected": 250}  # evaluations at most: its own time grows with every trial


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    sys.stdout.flush()


def spread(values: Sequence[float]) -> str:
    """Median, and the worst and the best in brackets."""
    return f"{np.median(values):.4f} ({min(values):.4f}–{max(values):.4f})"


Runs = dict[str, list[Meter]]


def race(problem: SearchProblem, best: float, contenders: dict[str, Contender], seeds: int, evaluations: int) -> Runs:
    """Run every contender on every seed."""
    found: Runs = {}
    for name, run in contenders.items():
        for seed in range(seeds):
            meter = Meter(problem, best, evaluations=min(evaluations, SLOW.get(name, evaluations)))
            run(problem, meter, seed)
            found.setdefault(name, []).append(meter)
    return found


def show_race(title: str, runs: Runs, evaluations: int) -> None:
    """Shares against evaluations and against seconds."""
    steps = [n for n in (100, 250, 500, 1000, 1500, 2000, 4000) if n <= evaluations]
    rows = []
    for name, meters in runs.items():
        cells = [spread([m.at(evaluations=n) for m in meters]) if meters[0].spent >= n else "–" for n in steps]
        rows.append([name, *cells, f"{np.median([m.ended / m.spent for m in meters]) * 1e3:.1f}"])
    head = ["", *map(str, steps), "ms each"]
    table(f"{title}: share of the proven hypervolume after so many evaluations, median (worst–best)", head, rows)
    times = (0.5, 1, 2, 5, 10, 20)
    rows = [[name, *(spread([m.at(seconds=s) for m in meters]) for s in times)] for name, meters in runs.items()]
    table(f"{title}: after so many processor seconds", ["", *(f"{s} s" for s in times)], rows)


def run_built_in(args: argparse.Namespace) -> None:
    """Exhaustive truth, and the Optuna engine on several seeds."""
    rows = []
    for name in args.studies or BUILT_IN:
        problem = load(name)
        start = time.process_time()
        truth = exhaust(problem)
        whole = time.process_time() - start
        ids = truth.evaluated.ids
        want = sorted(ids[truth.open_front]), sorted(ids[truth.equal_quality_front])
        same, seconds, priced, legal = 0, [], [], []
        for seed in range(args.seeds):
            start = time.process_time()
            found = optimize(problem, trials=100, seed=seed)
            seconds.append(time.process_time() - start)
            own = found.evaluated.ids
            same += (sorted(own[found.open_front]), sorted(own[found.equal_quality_front])) == want
            priced.append(found.trials)
            legal.append(found.legal_trials / found.trials)
        points = len(problem.table) * len(problem.setup.layouts) * len(problem.setup.concurrency)
        rows.append(
            [
                *(name, len(problem.table), f"{points:,}", f"{whole:.2f}", len(want[0]), len(want[1])),
                *(f"{same} of {args.seeds}", f"{np.median(priced):.0f}", f"{max(seconds):.2f}", f"{min(legal):.0%}"),
            ]
        )
    head = ["study", "legal", "operating points", "exhaustive s", "open front", "equal-quality front"]
    head += ["same fronts", "priced", "slowest s", "legal trials"]
    table("Built-in budget studies: 100 trials and the polish against the exhaustive engine", head, rows)


def run_samplers(args: argparse.Namespace) -> None:
    """Equal processor time per sampler; the sampler alone, and the whole search on it."""
    for name, quality in (("moe-open", True),):  # the budget studies are exhausted within a second by any of them
        problem, best = load(name, quality), proven(name, quality).hypervolume
        rows = []
        for sampler in (s for s in SAMPLERS if s != "gp"):
            cells: list[str] = []
            for options in ({"seeds": False, "neighbour_share": 0.0, "polish": False, "model": False}, {}):
                shares, early, spent = [], [], []
                for seed in range(args.seeds):
                    meter = Meter(problem, best, seconds=args.seconds)
                    ours(sampler=sampler, **options)(problem, meter, seed)
                    shares.append(meter.at(seconds=args.seconds))
                    early.append(meter.at(seconds=args.seconds / 4))
                    spent.append(meter.spent)
                cells += [spread(early), spread(shares), f"{np.median(spent):.0f}"]
            rows.append([sampler, *cells])
        quarter, full = f"{args.seconds / 4:g} s", f"{args.seconds:g} s"
        head = ["sampler", f"alone, {quarter}", f"alone, {full}", "priced"]
        head += [f"whole search, {quarter}", f"whole search, {full}", "priced"]
        table(f"Samplers on {name} with quality, equal processor time, {args.seeds} seeds, median (worst–best)", head, rows)


def run_peers(args: argparse.Namespace) -> None:
    """Ours and others on two large studies, two throughputs and quality."""
    for name in args.studies or LARGE:
        problem, best = load(name, True), proven(name, True).hypervolume
        chosen = {k: v for k, v in peers().items() if not args.only or any(word in k for word in args.only)}
        runs = race(problem, best, chosen, args.seeds, args.evaluations)
        show_race(f"{name}, {len(problem.table):,} designs, {args.seeds} seeds", runs, args.evaluations)


def run_ablation(args: argparse.Namespace) -> None:
    """Parts taken out."""
    problem, best = load("moe-open", True), proven("moe-open", True).hypervolume
    runs = race(problem, best, ablations(), args.seeds, args.evaluations)
    show_race(f"Ablation on moe-open with quality, {args.seeds} seeds", runs, args.evaluations)


def run_open(args: argparse.Namespace) -> None:
    """Share against time on moe-open."""
    rows = []
    for quality in (False, True):
        problem, best = load("moe-open", quality), proven("moe-open", quality).hypervolume
        meters = []
        for seed in range(args.seeds):
            meters.append(Meter(problem, best, seconds=60.0, target=0.9999))
            ours()(problem, meters[-1], seed)
        label = "two throughputs and quality" if quality else "two throughputs"
        shares = (spread([m.at(seconds=s) for m in meters]) for s in (5, 20, 60))
        first = [min((s for _, s, v in m.points if v >= 0.995), default=float("inf")) for m in meters]
        rows.append([label, *shares, f"{np.median(first):.1f} ({max(first):.1f})"])
    table(f"moe-open, {args.seeds} seeds, median (worst–best)", ["objectives", "5 s", "20 s", "60 s", "seconds to 0.995"], rows)


def run_certify(args: argparse.Namespace) -> None:
    """Certificates from a short search."""
    rows = []
    cases = [(n, False) for n in args.studies or (*BUILT_IN, "moe-open")] + ([] if args.studies else [("moe-open", True)])
    for name, quality in cases:
        problem = load(name, quality)
        found = optimize(problem, trials=400, seed=0)
        start, wall = time.process_time(), time.perf_counter()
        c = certify(problem, found, max_seconds=args.max_seconds)
        took, real = time.process_time() - start, time.perf_counter() - wall
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        label = name + (" + quality" if quality else "")
        counts = [f"{c.legal:,}", f"{c.priced:,}", f"{c.pruned:,}", c.legal == c.priced + c.pruned + c.open]
        figures = [f"{c.gap_hypervolume:.3g}", c.found, len(c.open_front), f"{took:.1f}", f"{real:.1f}", f"{memory:.2f}"]
        rows.append([label, c.status, *counts, *figures])
    head = ["study", "status", "legal", "priced", "pruned", "adds up"]
    head += ["gap", "missed by the search", "front", "processor s", "wall s", "peak GB"]
    table("Certificates", head, rows)


def run_workers(args: argparse.Namespace) -> None:
    """Rate of the exhaustive engine on one and two processes: same designs, wall time."""
    problem = load("moe-open")
    ids = np.linspace(0, len(problem.table) - 1, 160 * PIECE).astype(np.int64)
    rows = []
    walls = {}
    for workers in (1, 2):
        with PoolEvaluator(problem, workers) as pool:
            for _ in priced_blocks(problem, ids[: 8 * PIECE], pool, workers):
                pass  # starts and warms the workers
            start = time.perf_counter()
            done = sum(len(block) for block, _ in priced_blocks(problem, ids, pool, workers))
            walls[workers] = time.perf_counter() - start
        rows.append([workers, done, f"{walls[workers]:.1f}", f"{done / walls[workers]:.0f}", f"{walls[1] / walls[workers]:.2f}"])
    table("Exhaustive engine, designs of moe-open", ["processes", "designs", "wall s", "designs/s", "speed-up"], rows)


def run_slice(args: argparse.Namespace) -> None:
    """dense-8b on two seeds: same fronts as the truth, exact certificate; fails loudly."""
    problem = load("dense-8b")
    truth = exhaust(problem)
    want = sorted(truth.evaluated.ids[truth.open_front])
    for seed in range(2):
        found = optimize(problem, trials=100, seed=seed, options=SearchOptions())
        c = certify(problem, found)
        if sorted(found.evaluated.ids[found.open_front]) != want or c.status != "exact" or c.open_front.tolist() != want:
            raise SystemExit(f"dense-8b, seed {seed}: the search missed the exhaustive front")
    print(f"dense-8b: {len(problem.table)} designs, 2 of 2 seeds found and proved the exhaustive front of {len(want)}")


RUNS: dict[str, Callable[[argparse.Namespace], None]] = {
    "built-in": run_built_in,
    "samplers": run_samplers,
    "peers": run_peers,
    "ablation": run_ablation,
    "open": run_open,
    "certify": run_certify,
    "workers": run_workers,
    "slice": run_slice,
}


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=[*RUNS, "all"])
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--max-seconds", type=float, default=1800.0)
    parser.add_argument("--studies", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[], help="contenders whose names hold one of these words")
    args = parser.parse_args()
    seeds = {"peers": 10, "ablation": 5}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if args.what != "slice":
        versions = f"Python {platform.python_version()}, numpy {np.__version__}, optuna {optuna.__version__}"
        profile = load_profile(load("dense-8b").setup.profile).name
        print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, {versions}, profile {profile}")
    chosen = args.seeds
    for what in [w for w in RUNS if w != "slice"] if args.what == "all" else [args.what]:
        args.seeds = chosen or seeds.get(what, 5)
        RUNS[what](args)


if __name__ == "__main__":
    main()
