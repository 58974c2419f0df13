"""Coefficients of the quality laws as data, their fit ranges and caveats, and a user's own laws from TOML."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..costmodel.architecture import Architecture
from ..costmodel.errors import InvalidValueError, UnknownKeyError, check_keys, did_you_mean
from ..costmodel.hardware import read_toml


@dataclass(frozen=True, slots=True)
class ShapeLaw:
    """g(w, l) = a/w^alpha + b/l^beta. Gemstones, arXiv 2502.06857; status: fitted (dense, 48M-2B, w 256-3072, l 3-80)."""

    a: float = 4.271695
    alpha: float = 0.244691
    b: float = 0.924870
    beta: float = 0.387152
    min_layers: float = 2.0


@dataclass(frozen=True, slots=True)
class DenseLaw:
    """irreducible + a/N^alpha + b/D^beta. Besiroglu et al. 2024, arXiv 2404.10102; status: fitted."""

    irreducible: float = 1.8172
    a: float = 482.01
    alpha: float = 0.3478
    b: float = 2085.43
    beta: float = 0.3658


@dataclass(frozen=True, slots=True)
class ZhaoLaw:
    """MoE law in (N, Na, D, G, S). Zhao et al. 2025, arXiv 2509.23678; status: fitted (N 0.13-3.4B, validated to 9B).

    (g_linear·G + g_inverse/G + s_square·S² + s_linear·S)·(N^−alpha + active_weight·Na^−alpha + share_weight·Na/N)
    + total·N^−alpha + tokens·D^−beta + active·Na^−alpha + irreducible.
    """

    g_linear: float = 0.1577
    g_inverse: float = 7.2446
    s_square: float = 5.1395
    s_linear: float = -3.2363
    active_weight: float = 0.0013
    share_weight: float = 0.0450
    total: float = 38.051
    tokens: float = 27129.05
    beta: float = 0.4694
    active: float = 31.096
    irreducible: float = 1.8182
    alpha: float = 0.2383


@dataclass(frozen=True, slots=True)
class JointLaw:
    """Dense and MoE in one. Ludziejewski et al. 2025, arXiv 2502.05172; status: fitted."""

    a: float = 35.91
    delta: float = -0.2285
    alpha: float = -0.1889
    gamma: float = 0.0098
    b: float = 35.98
    omega: float = 0.5529
    beta: float = -0.1775
    zeta: float = -0.0259
    irreducible: float = 1.3637
    e_start: float = 2.07
    e_max: float = 290.45


SHAPE, DENSE, ZHAO, JOINT = ShapeLaw(), DenseLaw(), ZhaoLaw(), JointLaw()
_FORMS: dict[str, type[DenseLaw | ZhaoLaw | JointLaw]] = {"dense": DenseLaw, "zhao": ZhaoLaw, "joint": JointLaw}


@dataclass(frozen=True, slots=True)
class FitRange:
    """Where a law was fitted: the largest model, and what it was fitted on."""

    title: str
    max_params: float
    text: str
    source: str


FIT_RANGES: dict[str, FitRange] = {
    "dense": FitRange("dense law (Besiroglu et al.)", 16e9, "dense models up to 16B parameters", "arXiv 2404.10102"),
    "zhao": FitRange("MoE law (Zhao et al.)", 9e9, "MoE of 0.13-3.4B total parameters, validated to 9B", "arXiv 2509.23678"),
    "joint": FitRange("joint law (Ludziejewski et al.)", 5e9, "dense and MoE models up to 5B parameters", "arXiv 2502.05172"),
    "shape": FitRange("shape law (Gemstones)", 2e9, "dense models of 48M-2B, width 256-3072, 3-80 layers", "arXiv 2502.06857"),
}
CAVEATS: tuple[str, ...] = (
    "The laws were fitted on models below 3-10B parameters; at 100B-1T they are extrapolated 30-300x: ranking and order of "
    "magnitude only.",
    "The best width-to-depth ratio is soft: eight published fits put it between 39 and 112 at 70B; the penalty of very wide "
    "shapes is good to a factor of two.",
    "The two MoE laws disagree about sparsity (671B, active share 0.30 to 0.03: +0.023 against +0.095 nats): both are shown.",
    "Loss is not reasoning: few layers and extreme sparsity are probably worse than Q says.",
    "No published term exists for KV heads, head size, MLA ranks, hybrid attention or FP4: those are held to the bands of "
    "real models.",
    "The shape penalty comes from dense models; applying it to the backbone of a MoE is this project's assumption, and so is "
    "adding it to a size law.",
)


def named_law(name: str) -> DenseLaw | ZhaoLaw | JointLaw:
    """Return the published law called ``name``.

    Raises:
        UnknownKeyError: no such law.
    """
    laws: dict[str, DenseLaw | ZhaoLaw | JointLaw] = {"dense": DENSE, "zhao": ZHAO, "joint": JOINT}
    if name not in laws:
        raise UnknownKeyError(f"unknown quality law '{name[:60]}'{did_you_mean(name, [*laws, 'default'])}")
    return laws[name]


def parse_law(table: dict[str, Any], where: str) -> DenseLaw | ZhaoLaw | JointLaw:
    """A law with a user's own coefficients: ``form = "dense" | "zhao" | "joint"``, ``source`` and any coefficients that differ.

    Raises:
        InvalidValueError: an unknown form or key, a number that is not finite, or no source.
    """
    form = table.get("form")
    if form not in _FORMS:
        raise InvalidValueError(f"{where}: form must be one of {', '.join(_FORMS)}, got {form!r:.40}")
    names = [f.name for f in fields(_FORMS[form])]
    check_keys(table, ["form", "source", *names], where, required=["source"])
    if not isinstance(table["source"], str) or not table["source"].strip():
        raise InvalidValueError(f"{where}: source must name where the coefficients come from")
    values: dict[str, float] = {}
    for name in names:
        if name in table:
            value = table[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidValueError(f"{where}: {name} must be a finite number, got {value!r:.40}")
            values[name] = float(value)
    return _FORMS[form](**values)


def load_law(path: str | Path) -> DenseLaw | ZhaoLaw | JointLaw:
    """Read a law from a TOML file (see :func:`parse_law`)."""
    return parse_law(read_toml(Path(path)), str(path))


def fit_warnings(design: Architecture) -> list[str]:
    """Plain warnings where a design lies beyond the range its quality laws were fitted on (empty inside)."""
    found = []
    size_laws = ("zhao", "joint") if design.num_experts else ("dense", "joint")
    for name in size_laws:
        law = FIT_RANGES[name]
        if design.total_params > law.max_params:
            found.append(
                f"{law.title}: fitted on {law.text} ({law.source}); {design.total_params / 1e9:.3g}B is "
                f"{design.total_params / law.max_params:.2g}x beyond it"
            )
    shape = FIT_RANGES["shape"]
    if design.hidden_size > 3072 or design.hidden_size < 256 or not 3 <= design.num_hidden_layers <= 80:
        found.append(
            f"{shape.title}: fitted on {shape.text} ({shape.source}); got width {design.hidden_size}, "
            f"{design.num_hidden_layers} layers"
        )
    return found
