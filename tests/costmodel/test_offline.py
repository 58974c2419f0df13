"""Offline jobs: the scheduler by hand, one request, an endless queue, and what is refused."""

from typing import Any

import pytest

from shapefront.costmodel.calibration.protocols import protocol_of
from shapefront.costmodel.decode import decode
from shapefront.costmodel.errors import InvalidValueError
from shapefront.costmodel.layout import Layout, LayoutBatch
from shapefront.costmodel.models import load_model
from shapefront.costmodel.offline import offline_throughput, schedule_job
from shapefront.costmodel.prefill import prefill
from shapefront.costmodel.serving import ServingSetup
from shapefront.costmodel.serving_frontier import frontier
from shapefront.costmodel.workload import Workload

QWEN = load_model("Qwen3-30B-A3B")


def job(requests: int, *, capacity: int, output_tokens: int = 3, max_tokens: int = 20) -> tuple[float, int, float, list[Any]]:
    """The scheduler with a decode pass of 1 s and prompt tokens of 0.5 s each."""
    seen: list[tuple[float, float]] = []

    def step(running: float, context: float) -> float:
        seen.append((running, context))
        return 1.0

    found = schedule_job(
        requests, capacity=capacity, input_tokens=10, output_tokens=output_tokens, max_tokens=max_tokens,
        step_seconds=step, prompt_seconds=lambda running, taken: 0.5 * taken,
    )  # fmt: skip
    return (*found, seen)


def test_two_waves_by_hand() -> None:
    # pass 1: two prompts (20 tokens, 10 s), their first tokens; passes 2 and 3 decode two (1 s each); again for the others.
    seconds, passes, mean, seen = job(4, capacity=2)
    assert seconds == pytest.approx(2 * (10 + 1 + 1))
    assert passes == 6
    assert mean == pytest.approx((0 + 2 + 2) / 3)
    assert seen == [(2, 11.0), (2, 12.0)] * 2  # 10 prompt tokens and the answers' tokens so far


def test_running_sequences_take_their_tokens_first() -> None:
    # Passes of 12 tokens. 1: 12 prompt tokens, one prompt of 10 done. 2: one runs, 11 left: the 8 that the second prompt
    # still needs, then 3 of the third (20 + 3). 3: two run, 7 left: the 7 the third needs, and its first token. The first
    # has its third token now. 4: two run, the second ends. 5: the third ends.
    seconds, passes, _, seen = job(3, capacity=3, max_tokens=12)
    assert [running for running, _ in seen] == [1, 2, 2, 1]
    assert passes == 5
    assert seconds == pytest.approx(0.5 * 30 + 4)  # every prompt token once, four passes that decode


def test_a_long_prompt_takes_several_passes() -> None:
    seconds, passes, _, _ = job(1, capacity=1, max_tokens=4)
    assert passes == 3 + 2  # 10 tokens in passes of 4; the first token comes with the last of them
    assert seconds == pytest.approx(0.5 * 10 + 2)


def test_an_answer_of_one_token_is_prefill_alone() -> None:
    assert job(5, capacity=2, output_tokens=1)[0] == pytest.approx(0.5 * 50)


def test_passes_taken_together_change_nothing_where_a_step_is_linear_in_the_context() -> None:
    def run(output_tokens: int) -> tuple[float, int, float]:
        return schedule_job(
            7, capacity=3, input_tokens=10, output_tokens=output_tokens, max_tokens=1000,
            step_seconds=lambda running, context: 1.0 + 0.01 * context, prompt_seconds=lambda running, taken: 0.0,
        )  # fmt: skip

    # three waves of 3, 3 and 1; each: 639 decode passes after the first token, at contexts 11 … 649
    contexts = sum(10 + n for n in range(1, 640))
    assert run(640)[0] == pytest.approx(3 * (639 + 0.01 * contexts))


