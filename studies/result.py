"""A study's result: architectures first, plain values inside, written as whole files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..costmodel import Architecture, InvalidValueError, UnknownKeyError
from ..costmodel.architecture import INTEGER_FIELDS
from ..costmodel.errors import did_you_mean
from .files import OutputError, to_csv, write_folder, write_whole
from .output import to_json
from .result_file import FORMAT_VERSION, ResultError, read_result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMAT_VERSION", "Result", "ResultError"]
_LAYOUT = ("tpa", "kvp", "dpa", "tpf", "ep", "pp", "gpus")
_FIGURES = (
    "total_params",
    "active_params",
    "active_params_with_embedding",
    "tokens_per_second_per_gpu",
    "tokens_per_second_per_user",
    "concurrency",
    "ttft_seconds",
    "itl_seconds",
    "delta_loss_shape",
    "frontier_area",
    "kv_bytes_per_token",
)
_DIMENSIONS = (*INTEGER_FIELDS, "tie_word_embeddings", "attention")
RANKED_COLUMNS = (
    "rank",
    "architecture_id",
    "equal_quality",
    "dominated",
    "family",
    *_DIMENSIONS,
    *_FIGURES,
    "frontier_area_over_reference",
    "predicted_loss",
    "twins",
    "within_model_error_of",
    "gives_up",
)
PARETO_COLUMNS = (
    "architecture_id",
    "tokens_per_second_per_user",
    "tokens_per_second_per_gpu",
    "concurrency",
    "itl_seconds",
    "ttft_seconds",
    *_LAYOUT,
    "bound",
    "front",
)
# what `run --json` prints, in order; everything else of result.json stays in the file
JSON_KEYS = (
    "study",
    "seed",
    "trials",
    "legal_trials",
    "legal_architectures",
    "hypervolume",
    "architectures",
    "pareto",
    "reference",
    "certificate",
)


class Result:
    """What a study found.

    ``data`` holds the contents of ``result.json``: see :func:`shapefront.studies.rank.rank` and the keys of
    :data:`JSON_KEYS`.
    """

    def __init__(self, data: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> None:
        self.data = dict(data)
        self.spec = dict(spec or self.data.get("spec", {}))
        self.notes: list[str] = []  # what could not be written, and why

    @property
    def architectures(self) -> list[dict[str, Any]]:
        """Designs of both fronts, ranked: equal quality first, then by frontier area."""
        return list(self.data["architectures"])

    @property
    def reference(self) -> dict[str, Any]:
        """The reference model in the same terms."""
        return dict(self.data["reference"])

    @property
    def interrupted(self) -> bool:
        """Stopped by the user before its end."""
        return bool(self.data.get("interrupted"))

    @property
    def longest_request(self) -> int:
        """Prompt and answer of the study's workload, tokens."""
        work = self.spec.get("workload", {})
        return sum(int(work.get(key) or 0) for key in ("input_tokens", "output_tokens"))

    @property
    def ranked_rows(self) -> list[dict[str, Any]]:
        """One row per architecture, near-twins grouped under the best of them."""
        return [row for row in self.architectures if not row.get("twin_of")]

    @property
    def ranked(self) -> pd.DataFrame:
        """Rows of ranked.csv without the reference model: :attr:`ranked_rows`, then the runners-up (``dominated``)."""
        import pandas as pd

        rows = [*self.ranked_rows, *self.data.get("runners_up", [])]
        return pd.DataFrame([self._ranked_row(row) for row in rows], columns=self._ranked_columns())

    @property
    def pareto(self) -> pd.DataFrame:
        """Operating points of both fronts with the columns of pareto.csv; ``front`` is ``equal_quality`` or ``open``."""
        import pandas as pd

        return pd.DataFrame(self._operating_points(), columns=list(PARETO_COLUMNS))

    def row(self, architecture_id: str) -> dict[str, Any]:
        """One architecture (or ``reference``) by id.

        Raises:
            UnknownKeyError: no such id.
        """
        rows: dict[str, dict[str, Any]] = {
            row["architecture_id"]: row for row in [*self.architectures, *self.data.get("runners_up", []), self.reference]
        }
        if architecture_id not in rows:
            raise UnknownKeyError(
                f"no architecture '{str(architecture_id)[:40]}' in this result{did_you_mean(str(architecture_id), rows)}"
            )
        return rows[architecture_id]

    def architecture(self, architecture_id: str) -> Architecture:
        """The design itself; statics that a study does not search (biases, norms) are the reference model's."""
        row = self.row(architecture_id)
        kind = self.data.get("kinds", {}).get(row.get("family", "reference"), self.data.get("kinds", {}).get("reference", {}))
        values: dict[str, Any] = {name: int(row[name]) for name in INTEGER_FIELDS if name in row}
        return Architecture(name=f"{self.data['study']}-{architecture_id}", **values, **kind)

    def frontier(self, architecture_id: str) -> pd.DataFrame:
        """Operating points of one architecture (or ``reference``), by rising tokens/s/user."""
        import pandas as pd

        return pd.DataFrame(self.row(architecture_id)["frontier"])

    def to_json(self) -> dict[str, Any]:
        """What ``run --json`` prints."""
        return {key: self.data.get(key) for key in JSON_KEYS}

    def _ranked_columns(self) -> list[str]:
        rates = [point["rate"] for point in self.reference["at_rates"]]
        return [
            *RANKED_COLUMNS,
            *(f"tokens_per_second_per_gpu_at_{rate:g}" for rate in rates),
            *(f"objective.{n}" for n in self.data["objectives"]),
        ]

    @staticmethod
    def _ranked_row(row: Mapping[str, Any]) -> dict[str, Any]:
        at = {f"tokens_per_second_per_gpu_at_{p['rate']:g}": p["tokens_per_second_per_gpu"] for p in row["at_rates"]}
        return {**row, **at, **{f"objective.{name}": value for name, value in row["objectives"].items()}}

    def ranked_csv(self) -> str:
        """Text of ranked.csv: the fronts, then the runners-up (``dominated``); the reference model last, rank empty."""
        reference = {**self.reference, "rank": None, "frontier_area_over_reference": 1.0}
        rows = [self._ranked_row(row) for row in [*self.ranked_rows, *self.data.get("runners_up", []), reference]]
        return to_csv(self._ranked_columns(), rows)

    def pareto_csv(self) -> str:
        """Text of pareto.csv: each equal-quality design's own frontier, then the open front's envelope."""
        return to_csv(PARETO_COLUMNS, self._operating_points())

    def _operating_points(self) -> list[dict[str, Any]]:
        return [{"front": "open", **point} for point in self.data["pareto"]]  # a first result.json had the envelope alone

    def write(self, folder: Path, *, study_toml: str = "") -> list[str]:
        """Write every output but the log into ``folder``; result.json last.

        Returns:
            Notes for the user: what could not be written and why (no picture without matplotlib, a design that no
            Hugging Face family fits).

        Raises:
            OutputError: the folder cannot be written.
        """
        notes: list[str] = []
        if study_toml:
            write_whole(folder / "study.toml", study_toml)
        write_whole(folder / "pareto.csv", self.pareto_csv())
        write_whole(folder / "ranked.csv", self.ranked_csv())
        write_folder(folder / "configs", lambda aside: notes.extend(self._write_configs(aside)))
        notes += self._write_picture(folder / "frontier.png")
        write_whole(folder / "result.json", to_json(self.data) + "\n")
        return notes

    def export(self, folder: str | Path) -> Path:
        """Write every output into ``folder`` and return it."""
        from .files import prepare_results
        from .spec_file import to_toml

        path = Path(folder)
        prepare_results(path)
        self.write(path, study_toml=to_toml(self.spec) if self.spec else "")
        return path

    def _write_configs(self, folder: Path) -> list[str]:
        from .exporters.huggingface import write_config

        notes = []
        for row in self.ranked_rows:
            place = folder / f"rank-{row['rank']:02d}"
            place.mkdir()
            design = self.architecture(row["architecture_id"])
            (place / "architecture.json").write_text(to_json(design.to_dict()) + "\n")
            try:
                write_config(design, place, tokens=self.longest_request)
            except InvalidValueError as error:
                notes.append(f"configs/{place.name}: no config.json ({error})")
        return notes

    def _write_picture(self, path: Path) -> list[str]:
        try:
            return self._draw(path)
        except OutputError:
            raise
        except (ImportError, InvalidValueError) as error:
            return [f"frontier.png: not drawn ({error}); it needs the 'plot' extra: pip install 'shapefront[plot]'"]

    def _draw(self, path: Path) -> list[str]:
        import io

        picture = io.BytesIO()
        plot = self.plot()
        plot.figure.savefig(picture, format="png", dpi=160, metadata={"Software": None})
        write_whole(path, picture.getvalue())
        return []

    def plot(self, *, designs: int = 5, more: Sequence[Any] = ()) -> Any:
        """The frontiers of the reference and the best designs of both fronts (a :class:`.plots.style.Plot`).

        Args:
            designs: designs shown.
            more: further curves (:class:`.plots.frontier.Curve`), e.g. of known models.

        Raises:
            InvalidValueError: matplotlib is not installed.
        """
        import numpy as np

        from .plots.frontier import Curve, draw_frontier

        curves = []
        wanted = [
            *self.ranked_rows[:designs],
            *(row for row in self.ranked_rows[designs:] if row["rank"] and "open" in row["fronts"]),
        ][: designs + 1]
        for row in [*wanted, self.reference]:
            points = row["frontier"]
            if points:
                role = "reference" if row["architecture_id"] == "reference" else "design" if row["equal_quality"] else "open"
                name = str(row.get("name") or row["architecture_id"])
                users, gpus = (np.array([p[f"tokens_per_second_per_{axis}"] for p in points]) for axis in ("user", "gpu"))
                curves.append(Curve(name, users, gpus, role))
        area = self.data.get("area") or {}
        settings = self.data.get("settings") or {}
        return draw_frontier(
            [*curves, *more],
            heading=f"{self.data['study']}: throughput against interactivity",
            note=f"profile {settings.get('profile', '')}, {settings.get('workload_text', '')}",
            goals=tuple(self.data["rates"]),
            area=(area["low"], area["high"]) if area else None,
            gain=_gain(wanted),
        )

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result folder or its result.json.

        Raises:
            ResultError: missing, damaged, of a newer version, or not a result.
        """
        return cls(read_result(Path(path)))


def _gain(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Frontier area that the first equal-quality design gains over the reference."""
    ratios = [row["frontier_area_over_reference"] for row in rows if row["equal_quality"]]
    return ratios[0] - 1 if ratios and ratios[0] is not None else None
