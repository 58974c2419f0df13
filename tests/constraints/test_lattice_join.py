"""The join leaves exactly the legal lattice points, in lexicographic order, whether or not designs are validated one by one."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shapefront.constraints import budget as budgets
from shapefront.constraints import join
from shapefront.constraints.budget import Budget, iter_legal
from shapefront.constraints.rules import Rules
from shapefront.constraints.space import DesignSpace, lattice, sound
from shapefront.costmodel import ArchitectureKind, InvalidValueError
from shapefront.costmodel.architecture import INTEGER_FIELDS

FREE = Rules(max_delta_loss_shape=float("inf"))
WINDOWS = DesignSpace(
    "windows",
    ArchitectureKind(moe=True, router_bias=True),
    {
        "hidden_size": (1024, 1280),
        "num_hidden_layers": (14, 16, 18),
        "num_attention_heads": (8, 16),
        "num_key_value_heads": (2, 4),
        "num_experts": (16, 32),
        "num_experts_per_tok": (2, 4),
        "sliding_window_period": (1, 2, 4),
        "moe_intermediate_size": lattice(256, 2048, 128),
    },
    {"head_dim": 64, "vocab_size": 32000, "sliding_window": 512},
)
LEADING = replace(WINDOWS, name="leading", fixed={**WINDOWS.fixed, "first_k_dense_replace": 2, "n_shared_experts": 1})
RANKS = DesignSpace(
    "ranks",
    ArchitectureKind(attention="mla", moe=True),
    {
        "hidden_size": (1024, 1280),
        "num_hidden_layers": (14, 16),
        "num_attention_heads": (8, 16),
        "num_experts": (16, 32),
        "num_experts_per_tok": (2, 4),
        "q_lora_rank": (384, 768),
        "moe_intermediate_size": lattice(256, 2048, 128),
    },
    {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "vocab_size": 32000},
)


@pytest.mark.parametrize("space", [WINDOWS, LEADING, RANKS], ids=lambda s: s.name)
def test_the_legal_set_comes_in_lexicographic_order_of_the_join(space: DesignSpace) -> None:
    budget = Budget(1.5e9, tolerance=0.05)
    first, late = join.order(space)
    names = [*first, *late, space.solved]
    points = [dict(zip(names, row, strict=True)) for row in itertools.product(*(space.dimensions[n] for n in names))]
    points = [p for p in points if p.get("num_key_value_heads", 1) <= p["num_attention_heads"]]
    batch = space.batch({n: np.array([p[n] for p in points]) for n in names})
    expected = [tuple(points[i][n] for n in names) for i in np.flatnonzero(budget.feasible(batch) & FREE.feasible(batch))]
    found = [space.columns(b) for b in iter_legal(space, budget, FREE, chunk=37)]
    rows = [tuple(int(part[n][i]) for n in names) for part in found for i in range(len(part[names[0]]))]
    assert rows == expected and len(rows) > 50


def test_only_what_the_total_does_not_see_waits_for_the_solve() -> None:
    assert join.order(WINDOWS)[1] == ["num_experts_per_tok", "sliding_window_period"]
    # two dense layers as wide as the active experts: the total sees top-k
    assert join.order(LEADING)[1] == ["sliding_window_period"]
    assert join.order(RANKS)[1] == []  # the query rank comes after top-k and weighs


@pytest.mark.parametrize("space", [WINDOWS, LEADING, RANKS], ids=lambda s: s.name)
def test_designs_of_a_sound_space_equal_their_validated_twins(space: DesignSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(1.5e9, tolerance=0.05)
    assert sound(space)
    quick = list(iter_legal(space, budget, FREE))
    monkeypatch.setattr(budgets, "sound", lambda _: False)
    slow = list(iter_legal(space, budget, FREE))
    assert len(quick) == len(slow)
    for a, b in zip(quick, slow, strict=True):
        for name in INTEGER_FIELDS:
            assert getattr(a, name).tolist() == getattr(b, name).tolist(), name


@pytest.mark.parametrize(
    ("space", "changes"),
    [
        (WINDOWS, {"fixed": {**WINDOWS.fixed, "first_k_dense_replace": 15}}),  # more than the fewest layers
        (WINDOWS, {"fixed": {**WINDOWS.fixed, "sliding_window": 0}}),  # windowed layers without a window
        (WINDOWS, {"fixed": {**WINDOWS.fixed, "head_dim": 0}}),
        (WINDOWS, {"fixed": {**WINDOWS.fixed, "n_shared_experts": 1, "shared_expert_intermediate_size": 0}}),
        (WINDOWS, {"fixed": {**WINDOWS.fixed, "vocab_size": 1 << 21}}),
        (RANKS, {"fixed": {**RANKS.fixed, "v_head_dim": 0}}),
    ],
)
def test_a_space_that_could_hold_a_broken_design_is_validated_row_by_row(space: DesignSpace, changes: dict[str, object]) -> None:
    assert not sound(replace(space, **changes))  # type: ignore[arg-type]


def test_a_broken_design_inside_the_budget_is_refused() -> None:
    space = replace(WINDOWS, fixed={**WINDOWS.fixed, "sliding_window": 0})
    with pytest.raises(InvalidValueError, match="go together"):
        list(iter_legal(space, Budget(1.5e9, tolerance=0.05), FREE))


def test_a_space_that_searches_the_solved_width_alone_is_solved() -> None:
    fixed = {"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4}
    space = DesignSpace(
        "one", ArchitectureKind(), {"intermediate_size": lattice(1024, 8192, 128)}, {**fixed, "head_dim": 64, "vocab_size": 32000}
    )
    middle = space.batch({"intermediate_size": np.array([4096])})
    (found,) = iter_legal(space, Budget(float(middle.total_params[0]), tolerance=0.01), FREE)
    # a step of 128 is 3·1024·128·16 = 6.3M of some 0.3B: 2 %, so that the design itself is the only one within 1 %
    assert found.intermediate_size.tolist() == [4096]
