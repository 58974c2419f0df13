"""The concurrency grid of a built-in study reaches what memory holds: a lower top would cut wide expert parallelism."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.studies import Study
from shapefront.studies.problem import build_problem


@pytest.mark.parametrize("name", ["dense-8b", "dense-70b", "moe-30b-a3b", "moe-120b", "moe-671b-a37b"])
def test_the_grid_reaches_the_memory_cap_of_every_legal_design(name: str) -> None:
    problem = build_problem(Study.load(name).spec)
    table = problem.table
    for _, _, batch in table.candidates(np.arange(len(table.columns))).batches(problem.spaces):
        held = problem.setup.limits(batch, problem.rules.layouts_allowed(batch, problem.setup.layouts))
        assert held.max() <= problem.setup.concurrency[-1]
