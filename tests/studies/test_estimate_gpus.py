"""``estimate --gpus``: counts that no layout of the model fits are named at once; a long list costs no more than its layouts."""

from __future__ import annotations

import json
import time

import pytest

from shapefront.studies.cli import main


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["estimate", *arguments])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_a_count_that_divides_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """1999 is a prime, no divisor of heads, experts or widths."""
    code, _, said = _run(capsys, "Qwen3-30B-A3B", "--gpus", "1999")
    assert code == 2 and "no layout of 1999 GPUs divides Qwen3-30B-A3B (num_attention_heads=32" in said


def test_only_layouts_that_divide_the_model_are_priced(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts that fit no layout change nothing but the time: primes beside 8; 600 counts cost about what their layouts do."""
    _, alone, _ = _run(capsys, "Qwen3-30B-A3B", "--gpus", "8", "--json")
    _, more, _ = _run(capsys, "Qwen3-30B-A3B", "--gpus", "8,11,13,17,1999", "--json")
    assert json.loads(alone) == json.loads(more)
    started = time.process_time()
    code, _, _ = _run(capsys, "Qwen3-30B-A3B", "--gpus", ",".join(map(str, range(1, 601))), "--json")
    assert code == 0 and time.process_time() - started < 3  # 0.3 s here; 5.7 s with every layout priced
