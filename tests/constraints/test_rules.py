import numpy as np
import pytest

from shapefront.constraints.alignment import alignment_score, alignment_violations, misalignment, shard_allowed, soft_dimensions
from shapefront.constraints.capacity import fits_memory, in_domain
from shapefront.constraints.divisibility import layout_allowed, layout_reasons
from shapefront.constraints.rules import LossGuard, Rules
from shapefront.constraints.space import DesignSpace, lattice
from shapefront.costmodel import (
    Architecture,
    ArchitectureBatch,
    ArchitectureKind,
    InvalidValueError,
    Layout,
    LayoutBatch,
    TensorFormats,
    enumerate_layouts,
    load_hardware,
)

DENSE = Architecture(
    hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128, intermediate_size=14336,
    vocab_size=128256,
)  # fmt: skip
MOE = Architecture(
    hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8, vocab_size=151936,
)  # fmt: skip
MLA = Architecture(
    hidden_size=7168, num_hidden_layers=61, num_attention_heads=128, vocab_size=129280, attention="mla", q_lora_rank=1536,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256, num_experts_per_tok=8,
    moe_intermediate_size=2048, n_shared_experts=1, first_k_dense_replace=3, intermediate_size=18432,
)  # fmt: skip


def one(design: Architecture) -> ArchitectureBatch:
    return ArchitectureBatch.from_architectures([design])


def test_misalignment_by_hand() -> None:
    assert misalignment(2880, 128) == 0.5  # 22.5 tiles: half a tile of padding
    assert misalignment(4096, 512) == 0.0
    assert misalignment(4544, 128) == 0.5
    assert list(misalignment(np.array([1, 128, 129]), 128)) == [127 / 128, 0, 127 / 128]


def test_known_warts_break_the_floor() -> None:
    oss = DENSE.with_(hidden_size=2880, head_dim=64, num_attention_heads=64)
    broken = {name for name, value in alignment_violations(one(oss)).items() if value[0] > 0}
    assert broken == {"alignment.hidden_size"}
    assert all(v[0] == 0 for v in alignment_violations(one(DENSE)).values())
    assert alignment_violations(one(DENSE), {"intermediate_size": 4096})["alignment.intermediate_size"][0] == 0.5
    assert alignment_score(one(DENSE))[0] == 1.0


def test_expert_shards_of_qwen3_30b() -> None:
    # H'e = 768: TPF 2 gives 384 = 3*128, TPF 4 gives 192, TPF 8 gives 96
    layouts = LayoutBatch.from_layouts([Layout(tpa=t, tpf=t) for t in (1, 2, 4)] + [Layout(dpa=8, ep=8)])
    assert shard_allowed(one(MOE), layouts).tolist() == [[True, True, False, True]]


def test_a_misaligned_model_may_run_unsharded() -> None:
    # gpt-oss: H'e = 2880 = 22.5*128, so no TPF keeps aligned shards; TPF 1 leaves the width as it is
    layouts = LayoutBatch.from_layouts([Layout(), Layout(tpa=2, tpf=2), Layout(dpa=4, ep=4)])
    assert shard_allowed(one(MOE.with_(moe_intermediate_size=2880)), layouts).tolist() == [[True, False, True]]


def test_fused_qkv_and_vocabulary_shards_by_hand() -> None:
    layouts = LayoutBatch.from_layouts([Layout(), Layout(tpa=8, tpf=8), Layout(tpa=16, tpf=16)])
    soft = soft_dimensions(one(DENSE), layouts)
    # (32 + 2*8)*128 = 6144; (4 + 2*1)*128 = 768; beyond the KV heads: (2 + 2*1)*128 = 512
    assert soft["fused_qkv_shard"].tolist() == [[6144, 768, 512]]
    assert soft["vocab_shard"].tolist() == [[128256, 16032, 8016]]
    assert soft_dimensions(one(MLA), layouts)["kv_down_projection"].tolist() == [[576] * 3]


def test_layouts_divide_as_told() -> None:
    layouts = enumerate_layouts([1, 3, 4, 16], moe=True, max_kvp=8, max_pp=2)
    allowed = layout_allowed(one(MOE), layouts)[0]
    for ok, layout in zip(allowed, layouts, strict=True):
        assert bool(ok) == (not layout_reasons(MOE, layout)), layout
    assert allowed.any() and not allowed.all()


def test_reasons_name_the_rule() -> None:
    assert (
        "tpa*kvp must divide num_attention_heads"
        in layout_reasons(DENSE.with_(num_attention_heads=24), Layout(tpa=16, tpf=16))[0]
    )
    assert "ep must be 1 in a dense model" in layout_reasons(DENSE, Layout(dpa=2, ep=2))[0]
    assert "ep must divide num_experts" in layout_reasons(MOE, Layout(dpa=3, ep=3))[0]
    assert "pp must divide num_hidden_layers" in layout_reasons(MLA, Layout(pp=2))[0]
    assert layout_reasons(MLA, Layout(pp=2), balanced_pipeline=False) == []
    assert "pp must be at most num_hidden_layers" in layout_reasons(MLA, Layout(pp=64), balanced_pipeline=False)[0]


