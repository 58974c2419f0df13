"""One search problem: which designs may be chosen, how they are priced, what is maximised."""

from __future__ import annotations

import copyreg
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.budget import Budget
from ..constraints.equal_quality import equal_quality
from ..constraints.rules import Rules
from ..constraints.space import DesignSpace
from ..costmodel import Architecture, InvalidValueError
from ..costmodel.checks import number
from ..costmodel.errors import shown
from .objectives import Objective, default_objectives
from .project import Projector
from .space import DesignTable, build_table

if TYPE_CHECKING:
    from ..costmodel.serving import ServingSetup

FloatArray = NDArray[np.float64]
_ROWS = 20_000  # designs judged at a time
LAYOUT_MODES = ("sweep", "suggest")
TRAIN_TOKENS = 15e12  # default D of the quality laws (study key train_tokens)


def read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """A read-only view; what a pickled one is rebuilt with."""
    return MappingProxyType(values)


# Read-only mappings of spaces, rules and profiles travel to worker processes as the dicts they wrap.
copyreg.pickle(MappingProxyType, lambda proxy: (read_only, (dict(proxy),)))


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """Everything that decides a search's answer, besides seed and options; immutable and picklable.

    Attributes:
        spaces: families of designs (attention kind, formats, ...).
        budget: parameters a design may have.
        rules: alignment, quality guard, bands.
        setup: workload, formats, kernel profile, layouts, concurrencies; each space's own formats replace the setup's.
        reference: the model the results are compared with.
        objectives: one or more; larger is better.
        layout_mode: ``sweep`` (a design is priced over all layouts and concurrencies) or ``suggest`` (layout and
            concurrency are parameters of the search).
        train_tokens: D of the quality laws.

    Raises:
        InvalidValueError: no objective, two of one name, or an unknown layout mode.
    """

    spaces: tuple[DesignSpace, ...]
    budget: Budget
    rules: Rules
    setup: ServingSetup
    reference: Architecture
    objectives: tuple[Objective, ...] = field(default_factory=default_objectives)
    layout_mode: str = "sweep"
    train_tokens: float = TRAIN_TOKENS

    def __post_init__(self) -> None:
        if not isinstance(self.layout_mode, str) or self.layout_mode not in LAYOUT_MODES:
            raise InvalidValueError(f"layout_mode must be one of {', '.join(LAYOUT_MODES)}, got {self.layout_mode!r:.40}")
        number("train_tokens", self.train_tokens, "above 0", above=True)
        for what, values, kind in (("spaces", self.spaces, DesignSpace), ("objectives", self.objectives, Objective)):
            if not isinstance(values, tuple | list) or not all(isinstance(v, kind) for v in values):
                raise InvalidValueError(f"{what} must be a tuple of {kind.__name__}, got {shown(values)}")
        names = [o.name for o in self.objectives]
        if not names or len(set(names)) != len(names):
            raise InvalidValueError(f"a search needs one or more objectives of different names, got {names}")

    @cached_property
    def table(self) -> DesignTable:
        """Every legal design (built when first needed; not pickled).

        Raises:
            NothingLegalError: no design meets the constraints.
        """
        return build_table(self.spaces, self.budget, self.rules)

    @cached_property
    def projector(self) -> Projector:
        """Nearest-design queries on :attr:`table`."""
        return Projector(self.table)

    @cached_property
    def equal_quality_ids(self) -> NDArray[np.int64]:
        """Table rows at equal quality with the reference model, ascending."""
        found = []
        for start in range(0, len(self.table), _ROWS):
            block = self.table.candidates(np.arange(start, min(start + _ROWS, len(self.table))))
            for positions, _, batch in block.batches(self.spaces):
                found.append(block.ids[positions[equal_quality(batch, self.reference, train_tokens=self.train_tokens)]])
        return np.sort(np.concatenate(found))

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """User rates the objectives read, ascending, tokens/s/user."""
        return tuple(sorted({rate for objective in self.objectives for rate in objective.rates}))

    @cached_property
    def reference_values(self) -> FloatArray:
        """Objectives of the reference model in the same cost model with its own best layouts, ``(K,)``; NaN = not priced."""
        from .evaluate import price_reference

        return price_reference(self)

    @cached_property
    def scales(self) -> FloatArray:
        """Unit of each objective in the hypervolume, ``(K,)``."""
        values = np.nan_to_num(self.reference_values)
        return np.array([o.scale(float(v)) for o, v in zip(self.objectives, values, strict=True)])

    @cached_property
    def reference_point(self) -> FloatArray:
        """Reference point of the hypervolume, in units of :attr:`scales`, ``(K,)``."""
        return np.array([o.reference_point for o in self.objectives])

    def __getstate__(self) -> dict[str, Any]:
        """Fields only: caches are rebuilt where they are needed."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
