"""A result on the terminal: what was searched, the ranked table, where the gain comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..constraints.equal_quality import HIGH_SHARE, LOW_SHARE
from .output import count, number, print_table, say
from .ranking import at_concurrency_limit, differing, extra_objectives, ranked_by_text
from .result import Result

_SHOWN = 12
# serving mode → what tokens/s/GPU counts
COUNTED = {
    "decode": "decode pool only: prefill GPUs are not counted",
    "disaggregated": "prefill and decode pools, best split",
    "aggregated": "one pool, prefill steals decode steps",
}


def settings_text(result: Result) -> str:
    """One line with the study's settings, as every run prints them."""
    data, settings = result.data, result.data["settings"]
    budget = f"{count(settings['total_params'])} total"
    if settings["active_params"]:
        budget += f", {count(settings['active_params'])} active"
    formats = settings["formats"]
    served = f"{settings['workload_text']}; {COUNTED[settings.get('serving', 'decode')]}"
    experts = f", experts {formats['experts']}" if has_experts(result) else ""
    stored = f"linear layers {formats['ffn']}{experts}, LM head {formats['lm_head']}, KV cache {formats['kv']}"
    swept = f"{settings['layouts']} layouts x {settings['concurrencies']} concurrencies"
    return (
        f"{data['study']}: {budget} ± {settings['tolerance']:.1%}; {served}; {stored}; profile {settings['profile']} on "
        f"{settings['hardware']}; {swept}; seed {data['seed']}; quality laws at {count(settings['train_tokens'])} training tokens"
    )


def has_experts(result: Result) -> bool:
    """Whether any design of the result is a mixture of experts."""
    return bool(result.reference["num_experts"]) or any(row["num_experts"] for row in result.architectures)


def show_result(result: Result, folder: Path | None) -> None:
    """Print a result for people."""
    data = result.data
    say(settings_text(result))
    say(_searched(data))
    rates = [point["rate"] for point in result.reference["at_rates"]]
    moe = has_experts(result)
    off = data.get("runners_up", [])
    shown = [*result.ranked_rows[:_SHOWN], *off[: max(0, _SHOWN - len(result.ranked_rows))]]
    extra, differ = extra_objectives(result), differing(shown, result.reference)
    columns = [
        "rank",
        "id",
        "quality",
        *(heading for heading, _ in differ),
        "H",
        "H'e" if moe else "H'",
        "L",
        "heads",
        "KV",
        "head",
    ]
    columns += ["E", "k"] if moe else []
    columns += ["total", "active", *(heading for heading, _ in extra), "area/ref", *(f"tok/s/GPU @{rate:g}" for rate in rates)]
    columns += ["dL_shape, nats/token", "note"]
    rows = [
        _row(row, moe, [name for _, name in extra], [key for _, key in differ], result.spec)
        for row in [*shown, {**result.reference, "rank": None, "frontier_area_over_reference": 1.0}]
    ]
    title = f"Ranked by {ranked_by_text(result)}: the equal-quality front, the open one, then the best designs off them"
    print_table(columns, rows, title=title)
    everything = len(result.ranked_rows) + len(off)
    if len(shown) < everything:
        say(f"{len(shown)} of {everything} shown; all in ranked.csv")
    say(rates_text(rates))
    _show_limit(result, shown)
    _show_gains(result)
    _show_error(data)
    for note in result.notes:
        say(f"note: {note}")
    if data.get("certificate"):
        c = data["certificate"]
        say(
            f"certificate: {c['status']}; {c['legal']} legal = {c['priced']} priced + {c['pruned']} pruned; gap "
            f"{number(c['gap_hypervolume'])}"
        )
    if folder is not None:
        say(f"written to {folder}")


def _searched(data: Mapping[str, Any]) -> str:
    """How much was priced, and why more than was asked for."""
    asked = data["spec"].get("search", {}).get("trials")
    more = ""
    if data["engine"] == "optuna" and asked and data["trials"] > asked:
        more = f" ({asked} asked for; the rest are neighbours on the lattice, priced until none is better)"
    failed = f", {data['failed_trials']} failed" if data.get("failed_trials") else ""
    whole = " (all)" if data["legal_architectures"] == data["legal_in_study"] else ""
    return (
        f"{data['trials']} trials{more}, {data['legal_trials']} legal{failed}; {data['legal_architectures']} of "
        f"{data['legal_in_study']} legal architectures priced{whole}"
    )


def _show_limit(result: Result, rows: Sequence[Mapping[str, Any]]) -> None:
    """Say where the study's concurrency, not the hardware, ends a design's throughput."""
    bound = [row["architecture_id"] for row in [*rows, result.reference] if at_concurrency_limit(row, result.spec)]
    if bound:
        limit = result.spec["concurrency"]["high"]
        say(
            f"at the limit ({', '.join(bound)}): the best point has the {limit:,.0f} sequences in flight that the study allows; "
            "more throughput may exist; raise high in [concurrency]"
        )


