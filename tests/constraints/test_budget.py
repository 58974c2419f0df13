import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from shapefront.constraints.budget import Budget, iter_legal, legal_designs, parse_count
from shapefront.constraints.rules import Rules
from shapefront.constraints.space import DesignSpace, lattice
from shapefront.costmodel import Architecture, ArchitectureKind, InvalidValueError

SMALL = DesignSpace(
    name="small",
    kind=ArchitectureKind(),
    dimensions={
        "hidden_size": lattice(1024, 2048, 256),
        "num_hidden_layers": tuple(range(12, 25)),
        "num_attention_heads": (8, 16, 24),
        "num_key_value_heads": (2, 4, 8),
        "intermediate_size": lattice(1024, 8192, 256),
    },
    fixed={"head_dim": 64, "vocab_size": 32000},
)


def moe_space() -> DesignSpace:
    return DesignSpace(
        name="moe",
        kind=ArchitectureKind(moe=True, qk_norm="head"),
        dimensions={
            "hidden_size": lattice(1536, 4096, 256),
            "num_hidden_layers": tuple(range(24, 65)),
            "num_attention_heads": (16, 24, 32, 40, 48),
            "num_key_value_heads": (2, 4, 8),
            "num_experts": (32, 64, 96, 128, 160, 192, 256),
            "num_experts_per_tok": (4, 6, 8),
            "moe_intermediate_size": lattice(256, 4096, 128),
        },
        fixed={"head_dim": 128, "vocab_size": 151936},
    )


def test_solved_budget_equals_brute_force() -> None:
    budget, rules = Budget(6e8, tolerance=0.01), Rules(alignment=128, max_delta_loss_shape=0.05)
    names = list(SMALL.dimensions)
    grid = np.array(list(itertools.product(*SMALL.dimensions.values())), dtype=np.int64)
    grid = grid[(grid[:, 2] % grid[:, 3] == 0)]
    batch = SMALL.batch({name: grid[:, i] for i, name in enumerate(names)})
    expected = {tuple(row) for row in grid[budget.feasible(batch) & rules.feasible(batch)].tolist()}
    found = legal_designs([SMALL], budget, rules)
    (legal,) = found.batches
    assert legal is not None and found.count == len(legal) == len(expected) > 100
    columns = SMALL.columns(legal)
    assert {tuple(int(columns[n][i]) for n in names) for i in range(len(legal))} == expected


def test_chunking_does_not_change_the_set_or_its_order() -> None:
    budget, rules = Budget(6e8), Rules()
    whole = [d for b in iter_legal(SMALL, budget, rules) for d in b]
    pieces = [d for b in iter_legal(SMALL, budget, rules, chunk=50) for d in b]
    assert whole and set(whole) == set(pieces) and len(whole) == len(pieces)


def test_a_coarse_moe_lattice_is_solved_jointly_and_fast() -> None:
    start = time.process_time()
    found = legal_designs([moe_space()], Budget(30.5e9), Rules(max_delta_loss_shape=float("inf")))
    seconds = time.process_time() - start
    # One 256-step of H'e at H=2048, 128 experts, 48 layers is 9.7B; yet jointly there are thousands of legal shapes.
    assert found.count > 3000
    (legal,) = found.batches
    assert legal is not None
    assert np.all(np.abs(legal.total_params / 30.5e9 - 1) <= 0.01)
    assert np.all(legal.moe_intermediate_size % 128 == 0)
    assert seconds < 20


def test_active_budget_and_bands_are_kept() -> None:
    budget = Budget(30.5e9, 3.0e9, tolerance=0.02)
    rules = Rules(bands={"width_over_depth": (40.0, 120.0), "experts_per_active_expert": (8.0, 32.0)})
    (legal,) = legal_designs([moe_space()], budget, rules).batches
    assert legal is not None
    assert np.all(np.abs(legal.active_params / 3.0e9 - 1) <= 0.02)
    ratio = legal.hidden_size / legal.num_hidden_layers
    assert ratio.min() >= 40 and ratio.max() <= 120
    assert np.all(legal.num_experts / legal.num_experts_per_tok <= 32)


def test_violations_are_dimensionless_and_zero_at_the_limit() -> None:
    design = Architecture(
        hidden_size=1024, num_hidden_layers=12, num_attention_heads=8, head_dim=128, intermediate_size=4096, vocab_size=32000
    )
    from shapefront.costmodel import ArchitectureBatch

    batch = ArchitectureBatch.from_architectures([design])
    exact = Budget(design.total_params, tolerance=0.01).violations(batch)["total_params"][0]
    assert exact == -1.0  # on the budget: the whole tolerance is left
    limit = Budget(design.total_params / 1.01, tolerance=0.01).violations(batch)["total_params"][0]
    assert limit == pytest.approx(0.0, abs=1e-9)


def test_nothing_legal_names_the_nearest_and_what_to_relax() -> None:
    start = time.process_time()
    found = legal_designs([SMALL], Budget(6e8, tolerance=1e-6), Rules())
    assert found.count == 0
    assert "nearest: hidden_size=" in found.message and "budget tolerance 1e-06 -> 0.02" in found.message
    far = legal_designs([SMALL], Budget(1e12), Rules())
    assert far.count == 0 and "do not reach 1000.00B" in far.message
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("text", "value"), [("30B", 30e9), ("1.5T", 1.5e12), ("350m", 350e6), (7e9, 7e9), ("8_000_000_000", 8e9), (" 8b ", 8e9)]
)
def test_counts_are_read(text: str | float, value: float) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["30X", "", "0", "-3B", "nan", "inf", "1e30", 10**30, 10**400, float("nan"), True, "B", "30BB", "0x10", "1" * 400]
)
def test_bad_counts_are_refused(text: str | float) -> None:
    with pytest.raises(InvalidValueError, match="parameter count"):
        parse_count(text)


def test_contradictory_budgets_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="active parameters must be at most the total"):
        Budget(1e9, 2e9)
    with pytest.raises(InvalidValueError, match="tolerance"):
        Budget(1e9, tolerance=0.0)
    with pytest.raises(InvalidValueError, match="tolerance"):
        Budget(1e9, tolerance=float("nan"))


def test_a_space_nobody_can_enumerate_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rules that prune, 10^12 points would be walked for days."""
    from shapefront.constraints import join

    with pytest.raises(join.SpaceTooLargeError, match="lattice points, and its rules leave more than 1e"):
        list(iter_legal(SMALL, Budget(6e8), Rules(), max_rows=10))
    monkeypatch.setattr("shapefront.constraints.relax._ROWS", 10)
    assert "no design is legal" in legal_designs([SMALL], Budget(1e12), Rules()).message


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_dimension_of_zero_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} must be at least 1, got 0"):
        replace(SMALL, dimensions={**SMALL.dimensions, name: (0, 128)}, fixed={k: v for k, v in SMALL.fixed.items() if k != name})


def test_a_window_needs_layers_and_a_period_a_window() -> None:
    with pytest.raises(InvalidValueError, match="sliding_window_period needs sliding_window"):
        replace(SMALL, fixed={**SMALL.fixed, "sliding_window_period": 2})
    with pytest.raises(InvalidValueError, match="go together"):
        list(iter_legal(replace(SMALL, fixed={**SMALL.fixed, "sliding_window": 128}), Budget(6e8), Rules()))
