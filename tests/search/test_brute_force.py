"""Random small studies against loops that share nothing with the package but the price of one design on its layouts."""

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from shapefront.constraints.budget import Budget
from shapefront.constraints.rules import Rules
from shapefront.constraints.space import DesignSpace
from shapefront.costmodel import ArchitectureBatch, Workload, enumerate_layouts
from shapefront.costmodel.models import load_model
from shapefront.costmodel.serving import ServingSetup, throughput_at_rates
from shapefront.search.certify import certify
from shapefront.search.exhaustive import exhaust
from shapefront.search.objectives import FrontierArea, QualityGain, ThroughputAt
from shapefront.search.optimize import SearchOptions, optimize
from shapefront.search.outcome import SearchOutcome
from shapefront.search.problem import SearchProblem

TOKENS = 15e12
Design = dict[str, int]


def shape_penalty(w: float, n_layers: float) -> float:
    """Gemstones: g(w, l) minus the least g over the depths of the same l·w², by golden-section search."""

    def g(width: float, depth: float) -> float:
        return 4.271695 / math.pow(width, 0.244691) + 0.924870 / math.pow(depth, 0.387152)

    low, high = math.log(2.0), math.log(1e5)
    for _ in range(200):
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        at_a, at_b = (g(w * math.sqrt(n_layers / math.exp(x)), math.exp(x)) for x in (a, b))
        low, high = (low, b) if at_a < at_b else (a, high)
    best = math.exp((low + high) / 2)
    return max(0.0, g(w, n_layers) - g(w * math.sqrt(n_layers / best), best))


