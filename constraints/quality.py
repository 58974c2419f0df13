"""The accuracy guard: three published size laws and a published shape penalty, in nats per token (lower is better).

``Q = L_size + ΔL_shape``. Each part is published; **adding them is this project's choice**. Report only differences
to a named reference at the same budget, and never subtract values of two different laws.

Sources (status of every coefficient: fitted, by the paper named):

* dense size law: Besiroglu et al. 2024, arXiv 2404.10102 (refit of Chinchilla, eq. 1 form).
* MoE size law: Zhao et al. 2025, arXiv 2509.23678; fitted on N 0.13-3.4B, validated to 9B.
* dense and MoE in one law: Ludziejewski et al. 2025, arXiv 2502.05172.
* shape: Gemstones, McLeish et al., NeurIPS 2025, arXiv 2502.06857; fitted on w 256-3072, l 3-80, 48M-2B, dense models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..costmodel.architecture import Architecture
from ..costmodel.batch import ArchitectureBatch
from ..costmodel.checks import LARGEST, number, numbers
from ..costmodel.errors import InvalidValueError, shown
from .laws import DENSE, FIT_RANGES, JOINT, SHAPE, ZHAO, DenseLaw, JointLaw, ShapeLaw, ZhaoLaw, named_law

FloatArray = NDArray[np.float64]
SizeLaw = Callable[[ArchitectureBatch, float], FloatArray]
Law = str | DenseLaw | ZhaoLaw | JointLaw | SizeLaw

DEFAULT_TRAIN_TOKENS = 15e12  # study key train_tokens; printed beside Q (status: the project's default)
SOFT_SHAPE_LIMIT = 0.010  # ΔL_shape, nats/token: p95 of the real models
HARD_SHAPE_LIMIT = 0.016  # ΔL_shape, nats/token: the largest among the real models


def _sizes(**values: ArrayLike) -> list[FloatArray]:
    """Named arguments as float arrays of positive numbers.

    Raises:
        InvalidValueError: one is not.
    """
    return [numbers(name, value, "above 0", above=True, high=1e300) for name, value in values.items()]


def shape_loss(hidden_size: ArrayLike, num_hidden_layers: ArrayLike, law: ShapeLaw = SHAPE) -> FloatArray:
    """Shape part of the Gemstones law, g(w, l) = a/w^α + b/l^β, nats/token.

    Args:
        hidden_size: w, shape ``(A,)`` or scalar.
        num_hidden_layers: l, broadcastable.
        law: coefficients.
    """
    w, depth = _sizes(hidden_size=hidden_size, num_hidden_layers=num_hidden_layers)
    return np.asarray(law.a / w**law.alpha + law.b / depth**law.beta, dtype=np.float64)


def optimal_depth(hidden_size: ArrayLike, num_hidden_layers: ArrayLike, law: ShapeLaw = SHAPE) -> FloatArray:
    """Depth that minimises g at the same l·w² (a real number, at least ``law.min_layers``).

    With n = l·w² fixed, w = (n/l)^½ and dg/dl = 0 gives l* = [(2bβ)/(aα) · n^(α/2)]^(1/(β + α/2)); g is a sum of a rising
    and a falling power of l, so it has one minimum and clipping l* at the least depth stays optimal.

    Args:
        hidden_size: w, shape ``(A,)`` or scalar.
        num_hidden_layers: l, broadcastable.
        law: coefficients.
    """
    w, depth = _sizes(hidden_size=hidden_size, num_hidden_layers=num_hidden_layers)
    n = depth * w**2
    ratio = 2 * law.b * law.beta / (law.a * law.alpha)
    best = (ratio * n ** (law.alpha / 2)) ** (1 / (law.beta + law.alpha / 2))
    return np.asarray(np.maximum(best, law.min_layers), dtype=np.float64)


def delta_loss_shape(hidden_size: ArrayLike, num_hidden_layers: ArrayLike, law: ShapeLaw = SHAPE) -> FloatArray:
    """Penalty of a width-depth split against the best split of the same l·w²: ΔL_shape = g(w, l) − min g, nats/token.

    Args:
        hidden_size: w, shape ``(A,)`` or scalar.
        num_hidden_layers: l, broadcastable.
        law: coefficients.

    Returns:
        At least 0; 0 at :func:`optimal_depth`.
    """
    w, depth = _sizes(hidden_size=hidden_size, num_hidden_layers=num_hidden_layers)
    best = optimal_depth(w, depth, law)
    width = np.sqrt(depth * w**2 / best)
    # a model shallower than the least depth of the law is compared with that depth and may fall below it: clip at 0
    return np.asarray(np.maximum(shape_loss(w, depth, law) - shape_loss(width, best, law), 0.0), dtype=np.float64)


def size_loss_dense(params: ArrayLike, train_tokens: ArrayLike, law: DenseLaw = DENSE) -> FloatArray:
    """Dense size law, E + A/N^α + B/D^β, nats/token.

    Args:
        params: N.
        train_tokens: D.
        law: coefficients.
    """
    n, d = _sizes(params=params, train_tokens=train_tokens)
    return np.asarray(law.irreducible + law.a / n**law.alpha + law.b / d**law.beta, dtype=np.float64)


def size_loss_zhao(
    params: ArrayLike,
    active_params: ArrayLike,
    train_tokens: ArrayLike,
    granularity: ArrayLike,
    shared_share: ArrayLike,
    law: ZhaoLaw = ZHAO,
) -> FloatArray:
    """MoE size law of Zhao et al., nats/token.

    (e·G + f/G + m·S² + n·S)·(N^−α + k·Na^−α + h·Na/N) + a·N^−α + b·D^−β + c·Na^−α + E.

    Args:
        params: N, total.
        active_params: Na.
        train_tokens: D.
        granularity: G = top-k + shared experts.
        shared_share: S = shared/G.
        law: coefficients.
    """
    n, na, d, g = _sizes(params=params, active_params=active_params, train_tokens=train_tokens, granularity=granularity)
    s = numbers("shared_share", shared_share, "from 0 to 1", high=1.0)
    structure = law.g_linear * g + law.g_inverse / g + law.s_square * s**2 + law.s_linear * s
    scale = n**-law.alpha + law.active_weight * na**-law.alpha + law.share_weight * na / n
    return np.asarray(
        structure * scale + law.total * n**-law.alpha + law.tokens * d**-law.beta + law.active * na**-law.alpha + law.irreducible,
        dtype=np.float64,
    )


def size_loss_joint(
    active_params: ArrayLike, train_tokens: ArrayLike, experts: ArrayLike = 1.0, law: JointLaw = JOINT
) -> FloatArray:
    """One law for dense and MoE (Ludziejewski et al.), nats/token.

    a·Ê^δ·Na^(α + γ·ln Ê) + b·Ê^ω·D^(β + ζ·ln Ê) + c, with 1/Ê = 1/(E − 1 + 1/(1/E_s − 1/E_m)) + 1/E_m.

    Args:
        active_params: Na.
        train_tokens: D.
        experts: E; 1 is dense; fine-grained experts: (N − A)/(Na − A), A = parameters every token uses.
        law: coefficients.
    """
    na, d = _sizes(active_params=active_params, train_tokens=train_tokens)
    e = numbers("experts", experts, "at least 1", low=1.0)
    effective = 1 / (1 / (e - 1 + 1 / (1 / law.e_start - 1 / law.e_max)) + 1 / law.e_max)
    log_e = np.log(effective)
    return np.asarray(
        law.a * effective**law.delta * na ** (law.alpha + law.gamma * log_e)
        + law.b * effective**law.omega * d ** (law.beta + law.zeta * log_e)
        + law.irreducible,
        dtype=np.float64,
    )


def check_law(law: Law) -> None:
    """Refuse what is no size law.

    Raises:
        InvalidValueError: neither a known name, nor a law's coefficients, nor a function.
    """
    if isinstance(law, str):
        if law != "default":
            named_law(law)
    elif not isinstance(law, DenseLaw | ZhaoLaw | JointLaw) and not callable(law):
        raise InvalidValueError(f"law must be a name, a law's coefficients or a function, got {shown(law)}")


def _as_batch(designs: ArchitectureBatch | Architecture) -> ArchitectureBatch:
    if isinstance(designs, Architecture):
        return ArchitectureBatch.from_architectures([designs])
    if not isinstance(designs, ArchitectureBatch):
        raise InvalidValueError(f"designs must be an Architecture or an ArchitectureBatch, got {shown(designs)}")
    return designs


def granularity(designs: ArchitectureBatch | Architecture) -> tuple[FloatArray, FloatArray]:
    """G and S of the MoE law: G = k + shared, S = shared/G, shared experts counted in widths of a routed expert.

    Returns:
        Two arrays of shape ``(A,)``; for dense designs G = 1, S = 0.
    """
    batch = _as_batch(designs)
    width = np.maximum(batch.moe_intermediate_size, 1)
    shared = batch.n_shared_experts * batch.shared_expert_intermediate_size / width
    g = np.where(batch.num_experts > 0, batch.num_experts_per_tok + shared, 1.0)
    return g, np.where(batch.num_experts > 0, shared, 0.0) / g


def joint_experts(designs: ArchitectureBatch | Architecture) -> FloatArray:
    """E of the joint law, (N − A)/(Na − A): stored over used routed-expert parameters, which is E/k; 1 for dense designs."""
    batch = _as_batch(designs)
    return np.asarray(
        np.where(batch.num_experts > 0, batch.num_experts / np.maximum(batch.num_experts_per_tok, 1), 1.0), dtype=np.float64
    )


def size_loss(
    designs: ArchitectureBatch | Architecture, train_tokens: float = DEFAULT_TRAIN_TOKENS, law: Law = "default"
) -> FloatArray:
    """L_size of each design, nats/token, shape ``(A,)``.

    Args:
        designs: a batch or one architecture.
        train_tokens: D.
        law: ``"default"`` (dense law for dense designs, Zhao for MoE), ``"dense"``, ``"zhao"``, ``"joint"``, a law object with
            own coefficients (:func:`shapefront.constraints.laws.load_law`), or a callable ``(batch, train_tokens) -> (A,)``.

    N counts every stored weight; Na the matrices that multiply a token (LM head in, input look-up out).
    """
    batch, train_tokens = _as_batch(designs), number("train_tokens", train_tokens, "above 0", above=True)
    check_law(law)
    if isinstance(law, str):
        law = (ZHAO if batch.kind.moe else DENSE) if law == "default" else named_law(law)
    if isinstance(law, DenseLaw):
        return size_loss_dense(batch.total_params, train_tokens, law)
    if isinstance(law, JointLaw):
        return size_loss_joint(batch.active_params, train_tokens, joint_experts(batch), law)
    if isinstance(law, ZhaoLaw):
        g, s = granularity(batch)
        return size_loss_zhao(batch.total_params, batch.active_params, train_tokens, g, s, law)
    return np.broadcast_to(np.asarray(law(batch, train_tokens), dtype=np.float64), (len(batch),))


def predicted_loss(
    designs: ArchitectureBatch | Architecture,
    train_tokens: float = DEFAULT_TRAIN_TOKENS,
    law: Law = "default",
    shape: ShapeLaw = SHAPE,
) -> FloatArray:
    """Q = L_size + ΔL_shape of each design, nats/token, shape ``(A,)``; the sum is this project's choice, not a published law.

    Args:
        designs: a batch or one architecture.
        train_tokens: D.
        law: see :func:`size_loss`.
        shape: coefficients of the shape law.
    """
    batch = _as_batch(designs)
    return size_loss(batch, train_tokens, law) + delta_loss_shape(batch.hidden_size, batch.num_hidden_layers, shape)


@dataclass(frozen=True, slots=True)
class LawComparison:
    """What one size law (plus the shape penalty) says about a design beside a reference.

    Attributes:
        law: ``dense``, ``zhao`` or ``joint``.
        change: Q − Q_reference, nats/token.
        fitted_on: what the law was fitted on.
        source: where it was published.
        times_beyond: the larger model's total over the largest model of the fit; above 1 is an extrapolation.
    """

    law: str
    change: float
    fitted_on: str
    source: str
    times_beyond: float


def compare_laws(
    design: Architecture, reference: Architecture, train_tokens: float = DEFAULT_TRAIN_TOKENS
) -> tuple[LawComparison, ...]:
    """Every law that covers both designs, side by side, with the range it was fitted on.

    Values of different laws are never subtracted: each row is a difference within one law.

    Args:
        design: the design.
        reference: what it is compared with.
        train_tokens: D.
    """
    both_moe, neither = (all((d.num_experts > 0) == moe for d in (design, reference)) for moe in (True, False))
    names = (("zhao",) if both_moe else ("dense",) if neither else ()) + ("joint",)
    largest = max(design.total_params, reference.total_params)
    rows = []
    for name in names:
        fit = FIT_RANGES[name]
        change = float(predicted_loss(design, train_tokens, name)[0] - predicted_loss(reference, train_tokens, name)[0])
        rows.append(LawComparison(name, change, fit.text, fit.source, largest / fit.max_params))
    return tuple(rows)


def loss_above_reference(
    batch: ArchitectureBatch, reference: Architecture, train_tokens: float = DEFAULT_TRAIN_TOKENS, law: Law = "default"
) -> FloatArray:
    """Q − Q_reference of each design, nats/token, shape ``(A,)``; a reference of another class is compared under the joint law.

    Args:
        batch: the designs.
        reference: the model they are compared with.
        train_tokens: D.
        law: size law, the same for both (values of different laws are never subtracted).
    """
    if law == "default" and (reference.num_experts > 0) != batch.kind.moe:
        law = "joint"
    return predicted_loss(batch, train_tokens, law) - predicted_loss(reference, train_tokens, law)


def quality_violations(
    batch: ArchitectureBatch,
    *,
    max_delta_loss_shape: float = SOFT_SHAPE_LIMIT,
    reference: Architecture | None = None,
    max_loss_above_reference: float | None = None,
    train_tokens: float = DEFAULT_TRAIN_TOKENS,
    law: Law = "default",
) -> dict[str, FloatArray]:
    """The guard as dimensionless constraints, each ``(value − limit)/limit``-like and ≤ 0 when met, shape ``(A,)``.

    Args:
        batch: the designs.
        max_delta_loss_shape: limit of ΔL_shape, nats/token (> 0).
        reference: the study's reference model, for Q − Q_reference ≤ τ.
        max_loss_above_reference: τ, nats/token; None leaves this constraint out.
        train_tokens: D.
        law: size law; a reference of another class than the batch is compared under the joint law.
    """
    number("max_delta_loss_shape", max_delta_loss_shape, "above 0", above=True)
    if max_loss_above_reference is not None:
        number("max_loss_above_reference", max_loss_above_reference, "finite", low=-LARGEST)
    found: dict[str, FloatArray] = {
        "delta_loss_shape": delta_loss_shape(batch.hidden_size, batch.num_hidden_layers) / max_delta_loss_shape - 1.0
    }
    if reference is not None and max_loss_above_reference is not None:
        difference = loss_above_reference(batch, reference, train_tokens, law)
        found["loss_above_reference"] = (difference - max_loss_above_reference) / max(
            SOFT_SHAPE_LIMIT, abs(max_loss_above_reference)
        )
    return found
