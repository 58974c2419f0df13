"""What hides communication: never more than there is other work, and which exchange kernel a prompt takes."""

import numpy as np
import pytest

from shapefront.costmodel.decode import decode
from shapefront.costmodel.expert_all_to_all import prompt_kernel
from shapefront.costmodel.layout import Layout
from shapefront.costmodel.models import load_model
from shapefront.costmodel.prefill import prefill
from shapefront.costmodel.profile import load_profile
from shapefront.costmodel.step_forward import shown_communication

R1 = load_model("DeepSeek-R1")


def test_share_shown_by_hand() -> None:
    # gemm 2, attention 1, other 1 against communication 10, 4 and 0: of 10 s at most 4 are hidden (0.6 show); of 4 s all;
    # half of them where the stack hides half. Nothing to hide: nothing breaks.
    out = np.array([[2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [10.0, 4.0, 0.0], [1.0, 1.0, 1.0]])[:, None]
    np.testing.assert_allclose(shown_communication(out, 1.0), [[0.6, 0.0, 0.0]])
    np.testing.assert_allclose(shown_communication(out, 0.5), [[0.6, 0.5, 0.5]])
    assert shown_communication(out, 0.0) == 1.0


@pytest.mark.parametrize("layout", ["dpa=8,ep=8", "tpa=8,tpf=8", "dpa=4,ep=4,pp=2"])
def test_a_step_is_at_least_its_communication_and_its_work(layout: str) -> None:
    loads = [8.0, 128.0, 4096.0]
    plain, hidden = (decode(R1, Layout.parse(layout), loads, context=4096, overlap=share) for share in (0.0, 1.0))
    half = decode(R1, Layout.parse(layout), loads, context=4096, overlap=0.5)
    communication, rest = plain.communication_seconds, plain.seconds - plain.communication_seconds
    if "pp" not in layout:
        np.testing.assert_allclose(hidden.seconds, np.maximum(communication, rest), rtol=1e-9)
        np.testing.assert_allclose(half.seconds, plain.seconds - np.minimum(0.5 * communication, rest), rtol=1e-9)
    assert np.all(hidden.seconds <= half.seconds)
    assert np.all(half.seconds <= plain.seconds)


def test_slow_links_cannot_be_hidden() -> None:
    # 32 H200s in four domains: a prompt's exchange is longer than its mathematics, so hiding it leaves the exchange.
    layout, profile = Layout(dpa=32, ep=32), load_profile("ideal", hardware="h200")
    plain, hidden = (prefill(R1, layout, input_tokens=1024, profile=profile, overlap=share) for share in (0.0, 1.0))
    communication = plain.breakdown[2]
    rest = plain.breakdown.sum(axis=0) - communication
    assert communication > rest
    assert hidden.breakdown.sum() == pytest.approx(float(communication.sum()), rel=1e-6)


def test_a_prompt_takes_the_high_throughput_exchange() -> None:
    assert prompt_kernel(load_profile("gb300-sglang")) == "deepep_normal"
    assert prompt_kernel(load_profile("gb300-vllm")) == "deepep_ht"
    assert prompt_kernel(load_profile("gb300-trtllm")) is None
    assert prompt_kernel(load_profile("ideal")) is None
    layout = Layout(dpa=8, ep=8)
    own = prefill(R1, layout, input_tokens=4096, profile="gb300-sglang")
    named = prefill(R1, layout, input_tokens=4096, profile="gb300-sglang", all_to_all_kernel="deepep_normal")
    other = prefill(R1, layout, input_tokens=4096, profile="gb300-sglang", all_to_all_kernel="absent")  # the plain entry
    assert own.ttft_seconds == named.ttft_seconds
    assert own.ttft_seconds != other.ttft_seconds
