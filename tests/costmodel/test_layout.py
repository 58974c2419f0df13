import numpy as np
import pytest

from shapefront.costmodel import InvalidValueError, Layout, LayoutBatch, UnknownKeyError, Workload, enumerate_layouts


def test_gpus_are_the_product() -> None:
    layout = Layout(tpa=2, kvp=2, dpa=2, tpf=2, ep=4, pp=3)
    assert layout.gpus == 24
    assert layout.stage_gpus == 8


def test_two_sides_must_agree() -> None:
    with pytest.raises(InvalidValueError, match=r"tpa\*kvp\*dpa must equal tpf\*ep, got 2\*1\*1 = 2 and 1\*1 = 1"):
        Layout(tpa=2)
    with pytest.raises(InvalidValueError, match="tpf must be a whole number"):
        Layout(tpf=0)


def test_parse() -> None:
    assert Layout.parse("tpa=1,dpa=8,ep=8") == Layout(dpa=8, ep=8)
    assert Layout.parse("tpa=4") == Layout(tpa=4, tpf=4)  # the FFN follows the attention side
    assert Layout.parse("") == Layout()
    assert Layout.parse(str(Layout(dpa=8, ep=4, tpf=2))) == Layout(dpa=8, ep=4, tpf=2)
    with pytest.raises(UnknownKeyError, match=r"did you mean 'tpa' or 'tpf'.*tpa, kvp, dpa .attention., tpf, ep .FFN. and pp"):
        Layout.parse("tp=2")
    with pytest.raises(InvalidValueError, match="a layout reads like"):
        Layout.parse("tpa=-1")
    with pytest.raises(InvalidValueError, match="twice"):
        Layout.parse("tpa=1,tpa=2")


def test_enumeration_counts_by_hand() -> None:
    # 4 GPUs, dense, no KVP, no PP: TPA in {1, 2, 4}, DPA the rest, TPF = 4 -> 3 layouts
    assert len(enumerate_layouts([4], moe=False)) == 3
    # MoE: times EP in {1, 2, 4} -> 9
    batch = enumerate_layouts([4], moe=True)
    assert len(batch) == 9
    # PP in {1, 2, 4} with stages of 4, 2, 1 GPUs: 9 + 4 + 1
    assert len(enumerate_layouts([4], moe=True, max_pp=4)) == 14
    # KVP: (TPA, KVP) with TPA*KVP dividing 4: (1,1) (1,2) (1,4) (2,1) (2,2) (4,1) = 6, times 3 EP
    assert len(enumerate_layouts([4], moe=True, max_kvp=4)) == 18
    assert np.array_equal(batch.gpus, np.full(9, 4))
    assert len({(*layout.to_dict().values(),) for layout in batch}) == 9


def test_batch_refuses_what_the_scalar_refuses() -> None:
    with pytest.raises(InvalidValueError, match="must equal"):
        LayoutBatch.from_arrays(tpa=[1, 2], tpf=[1, 1])
    assert LayoutBatch.from_arrays(tpa=[1, 2], tpf=[1, 2]).layout(1) == Layout(tpa=2, tpf=2)


def test_workload_context() -> None:
    assert Workload().decode_context == 8704  # 8192 + 1024/2
    assert Workload().peak_context == 9216
    for bad in (
        dict(input_tokens=0),
        dict(prefix_cache_share=1.0),
        dict(load="skewed"),
        dict(load=0.5),
        dict(max_itl_seconds=0.0),
    ):
        with pytest.raises(InvalidValueError):
            Workload(**bad)
