"""One design in a study's terms: dimensions, figures, throughput at the study's rates, its frontier."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints.divisibility import layout_allowed
from ..constraints.quality import delta_loss_shape, predicted_loss
from ..costmodel import Architecture, ArchitectureBatch, InvalidValueError, TensorFormats
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.memory import kv_bytes_per_token
from ..costmodel.operating import step_seconds_at
from ..costmodel.serving import ServingSetup, frontier_area, price_points, throughput_at_rates
from ..costmodel.serving_frontier import frontier
from ..search.problem import SearchProblem
from ..search.space import Candidates
from .problem import area_rates
from .spec import StudySpec

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
MAX_REPORTED = 4  # rates of the objectives that are reported beside the study's own (an area has many)
DIMENSIONS = tuple(name for name in INTEGER_FIELDS if name != "num_sliding_window_layers")


def dimensions(architecture: Architecture) -> dict[str, Any]:
    """Dimensions by their stable names."""
    row: dict[str, Any] = {name: getattr(architecture, name) for name in DIMENSIONS}
    row["num_sliding_window_layers"] = architecture.num_sliding_window_layers
    row["tie_word_embeddings"] = architecture.tie_word_embeddings
    row["attention"] = architecture.attention
    return row


class Describer:
    """Prices and describes single designs in a study's terms."""

    def __init__(self, spec: StudySpec, problem: SearchProblem) -> None:
        self.spec, self.problem = spec, problem
        self.area_rates = area_rates(spec)
        self.rates = tuple(sorted({*spec.rates, *(problem.rates if len(problem.rates) <= MAX_REPORTED else ())}))

    @cached_property
    def reference(self) -> dict[str, Any]:
        """The reference model, described."""
        return self.describe(self.problem.reference, self.problem.setup.formats, reference=True)

    def areas(self, candidates: Candidates) -> FloatArray:
        """Frontier area of candidates, ``(n,)``."""
        found = np.zeros(len(candidates))
        for where, space, batch in candidates.batches(self.problem.spaces):
            setup = self.problem.setup.with_(formats=self.problem.spaces[space].formats)
            table = throughput_at_rates(batch, setup, list(self.area_rates), allowed=self.allowed(batch, reference=False))
            found[where] = frontier_area(table.tokens_per_second_per_gpu, np.array(self.area_rates), self.spec.area.axis)
        return found

    def allowed(self, batch: ArchitectureBatch, *, reference: bool) -> BoolArray:
        """Layouts a design may use; the reference model is held to divisibility alone."""
        if reference:
            return layout_allowed(batch, self.problem.setup.layouts, balanced_pipeline=self.problem.rules.balanced_pipeline)
        return self.problem.rules.layouts_allowed(batch, self.problem.setup.layouts)

    def describe(
        self, architecture: Architecture, formats: TensorFormats, *, reference: bool = False, curve: bool = True
    ) -> dict[str, Any]:
        """Dimensions, figures, throughput at the study's rates and (``curve``) the frontier of one design."""
        batch = ArchitectureBatch.from_architectures([architecture])
        setup = self.problem.setup.with_(formats=formats)
        allowed = self.allowed(batch, reference=reference)
        wanted = sorted({*self.rates, *self.area_rates})
        table = throughput_at_rates(batch, setup, wanted, allowed=allowed)
        throughput = dict(zip(wanted, table.tokens_per_second_per_gpu[0].tolist(), strict=True))
        points = []
        itl, _ = price_points(batch, setup)
        for rate in self.rates:
            at = wanted.index(rate)
            layout = int(table.layout_index[0, at])
            place = (
                setup.layouts.layout(layout).to_dict()
                if layout >= 0
                else dict.fromkeys(("tpa", "kvp", "dpa", "tpf", "ep", "pp", "gpus"))
            )
            points.append(
                {"rate": rate, **_point(throughput[rate], float(table.concurrency[0, at]), itl[:, [layout]], setup), **place}
            )
        area = float(
            frontier_area([throughput[rate] for rate in self.area_rates], np.array(self.area_rates), self.spec.area.axis)
        )
        first = points[0]
        return {
            **dimensions(architecture),
            "total_params": architecture.total_params,
            "active_params": architecture.active_params,
            "active_params_with_embedding": architecture.active_params_with_embedding,
            "tokens_per_second_per_gpu": first["tokens_per_second_per_gpu"],
            "tokens_per_second_per_user": first["tokens_per_second_per_user"],
            "concurrency": first["concurrency"],
            "itl_seconds": first["itl_seconds"],
            "ttft_seconds": None,
            "delta_loss_shape": float(delta_loss_shape(architecture.hidden_size, architecture.num_hidden_layers)),
            "predicted_loss": float(predicted_loss(batch, self.problem.train_tokens)[0]),
            "kv_bytes_per_token": float(kv_bytes_per_token(batch, formats)[0]),
            "frontier_area": area,
            "at_rates": points,
            "frontier": self._frontier(architecture, formats, allowed) if curve else [],
        }

    def _frontier(self, architecture: Architecture, formats: TensorFormats, allowed: BoolArray) -> list[dict[str, Any]]:
        try:
            return frontier(architecture, self.problem.setup.with_(formats=formats), allowed=allowed).rows()
        except InvalidValueError:
            return []  # no layout serves it


def _point(throughput: float, concurrency: float, itl: FloatArray, setup: ServingSetup) -> dict[str, float | None]:
    """Figures of one operating point; a layout that memory caps serves each user faster than the rate asked for."""
    seconds = (
        float(step_seconds_at(itl, np.array(setup.concurrency), np.array([[concurrency]]))[0, 0]) if throughput > 0 else None
    )
    return {
        "tokens_per_second_per_gpu": throughput,
        "tokens_per_second_per_user": 1 / seconds if seconds else 0.0,
        "concurrency": concurrency,
        "itl_seconds": seconds,
    }