def counts(d: Design, head_norms: bool) -> tuple[int, int]:
    """Total and active parameters of a GQA model with untied tables and two norms a layer."""
    h, n, kv, size, v = (d[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"))
    attention = h * n * size + 2 * h * kv * size + n * size * h
    e, k = d.get("num_experts", 0), d.get("num_experts_per_tok", 0)
    width = d["moe_intermediate_size"] if e else d["intermediate_size"]
    stored, used = (e, k) if e else (1, 1)
    vectors = 2 * h + (2 * size if head_norms else 0)
    layers = d["num_hidden_layers"]
    total = layers * (attention + vectors + 3 * h * width * stored + e * h) + h + 2 * v * h
    return total, layers * (attention + 3 * h * width * used + e * h) + v * h


def size_loss(d: Design, total: int, active: int) -> float:
    """L_size: Besiroglu for dense designs, Zhao for MoE (no shared experts)."""
    if not d.get("num_experts"):
        return 1.8172 + 482.01 / math.pow(total, 0.3478) + 2085.43 / math.pow(TOKENS, 0.3658)
    g, by_total, by_active = d["num_experts_per_tok"], math.pow(total, -0.2383), math.pow(active, -0.2383)
    scale = by_total + 0.0013 * by_active + 0.0450 * active / total
    data = 27129.05 * math.pow(TOKENS, -0.4694)
    return (0.1577 * g + 7.2446 / g) * scale + 38.051 * by_total + data + 31.096 * by_active + 1.8182


def equal(d: Design, r: Design, head_norms: bool) -> bool:
    """At equal quality with the reference, condition by condition."""
    (total, active), (own_total, own_active) = counts(d, head_norms), counts(r, head_norms)
    met = [-0.005 <= a / b - 1 <= 0.01 for a, b in ((total, own_total), (active, own_active))]
    shape = [shape_penalty(x["hidden_size"], x["num_hidden_layers"]) for x in (d, r)]
    met += [shape[0] <= shape[1] + 0.002, size_loss(d, total, active) <= size_loss(r, own_total, own_active) + 0.002]
    met.append(d["num_key_value_heads"] * d["head_dim"] >= r["num_key_value_heads"] * r["head_dim"])
    if d.get("num_experts"):
        met.append(d["num_experts"] / d["num_experts_per_tok"] <= r["num_experts"] / r["num_experts_per_tok"])
        width = [x["num_experts_per_tok"] * x["moe_intermediate_size"] / x["hidden_size"] for x in (d, r)]
        met.append(width[0] >= width[1])
    return all(met)


def make(seed: int) -> tuple[SearchProblem, list[Design], Design, bool]:
    """A random study and its legal designs, found by walking every lattice point."""
    rng = random.Random(seed)
    moe = rng.random() < 0.5
    reference = load_model("Qwen3-30B-A3B" if moe else "Llama-3.1-8B")
    own = {n: getattr(reference, n) for n in ArchitectureBatch.__slots__ if n != "kind"}

    def around(value: int, step: int, few: int) -> list[int]:
        return sorted({max(step, value + step * i) for i in rng.sample(range(-5, 6), few)} | {value})

    dimensions: dict[str, tuple[int, ...]] = {
        "hidden_size": tuple(around(reference.hidden_size, rng.choice((128, 192, 256)), 3)),
        "num_hidden_layers": tuple(around(reference.num_hidden_layers, 2, 4)),
        "num_attention_heads": tuple(around(reference.num_attention_heads, 4, 2)),
        "num_key_value_heads": tuple(sorted(rng.sample((2, 4, 6, 8), 2))),
    }
    solved = "moe_intermediate_size" if moe else "intermediate_size"
    step = 128 if moe else rng.choice((192, 256))
    first = getattr(reference, solved) // step - 8
    dimensions[solved] = tuple(step * (first + i) for i in range(20) if first + i > 0)
    if moe:
        dimensions["num_experts"] = tuple(sorted(rng.sample((64, 96, 112, 128, 160), 2)))
        dimensions["num_experts_per_tok"] = tuple(sorted(rng.sample((4, 6, 8, 10), 2)))
    fixed = {"head_dim": 128, "vocab_size": reference.vocab_size}
    head_norms = reference.kind.qk_norm == "head"
    tolerance = rng.choice((0.01, 0.02, 0.04))
    total, active = reference.total_params * rng.uniform(0.97, 1.03), reference.active_params
    wanted_active = float(active) if moe and rng.random() < 0.5 else None
    limit, ratio = rng.choice((0.008, 0.012, 0.02)), (rng.uniform(1, 4), rng.uniform(6, 16))
    wide = (rng.uniform(30, 60), rng.uniform(90, 160))
    legal = []
    for row in itertools.product(*dimensions.values()):
        d = {**fixed, **dict(zip(dimensions, row, strict=True))}
        if d["num_attention_heads"] % d["num_key_value_heads"]:
            continue
        if d["hidden_size"] % 128 or d[solved] % 128 or d["num_attention_heads"] * 128 % 128:
            continue
        n, used = counts(d, head_norms)
        if abs(n / total - 1) > tolerance or (wanted_active and abs(used / wanted_active - 1) > tolerance):
            continue
        if shape_penalty(d["hidden_size"], d["num_hidden_layers"]) > limit:
            continue
        if not ratio[0] <= d["num_attention_heads"] / d["num_key_value_heads"] <= ratio[1]:
            continue
        if wide[0] <= d["hidden_size"] / d["num_hidden_layers"] <= wide[1]:
            legal.append(d)
    setup = ServingSetup(
        workload=Workload(),
        layouts=enumerate_layouts([1, 2, 4], moe=moe, max_kvp=2),
        concurrency=tuple(2.0**i for i in range(11)),
        profile=rng.choice(("gb300-blog", "gb300-trtllm")),
    )
    problem = SearchProblem(
        (DesignSpace("one", reference.kind, dimensions, fixed),),
        Budget(total, wanted_active, tolerance),
        Rules(max_delta_loss_shape=limit, bands={"heads_per_kv_head": ratio, "width_over_depth": wide}),
        setup,
        reference,
        rng.choice(
            (
                (ThroughputAt(rate=20.0), ThroughputAt(rate=100.0)),
                (ThroughputAt(rate=20.0), ThroughputAt(rate=100.0), QualityGain()),
                (FrontierArea(area_rates=(20.0, 40.0, 80.0)), QualityGain()),
            )
        ),
    )
    return problem, legal, own, head_norms


def may_use(d: Design, layouts: Any, i: int) -> bool:
    """Whether a layout divides a design, rule by rule."""
    tpa, kvp, tpf, ep, pp = (int(getattr(layouts, n)[i]) for n in ("tpa", "kvp", "tpf", "ep", "pp"))
    heads, kv, e = d["num_attention_heads"], d["num_key_value_heads"], d.get("num_experts", 0)
    width = d["moe_intermediate_size"] if e else d["intermediate_size"]
    split = heads % (tpa * kvp) == 0 and (kv % tpa == 0 or tpa % kv == 0) and (kvp == 1 or tpa <= kv)
    experts = e % ep == 0 if e else ep == 1
    return split and experts and d["num_hidden_layers"] % pp == 0 and width % tpf == 0 and (tpf == 1 or width // tpf % 128 == 0)


def price(problem: SearchProblem, d: Design, reference: Design, head_norms: bool) -> tuple[float, ...]:
    """Objectives of one design, each layout priced alone."""
    batch = ArchitectureBatch.from_arrays(problem.spaces[0].kind, **{k: np.array([v]) for k, v in d.items()})
    best: dict[float, float] = {}
    rates = sorted({r for o in problem.objectives for r in o.rates})
    for i in range(len(problem.setup.layouts)):
        if may_use(d, problem.setup.layouts, i):
            one = problem.setup.with_(layouts=problem.setup.layouts.take([i]))
            row = throughput_at_rates(batch, one, rates).tokens_per_second_per_gpu[0]
            best = {r: max(best.get(r, 0.0), float(v)) for r, v in zip(rates, row, strict=True)}
    values = []
    for o in problem.objectives:
        if isinstance(o, ThroughputAt):
            values.append(best.get(o.rate, 0.0))
        elif isinstance(o, FrontierArea):
            pairs = itertools.pairwise(sorted(o.rates))
            values.append(sum((best.get(a, 0.0) + best.get(b, 0.0)) / 2 * math.log(b / a) for a, b in pairs))
        else:
            loss = [
                size_loss(x, *counts(x, head_norms)) + shape_penalty(x["hidden_size"], x["num_hidden_layers"])
                for x in (d, reference)
            ]
            values.append(loss[1] - loss[0])
    return tuple(values)


def front(values: dict[int, tuple[float, ...]]) -> set[int]:
    """Keys whose values nothing dominates, by comparing every pair."""

    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))

    return {i for i, v in values.items() if not any(beats(w, v) for w in values.values())}


def keys(problem: SearchProblem, outcome: SearchOutcome, positions: Any) -> set[tuple[int, ...]]:
    return {tuple(row) for row in outcome.evaluated.columns[positions].tolist()}


@pytest.mark.parametrize("seed", (1, 2, 3, 5, 15, 17, 18))
def test_legal_set_fronts_and_certificate_are_those_of_plain_loops(seed: int) -> None:
    """Seeds 0 to 19 agree; kept are one without a legal design and those with the largest fronts."""
    problem, legal, reference, head_norms = make(seed)
    if not legal:
        with pytest.raises(ValueError, match="no design is legal"):
            _ = problem.table
        return
    names = problem.table.names
    rows = [tuple(d[n] for n in names) for d in legal]
    assert sorted(map(tuple, problem.table.columns.tolist())) == sorted(rows)
    values = {i: price(problem, d, reference, head_norms) for i, d in enumerate(legal)}
    same = {i: v for i, v in values.items() if equal(legal[i], reference, head_norms)}
    truth = exhaust(problem)
    place = {row: i for i, row in enumerate(rows)}
    mine = np.array([values[place[tuple(row)]] for row in truth.evaluated.columns.tolist()])
    np.testing.assert_allclose(truth.priced.objectives, mine, rtol=1e-9, atol=1e-9)
    open_, alike = {rows[i] for i in front(values)}, {rows[i] for i in front(same)}
    assert keys(problem, truth, truth.open_front) == open_
    assert keys(problem, truth, truth.equal_quality_front) == alike
    # best first, by each objective: the order of the package's figures is the order of the loops'
    for k in range(mine.shape[1]):
        by_mine, by_own = np.argsort(-mine[:, k], kind="stable"), np.argsort(-truth.priced.objectives[:, k], kind="stable")
        np.testing.assert_allclose(mine[by_mine, k], mine[by_own, k], rtol=1e-9, atol=1e-9)
    found = optimize(problem, trials=max(1, len(rows) // 4), seed=seed, options=SearchOptions(population=8))
    proof = certify(problem, found)
    assert proof.status == "exact" and proof.legal == proof.priced + proof.pruned == len(rows)
    assert {tuple(r) for r in problem.table.columns[proof.open_front].tolist()} == open_
    assert {tuple(r) for r in problem.table.columns[proof.equal_quality_front].tolist()} == alike