def test_one_request_is_its_prefill_and_its_steps() -> None:
    layout, workload = Layout(tpa=1, tpf=1), Workload(input_tokens=1024, output_tokens=2)
    run = offline_throughput(QWEN, layout, requests=1, workload=workload, profile="gb300-blog")
    step = float(decode(QWEN, layout, 1, context=1025, profile="gb300-blog").seconds[0, 0, 0])
    assert run.passes == 2
    assert run.seconds > step
    longer = offline_throughput(
        QWEN, layout, requests=1, workload=Workload(input_tokens=1024, output_tokens=3), profile="gb300-blog"
    )
    assert longer.seconds - run.seconds == pytest.approx(step, rel=1e-2)  # one pass more, at a context one token longer


@pytest.mark.parametrize(("model", "layout"), [("Llama-3.1-70B", "tpa=1,tpf=1"), ("DeepSeek-R1", "dpa=4,ep=4")])
def test_answers_of_one_token_are_prefill(model: str, layout: str) -> None:
    # Nothing ever decodes: 1,000 prompts of 1,024 tokens in passes of 8,192 are 125 passes a rank that prefill prices alike.
    design, where = load_model(model), Layout.parse(layout)
    work = Workload(input_tokens=1024, output_tokens=1)
    run = offline_throughput(design, where, requests=1000 * where.dpa, workload=work)
    chunk = prefill(design, where, input_tokens=1024, chunk_tokens=8192)
    assert run.passes == 125
    assert 1 / run.tokens_per_second_per_gpu == pytest.approx(1024 / float(chunk.tokens_per_second_per_gpu[0, 0]), rel=0.02)


def test_the_fullest_rank_sets_the_time_but_only_requests_count() -> None:
    # One request on eight attention ranks: seven are idle, and the job's tokens are one answer's.
    work, layout = Workload(input_tokens=1024, output_tokens=128), Layout(dpa=8, ep=8)
    run = offline_throughput(load_model("DeepSeek-R1"), layout, requests=1, workload=work)
    assert run.tokens_per_second_per_gpu == pytest.approx(128 / run.seconds / 8)
    full = offline_throughput(load_model("DeepSeek-R1"), layout, requests=8, workload=work)
    assert full.seconds == run.seconds


@pytest.mark.parametrize(("model", "layout"), [("Qwen3-30B-A3B", "dpa=2,ep=2"), ("Llama-3.1-8B", "tpa=1,tpf=1")])
def test_many_requests_reach_the_steady_state(model: str, layout: str) -> None:
    # An endless queue keeps the replica full (here a pass has room for every prompt that may start): equation (3) of
    # aggregated serving at the same concurrency.
    design, where = load_model(model), Layout.parse(layout)
    workload = Workload(input_tokens=1024, output_tokens=1024)
    run = offline_throughput(design, where, requests=60_000, workload=workload)
    setup = ServingSetup(
        workload=workload, layouts=LayoutBatch.from_layouts([where]), mode="aggregated",
        concurrency=(float(run.capacity * where.dpa),), usable_fraction=0.9,
    )  # fmt: skip
    steady = float(frontier(design, setup).points.tokens_per_second_per_gpu[-1])
    assert run.tokens_per_second_per_gpu == pytest.approx(steady, rel=0.1)
    assert run.mean_running == pytest.approx(run.capacity, rel=0.1)
    few = offline_throughput(design, where, requests=8, workload=workload)
    assert few.tokens_per_second_per_gpu < 0.5 * run.tokens_per_second_per_gpu


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"requests": 0}, "requests"), ({"requests": 10**400}, "requests"), ({"requests": 1.5}, "requests"),
        ({"max_tokens": 0}, "max_tokens"), ({"layout": Layout(tpa=1, tpf=1, pp=2)}, "pp"),
        ({"workload": Workload(input_tokens=1 << 26)}, "fits"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(change: dict[str, Any], word: str) -> None:
    given: dict[str, Any] = {"layout": Layout(tpa=1, tpf=1), "requests": 10, "workload": Workload()} | change
    with pytest.raises(InvalidValueError, match=word):
        offline_throughput(QWEN, given.pop("layout"), **given)


def test_a_figure_knows_its_procedure() -> None:
    found = protocol_of("po-q30-b200-1024-8192")
    assert found is not None
    assert found.requests[1024, 8192] == 1500
    assert protocol_of("vllm-gb200-decode") is None
