import pytest

from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.models import ModelRow, PublishedCount, load_model, model_names, model_row, model_rows

ROWS = model_rows()
# rows whose published figures the plain formula does not reproduce, and which figure
NOT_COVERED = {
    "Llama-4-Scout": {"total"},
    "MiMo-7B": {"total"},
    "MiMo-V2-Flash": {"shape"},
    "Step-3.7-Flash": {"shape"},
    "MiniMax-M3": {"shape"},
    "gemma-4-26B-A4B": {"total", "active", "shape"},
    "ERNIE-4.5-21B-A3B": {"total"},
    "LongCat-Flash": {"total", "active", "shape"},
}


def test_the_rows_left_out_are_listed_with_a_reason() -> None:
    assert {r.name: set(r.not_covered) for r in ROWS if r.not_covered} == NOT_COVERED
    for row in ROWS:
        assert bool(row.reason) == bool(row.not_covered)
        assert row.source, row.name


@pytest.mark.parametrize("row", [r for r in ROWS if r.published_total and "total" not in r.not_covered], ids=lambda r: r.name)
def test_published_totals(row: ModelRow) -> None:
    published = row.published_total
    assert published is not None
    ours = row.architecture.total_params + row.other_params
    assert abs(ours - published.value) <= max(0.01 * published.value, published.half_digit)


@pytest.mark.parametrize("row", [r for r in ROWS if r.published_active and "active" not in r.not_covered], ids=lambda r: r.name)
def test_published_active_counts_under_the_vendors_convention(row: ModelRow) -> None:
    published = row.published_active
    assert published is not None
    assert row.active_convention in ("with", "without", "tied")
    assert (row.active_convention == "tied") == row.architecture.tie_word_embeddings
    assert abs(row.vendor_active_params - published.value) <= max(0.03 * published.value, published.half_digit)


@pytest.mark.parametrize("name", sorted(n for n, words in NOT_COVERED.items() if "total" in words))
def test_a_row_listed_as_uncovered_is_really_off(name: str) -> None:
    row = model_row(name)
    assert row.published_total is not None
    off = abs(row.architecture.total_params + row.other_params - row.published_total.value)
    assert off > max(0.01 * row.published_total.value, row.published_total.half_digit)


def test_conventions_matter() -> None:
    # Qwen3-30B-A3B: 3.3B holds the look-up (2*151936*2048 = 0.62B for both tables); without it 3.04B would be out by 8 %
    design = load_model("Qwen3-30B-A3B")
    assert design.active_params_with_embedding - design.active_params == 151936 * 2048
    assert abs(design.active_params - 3.3e9) > 0.03 * 3.3e9


def test_family_statics() -> None:
    assert load_model("Qwen2.5-7B").qkv_bias and not load_model("Qwen3-8B").qkv_bias
    assert load_model("Qwen3-8B").qk_norm == "head" and load_model("OLMo-2-7B").qk_norm == "full"
    assert load_model("Gemma-2-9B").norms_per_layer == 4
    oss = load_model("gpt-oss-120b")
    assert oss.attention_sinks and oss.qkv_bias and oss.output_bias and oss.ffn_bias and oss.router_bias
    assert (oss.sliding_window, oss.num_sliding_window_layers) == (128, 18)
    assert (load_model("Gemma-3-27B").sliding_window, load_model("Gemma-3-27B").num_sliding_window_layers) == (1024, 52)
    assert not load_model("Falcon-7B").gated_ffn


@pytest.mark.parametrize(
    ("text", "value", "half"), [("8.03B", 8.03e9, 5e6), ("405B", 405e9, 0.5e9), ("1T", 1e12, 0.5e12), ("0.135B", 0.135e9, 0.5e6)]
)
def test_printed_counts(text: str, value: float, half: float) -> None:
    count = PublishedCount.parse(text)
    assert count.value == pytest.approx(value)
    assert count.half_digit == pytest.approx(half)


@pytest.mark.parametrize("text", ["", "B", "8", "8.0.1B", "-8B", "nanB"])
def test_bad_counts(text: str) -> None:
    with pytest.raises(InvalidValueError, match="reads like"):
        PublishedCount.parse(text)


def test_names() -> None:
    assert len(model_names()) == len(set(model_names())) == 62
    assert load_model("Qwen/Qwen3-30B-A3B") == load_model("qwen3-30b-a3b")
    assert load_model("meta-llama/Meta-Llama-3.1-8B").name == "Llama-3.1-8B"
    with pytest.raises(UnknownKeyError, match=r"did you mean 'Llama-3\.1-8B'"):
        load_model("Llama-3.1-8")
    with pytest.raises(UnknownKeyError, match="unknown model"):
        load_model("x" * 10_000)
