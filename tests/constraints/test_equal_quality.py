import pytest

from shapefront.constraints.equal_quality import REASONS, equal_quality, equal_quality_violations, gives_up
from shapefront.costmodel import Architecture, ArchitectureBatch
from shapefront.costmodel.models import load_model, model_rows

QWEN = load_model("Qwen3-30B-A3B")
LLAMA = load_model("Llama-3.1-8B")
DEEPSEEK = load_model("DeepSeek-V3")
OSS = load_model("gpt-oss-120b")


def _reasons(design: Architecture, reference: Architecture) -> list[str]:
    return gives_up(ArchitectureBatch.from_architectures([design]), reference)[0]


@pytest.mark.parametrize("row", model_rows(), ids=lambda r: r.name)
def test_a_model_equals_itself(row) -> None:  # type: ignore[no-untyped-def]
    batch = ArchitectureBatch.from_architectures([row.architecture])
    assert equal_quality(batch, row.architecture).tolist() == [True]
    assert gives_up(batch, row.architecture) == [[]]


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        ({"num_key_value_heads": 2}, "kv_width"),
        ({"num_experts": 256, "moe_intermediate_size": 384}, "experts_per_active_expert"),
        (
            {"moe_intermediate_size": 512, "num_experts": 192, "num_experts_per_tok": 12, "hidden_size": 2560},
            "active_ffn_over_hidden",
        ),
        ({"num_hidden_layers": 46}, "total_params_low"),
        ({"num_hidden_layers": 50}, "total_params_high"),
        ({"num_experts_per_tok": 6}, "active_params_low"),
        ({"num_experts_per_tok": 10}, "active_params_high"),
        ({"hidden_size": 6144, "num_hidden_layers": 6}, "delta_loss_shape"),
        ({"sliding_window": 128, "num_sliding_window_layers": 24}, "window"),
    ],
)
def test_each_condition_is_named(changes: dict[str, int], condition: str) -> None:
    assert REASONS[condition] in _reasons(QWEN.with_(**changes), QWEN)


def test_the_safer_side_is_allowed() -> None:
    found = equal_quality_violations(ArchitectureBatch.from_architectures([QWEN.with_(num_key_value_heads=8)]), QWEN)
    assert found["kv_width"][0] == pytest.approx(-1.0)  # twice the KV width: a whole width on the safer side
    fewer = QWEN.with_(num_experts=120)  # E/k 15 instead of 16
    assert REASONS["experts_per_active_expert"] not in _reasons(fewer, QWEN)


def test_fewer_layers_at_the_same_kv_per_layer_are_fair() -> None:
    # 8B in 30 layers: width grows so that l*w^2 stays; KV per layer kept, total within the window
    design = LLAMA.with_(num_hidden_layers=30, intermediate_size=15488)
    assert -0.005 <= design.total_params / LLAMA.total_params - 1 <= 0.01
    assert _reasons(design, LLAMA) == []


def test_size_edges() -> None:
    # vocabulary rows move the total alone by 8192 parameters a row: +0.99 % is in, +1.1 % is out, -0.6 % is out
    for share, ok in ((0.0099, True), (0.011, False), (-0.0049, True), (-0.006, False)):
        layers = LLAMA.num_hidden_layers * 3 * LLAMA.hidden_size
        width = LLAMA.intermediate_size + round(share * LLAMA.total_params / layers)
        design = LLAMA.with_(intermediate_size=width)
        named = {REASONS[n] for n in ("total_params_low", "total_params_high")} & set(_reasons(design, LLAMA))
        assert bool(named) != ok


def test_other_kinds_are_never_equal() -> None:
    assert REASONS["kind"] in _reasons(LLAMA, QWEN)
    assert REASONS["kind"] in _reasons(QWEN.with_(name="x"), DEEPSEEK)
    mla = DEEPSEEK.with_(kv_lora_rank=256)
    assert REASONS["kv_lora_rank"] in _reasons(mla, DEEPSEEK)
    assert REASONS["q_lora_rank"] in _reasons(DEEPSEEK.with_(q_lora_rank=1024), DEEPSEEK)
    assert REASONS["head_dim"] in _reasons(DEEPSEEK.with_(v_head_dim=64), DEEPSEEK)


def test_windows_keep_their_share() -> None:
    assert REASONS["window"] not in _reasons(OSS.with_(num_hidden_layers=35, num_sliding_window_layers=18), OSS)
    assert REASONS["window"] in _reasons(OSS.with_(num_sliding_window_layers=24), OSS)
    assert REASONS["window"] in _reasons(OSS.with_(sliding_window=64), OSS)
    assert REASONS["window"] not in _reasons(OSS.with_(sliding_window=0, num_sliding_window_layers=0), OSS)


def test_batch_equals_one_by_one() -> None:
    designs = [QWEN, QWEN.with_(num_key_value_heads=2), QWEN.with_(num_hidden_layers=50)]
    batch = ArchitectureBatch.from_architectures(designs)
    assert gives_up(batch, QWEN) == [_reasons(d, QWEN) for d in designs]
    assert equal_quality(batch, QWEN).tolist() == [True, False, False]