def _row(row: Mapping[str, Any], moe: bool, extra: Sequence[str], differ: Sequence[str], spec: Mapping[str, Any]) -> list[Any]:
    width = row["moe_intermediate_size"] if moe else row["intermediate_size"]
    reference = row["architecture_id"] == "reference"
    note = str(row.get("name", "")) if reference else ""
    if row.get("within_model_error_of"):
        note = f"within model error of {row['within_model_error_of']}"
    if row.get("twins"):
        note += f"{'; ' if note else ''}{row['twins']} near-twins"
    limited = at_concurrency_limit(row, spec)
    if limited:
        note += f"{'; ' if note else ''}at the limit of sequences @{', @'.join(f'{rate:g}' for rate in limited)}"
    cells: list[Any] = ["" if reference else str(row["rank"]), row["architecture_id"]]
    quality = "equal" if row["equal_quality"] else "open"
    cells += [
        "reference" if reference else f"{quality}, dominated" if row.get("dominated") else quality,
        *(str(row.get(key, "")) if key == "family" else row[key] for key in differ),
        row["hidden_size"],
        width,
        row["num_hidden_layers"],
    ]
    cells += [row["num_attention_heads"], row["num_key_value_heads"], row["head_dim"] or row["v_head_dim"]]
    cells += [row["num_experts"], row["num_experts_per_tok"]] if moe else []
    cells += [count(row["total_params"]), count(row["active_params"])]
    cells += [*(row["objectives"].get(name) for name in extra), row["frontier_area_over_reference"]]
    cells += [point["tokens_per_second_per_gpu"] for point in row["at_rates"]]
    return [*cells, row["delta_loss_shape"], note]


def _show_gains(result: Result) -> None:
    """The waterfall of the best design of each front, and what the open one gives up."""
    best = {row["equal_quality"]: row for row in reversed(result.ranked_rows)}
    if True not in best:
        say(f"No design of the front is at equal quality with the reference model{size_gap(result)}.")
    for equal, row in sorted(best.items(), reverse=True):
        say(f"{row['architecture_id']} ({'equal quality' if equal else 'open'}): {row['waterfall']['message']}")
        if row["gives_up"]:
            say(f"  gives up: {', '.join(row['gives_up'])}")
        kv = row["kv_bytes_per_token"] / result.reference["kv_bytes_per_token"] - 1
        if abs(kv) >= 0.005:
            depth = row["num_hidden_layers"] / result.reference["num_hidden_layers"] - 1
            say(f"  KV cache {kv:+.1%} a token, of which {depth:+.1%} by the layers (booked under width against depth)")
    if best:
        show_waterfalls([row for _, row in sorted(best.items(), reverse=True)], result.reference)


def show_waterfalls(designs: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> None:
    """Each design's steps from the reference model, with the size every step was priced at, and what they come to together."""
    rows: list[list[Any]] = []
    for row in designs:
        found, name = row["waterfall"], row["architecture_id"]
        rows.append([name, "reference model", "", "", count(reference["total_params"]), count(reference["active_params"])])
        for step in found["steps"]:
            sizes = [step.get("total_params"), step.get("active_params")]
            label = step["label"] + ("" if step["quality_priced"] else " *")
            points = number_percent(step.get("change"))
            rows.append([name, label, number_percent(step["gain"]), points, *("–" if n is None else count(n) for n in sizes)])
        total = number_percent(found["total"])
        rows.append([name, "together", total, total, count(row["total_params"]), count(row["active_params"])])
    print_table(
        ["design", "step", "gain", "of reference", "total params", "active params"],
        rows,
        title="Where the frontier area comes from, step by step",
        right=(2, 3, 4, 5),
    )
    say(
        "gain: over the step before (gains multiply); of reference: the same in shares of the reference's area (they add up); "
        "every step after 'size' is priced at the design's own total, active parameters move with the shape; * quality not priced"
    )


def rates_text(rates: Sequence[float]) -> str:
    """What the columns of a rate and the shape loss mean."""
    shown = ", ".join(f"@{rate:g}" for rate in rates)
    return (
        f"tok/s/GPU {shown}: output tokens/s of one GPU while every user gets at least that many tokens/s; area/ref: frontier "
        "area over the reference's; dL_shape: predicted loss above that of the best split of width and depth"
    )


def size_gap(result: Result) -> str:
    """Why no design can be at equal quality, where the budget alone rules it out."""
    wanted, own = result.data["settings"]["total_params"], result.reference["total_params"]
    gap, slack = wanted / own - 1, result.data["settings"]["tolerance"]
    low, high = LOW_SHARE, HIGH_SHARE
    if low <= gap + slack and gap - slack <= high:
        return ""
    return (
        f": the budget of {count(wanted)} is {gap:+.1%} off its {count(own)}, and equal quality needs {low:+.1%} to {high:+.1%}; "
        "leave total_params out of [budget], or name a reference of that size"
    )


def number_percent(value: float | None) -> str:
    """``+6.8%``, or ``–`` for a missing value; nothing has no sign."""
    if value is None or value != value:
        return "–"
    shown = f"{value:+.1%}"
    return "0.0%" if shown in ("+0.0%", "-0.0%") else shown


def _show_error(data: Mapping[str, Any]) -> None:
    error = data["pairwise_error"]
    if error is None:
        say(f"The profile {data['settings']['profile']} carries no pairwise error, so small differences are not judged.")
    else:
        say(f"Pairwise error of the cost model: {error:.1%}; designs closer than that are not told apart.")
    say("Ratios are what the model ranks by; how far absolute rates lie from served systems: shapefront validate --serving.")
