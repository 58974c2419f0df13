from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapefront.costmodel import Architecture, ArchitectureBatch, InvalidValueError, UnknownKeyError, group_by_kind

TINY = Architecture(
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    intermediate_size=16,
    vocab_size=10,
)


def test_dense_count_by_hand() -> None:
    # attention 8*(4+2*2)*2 + 4*2*8 = 128 + 64 = 192; FFN 3*8*16 = 384; norms 2*8 = 16 a layer -> 3*592 = 1776
    # final norm 8, embedding 80, head 80 -> 1944
    assert TINY.total_params == 1944
    # matrices only, look-up excluded: 3*(192+384) + 80
    assert TINY.active_params == 1808
    assert TINY.active_params_with_embedding == 1888


def test_tied_embeddings_are_stored_once() -> None:
    tied = TINY.with_(tie_word_embeddings=True)
    assert tied.total_params == TINY.total_params - 80
    assert tied.active_params == tied.active_params_with_embedding == TINY.active_params


def test_moe_count_by_hand() -> None:
    moe = Architecture(
        hidden_size=8, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=2, vocab_size=10,
        moe_intermediate_size=4, num_experts=6, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, intermediate_size=12,
    )  # fmt: skip
    parts = moe.parameter_parts()
    assert parts["experts"] == 2 * 6 * 3 * 8 * 4
    assert parts["shared_experts"] == 2 * 3 * 8 * 4  # width follows the routed experts
    assert parts["router"] == 2 * 6 * 8
    assert parts["dense_ffn"] == 3 * 8 * 12
    assert moe.active_params == 3 * 192 + 3 * 8 * 12 + 2 * (3 * 3 * 8 * 4 + 6 * 8) + 80


def test_mla_count_by_hand() -> None:
    mla = Architecture(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=10, intermediate_size=4, attention="mla",
        q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4,
    )  # fmt: skip
    # query 16*6 + 6*2*5 = 156; kv 16*(5+2) + 5*2*(3+4) = 182; out 2*4*16 = 128; norms of the ranks 6 + 5
    assert mla.parameter_parts()["attention"] == 156 + 182 + 128 + 11
    full_rank = mla.with_(q_lora_rank=0)
    assert full_rank.parameter_parts()["attention"] == 16 * 2 * 5 + 182 + 128 + 5


def test_biases_norms_and_sinks() -> None:
    rich = TINY.with_(qkv_bias=True, output_bias=True, qk_norm="head", attention_sinks=True, ffn_bias=True)
    # a layer: (4+2*2)*2 + 8 + 2*2 + 4 of attention; gate and up 2*16, down 8
    assert rich.total_params - TINY.total_params == 3 * (16 + 8 + 4 + 4 + 40)
    assert TINY.with_(qk_norm="full").total_params - TINY.total_params == 3 * (4 + 2) * 2
    assert rich.active_params == TINY.active_params


@given(
    h=st.integers(1, 64), layers=st.integers(1, 80), kv=st.integers(1, 8), group=st.integers(1, 8), width=st.integers(1, 300),
    experts=st.integers(0, 64), data=st.data(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_batch_equals_scalar(h: int, layers: int, kv: int, group: int, width: int, experts: int, data: st.DataObject) -> None:
    moe: dict[str, Any] = {}
    if experts:
        moe = dict(
            num_experts=experts, num_experts_per_tok=data.draw(st.integers(1, experts)), moe_intermediate_size=width,
            n_shared_experts=data.draw(st.integers(0, 2)), first_k_dense_replace=data.draw(st.integers(0, layers)),
        )  # fmt: skip
    design = Architecture(
        hidden_size=64 * h, num_hidden_layers=layers, num_attention_heads=kv * group, num_key_value_heads=kv, head_dim=64,
        intermediate_size=width, vocab_size=1000, tie_word_embeddings=data.draw(st.booleans()), **moe,
    )  # fmt: skip
    batch = ArchitectureBatch.from_architectures([design, design.with_(num_hidden_layers=layers + 1), design])
    assert [int(n) for n in batch.total_params] == [d.total_params for d in batch]
    assert int(batch.active_params[2]) == design.active_params
    assert batch.architecture(0) == design
    assert {k: int(v[0]) for k, v in batch.parameter_parts().items()} == design.parameter_parts()


def test_counts_stay_exact_at_a_trillion() -> None:
    big = TINY.with_(hidden_size=16384, intermediate_size=1 << 20, num_hidden_layers=200, head_dim=128)
    assert int(ArchitectureBatch.from_architectures([big]).total_params[0]) == big.total_params > 10**13


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_attention_heads=40, num_key_value_heads=12), "n_kv_heads must divide n_heads, got n_heads=40, n_kv_heads=12"),
        (dict(num_experts=4, num_experts_per_tok=5, moe_intermediate_size=8), "top_k must be at most num_experts"),
        (dict(hidden_size=0), "hidden_size must be at least 1"),
        (dict(hidden_size=10**30), "hidden_size must be a whole number from 0 to 1048576"),
        (dict(hidden_size=2.5), "whole number"),
        (dict(hidden_size=True), "whole number"),
        (dict(hidden_size=10, head_dim=0, num_attention_heads=4), "hidden_size must be a multiple"),
        (dict(sliding_window=128), "go together"),
        (dict(num_experts_per_tok=2), "must be 0 in a dense model"),
        (dict(attention="flash"), "attention must be one of"),
    ],
)
def test_broken_rules_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        TINY.with_(**change)


def test_unknown_key_gets_a_suggestion() -> None:
    with pytest.raises(UnknownKeyError, match="did you mean 'hidden_size'"):
        Architecture.from_dict({"hiden_size": 8})


def test_group_by_kind_keeps_positions() -> None:
    tied = TINY.with_(tie_word_embeddings=True)
    groups = group_by_kind([TINY, tied, TINY])
    assert [where for where, _ in groups] == [[0, 2], [1]]
    with pytest.raises(InvalidValueError, match="one kind"):
        ArchitectureBatch.from_architectures([TINY, tied])


def test_batch_refuses_floats_and_bad_designs() -> None:
    with pytest.raises(InvalidValueError, match="whole numbers"):
        ArchitectureBatch.from_arrays(TINY.kind, hidden_size=np.array([1.5]))
    with pytest.raises(InvalidValueError, match="design 1"):
        ArchitectureBatch.from_arrays(
            TINY.kind, hidden_size=[8, 0], num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8,
            intermediate_size=8, vocab_size=8,
        )  # fmt: skip
