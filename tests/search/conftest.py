"""Problems shared by the tests of the search."""

from __future__ import annotations

import pytest

from shapefront.search.problem import SearchProblem
from tests.search.problems import make_dense, make_families


@pytest.fixture(scope="session")
def dense() -> SearchProblem:
    return make_dense()


@pytest.fixture(scope="session")
def families() -> SearchProblem:
    return make_families()