def test_helix_needs_unreplicated_kv() -> None:
    # 4 KV heads: TPA 8 replicates; KVP on top of it is refused, TPA 4 x KVP 2 is fine
    layouts = LayoutBatch.from_layouts([Layout(tpa=8, kvp=2, ep=16), Layout(tpa=4, kvp=2, ep=8)])
    assert layout_allowed(one(MOE), layouts).tolist() == [[False, True]]
    mla = LayoutBatch.from_layouts([Layout(kvp=8, ep=8), Layout(tpa=2, kvp=4, ep=8)])
    assert layout_allowed(one(MLA), mla).tolist() == [[True, False]]


def test_domain_and_memory() -> None:
    gb300, h100 = load_hardware("gb300"), load_hardware("h100")
    layouts = LayoutBatch.from_layouts([Layout(), Layout(dpa=8, ep=8), Layout(dpa=128, ep=128), Layout(dpa=8, ep=8, pp=2)])
    assert in_domain(layouts, gb300).tolist() == [True, True, False, True]
    assert in_domain(layouts, h100).tolist() == [True, True, False, False]
    assert in_domain(layouts, h100, pipeline_inside=False).tolist() == [True, True, False, True]
    # 671B in NVFP4 is about 377 GB: one GB300 (298 GB) cannot hold it, eight can
    fits = fits_memory(one(MLA), layouts.take([0, 1]), context=9216, formats=TensorFormats(), hardware=gb300)
    assert fits.tolist() == [[False, True]]


def test_rules_bundle() -> None:
    rules = Rules(bands={"ffn_over_hidden": (2.7, 5.6)})
    assert rules.feasible(one(DENSE)).all()
    wide = one(DENSE.with_(hidden_size=16384, num_hidden_layers=4, num_attention_heads=128))
    broken = {name for name, value in rules.violations(wide).items() if value[0] > 0}
    assert broken == {"delta_loss_shape", "band.ffn_over_hidden"}
    for bad in (dict(max_delta_loss_shape=0.0), dict(min_shard=0), dict(bands={"ffn_over_hidden": (2.0, 1.0)})):
        with pytest.raises(InvalidValueError):
            Rules(**bad)


def test_spaces_refuse_contradictions() -> None:
    good = {"hidden_size": (1024,), "intermediate_size": (4096,)}
    with pytest.raises(InvalidValueError, match="both searched and fixed"):
        DesignSpace("x", ArchitectureKind(), good, {"hidden_size": 1})
    with pytest.raises(InvalidValueError, match="did you mean 'hidden_size'"):
        DesignSpace("x", ArchitectureKind(), {**good, "hidden_sise": (1,)})
    with pytest.raises(InvalidValueError, match="must rise"):
        DesignSpace("x", ArchitectureKind(), {**good, "hidden_size": (2048, 1024)})
    with pytest.raises(InvalidValueError, match="intermediate_size must be searched"):
        DesignSpace("x", ArchitectureKind(), {"hidden_size": (1024,)})
    with pytest.raises(InvalidValueError, match="4096 values"):
        lattice(1, 10**9, 1)
    assert lattice(1000, 1600, 256) == (1024, 1280, 1536)


def test_window_period_and_leading_width_are_derived() -> None:
    space = DesignSpace(
        "w", ArchitectureKind(moe=True),
        {"num_hidden_layers": (24, 25), "sliding_window_period": (1, 2, 6), "moe_intermediate_size": (256,)},
        dict(hidden_size=1024, num_attention_heads=8, num_key_value_heads=8, head_dim=128, vocab_size=1000, num_experts=8,
             num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, sliding_window=128),
    )  # fmt: skip
    columns = {
        "num_hidden_layers": np.array([24, 24, 25, 25]),
        "sliding_window_period": np.array([1, 2, 2, 6]),
        "moe_intermediate_size": np.full(4, 256),
    }
    batch = space.batch(columns)
    assert batch.num_sliding_window_layers.tolist() == [0, 12, 12, 20]  # full layers: 24, 12, 13, 5
    assert batch.sliding_window.tolist() == [0, 128, 128, 128]
    assert batch.intermediate_size.tolist() == [768] * 4  # (k + shared) * 256
    assert {k: v.tolist() for k, v in space.columns(batch).items()} == {k: v.tolist() for k, v in columns.items()}


def test_loss_guard_by_hand() -> None:
    # the reference itself: Q - Q_ref = 0, so (0 - tau)/max(0.01, |tau|) is -1 at tau = 0.02 and +1 at tau = -0.02
    for tau, expected in ((0.02, -1.0), (-0.02, 1.0), (0.001, -0.1)):
        guard = LossGuard(DENSE, tau)
        assert guard.violation(one(DENSE))[0] == pytest.approx(expected, abs=1e-12)
    small = one(DENSE.with_(num_hidden_layers=16))
    assert not Rules(loss=LossGuard(DENSE, 0.001)).feasible(small)[0]
    # another class is compared under the one law that covers both
    assert np.isfinite(LossGuard(MOE, 0.1).violation(one(DENSE)))[0]
    assert LossGuard(DENSE, 0.1, law=lambda batch, tokens: np.full(len(batch), 2.0)).violation(one(DENSE))[0] == -1.0
