"""Sections 3 to 5 of the paper as functions: the conditions of its theorems and their error bounds.

The theorems hold up to unspecified constants, which are arguments here (`Constants`). c₁ of Lemma 1 is 128 by its
proof, which uses Chebyshev's inequality twice, with 64 each; the conditions on α are therefore exact. The constant of
the bounds is set to 1, so they are orders of magnitude and not predictions; the proof of Theorem 1 gives all of its
constants (`theorem1_noise_of_proof`).

>>> s = Setting(clients=200, clusters=5, byzantine=0.05, share=0.19, samples=100, total=19_000, dim=20, trim=0.1,
...             separation=0.7, start=0.1, quantities=mixed_regression_quantities(20, noise_variance=0.2))
>>> theorem2_condition(s).holds, round(oracle_error(s), 4)
(False, 0.0325)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.spatial.distance import pdist
from scipy.special import ndtri

from coterie._src.data.synthetic import draw_labels, unit_bernoulli


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of the theorems. c1: of Lemma 1. bound: of the O(·) in both theorems. c3: of Appendix C.

    delta: the failure probability δ. epsilon: ε, by which contamination and trimming must stay below one half.
    """

    c1: float = 128.0
    bound: float = 1.0
    c3: float = 1.0
    delta: float = 0.1
    epsilon: float = 0.1


@dataclass(frozen=True)
class Quantities:
    """The analytic quantities of a problem (Assumptions 1 to 8).

    strong_convexity: λ_F. smoothness: L_F. loss_sd: η. gradient_sd: ν, of the whole gradient. skewness: S.
    sub_exponential: σ of Assumption 8. lipschitz: L_f = √Σ L_h². diameter: D of Θ. noise: the variance per coordinate
    of the estimate and per sample, which determines an oracle's error. regression: whether there are random features.
    """

    strong_convexity: float
    smoothness: float
    loss_sd: float
    gradient_sd: float
    skewness: float
    sub_exponential: float
    lipschitz: float
    diameter: float
    noise: float
    regression: bool = False


def mixed_regression_quantities(dim: int, noise_variance: float, distance: float = 0.0) -> Quantities:
    """For y = ⟨x, θ*⟩ + ε with x ~ N(0, I), f = (y − ⟨x, θ⟩)², at a distance ‖θ − θ*‖.

    F(θ) = ‖θ − θ*‖² + σ², so λ_F = L_F = 2; a residual is N(0, s²) with s² = ‖θ − θ*‖² + σ², so η² = 2 s⁴;
    ν² = 4((d + 1)‖θ − θ*‖² + dσ²); at θ* a partial derivative is −2xε, with absolute skewness (E|Z|³)² = 8/π.
    Gaussian features are unbounded; L_f = 2d is used, its mean order, which enters only under a logarithm.
    """
    spread = distance**2 + noise_variance
    return Quantities(
        2.0,
        2.0,
        math.sqrt(2.0) * spread,
        2.0 * math.sqrt((dim + 1) * distance**2 + dim * noise_variance),
        8.0 / math.pi,
        2.0 * math.sqrt(spread),
        2.0 * dim,
        2.0,
        noise_variance,
        regression=True,
    )


def gaussian_means_quantities(dim: int, noise_variance: float, distance: float = 0.0) -> Quantities:
    """For z ~ N(θ*, σ²I), f = ‖θ − z‖²: the Hessian is 2I, η² = 2dσ⁴ + 4σ²‖θ − θ*‖², ν² = 4dσ²."""
    return Quantities(
        2.0,
        2.0,
        math.sqrt(2.0 * dim * noise_variance**2 + 4.0 * noise_variance * distance**2),
        2.0 * math.sqrt(dim * noise_variance),
        math.sqrt(8.0 / math.pi),
        2.0 * math.sqrt(noise_variance),
        2.0 * math.sqrt(dim),
        2.0,
        noise_variance,
    )


def poisson_means_quantities(dim: int, distance: float = 0.0) -> Quantities:
    """For z^h ~ Poisson(λ^h) with half of the λ^h at √(2/d) and the others 0, f = ‖θ − z‖².

    ν² = 4 Σ λ^h; η² ≤ Σ (λ^h + 2(λ^h)²) + 4 max λ^h ‖θ − θ*‖² + 4‖λ‖‖θ − θ*‖; the absolute skewness is near its
    value for a rare event, 1/√λ.
    """
    rate = math.sqrt(2.0 / dim)
    active = dim / 2
    return Quantities(
        2.0,
        2.0,
        math.sqrt(active * (rate + 2 * rate**2) + 4 * rate * distance**2 + 4 * distance),
        2.0 * math.sqrt(active * rate),
        1.0 / math.sqrt(rate),
        2.0,
        2.0 * math.sqrt(dim),
        2.0,
        rate / 2,
    )


@dataclass(frozen=True)
class Setting:
    """The quantities of a federation that the theorems use.

    share: p, the smallest |S*_j|/m. samples: n_min. total: N, all honest samples. separation: Δ. start:
    max_j ‖θ_j⁽⁰⁾ − θ*_j‖.
    """

    clients: int
    clusters: int
    byzantine: float
    share: float
    samples: int
    total: int
    dim: int
    trim: float
    separation: float
    start: float
    quantities: Quantities
    constants: Constants = field(default_factory=Constants)


def smallest_share(clients: int, clusters: int, byzantine: float, shares: Sequence[float] | None = None) -> float:
    """p = min_j |S*_j|/m when the honest clients are split as in `coterie.data`.

    >>> smallest_share(200, 5, 0.05)
    0.19
    """
    labels = draw_labels(clients, clusters, byzantine, shares)
    return min(int((labels == j).sum()) for j in range(clusters)) / clients


def typical_separation(clusters: int, dim: int, draws: int = 201) -> float:
    """The median over draws of Δ, the smallest distance between k Bernoulli(½) vectors of norm 1; infinite for k = 1.

    Two such vectors are at a distance of about 1; the smallest of many distances is less, and 0 in few dimensions.
    """
    if clusters == 1:
        return math.inf
    rng = np.random.default_rng(0)
    return float(np.median([pdist(unit_bernoulli(clusters, dim, rng)).min() for _ in range(draws)]))


def worst_contamination(byzantine: float, share: float) -> float:
    """α/(α + p): the Byzantine fraction of the smallest cluster if all Byzantine clients claim it.

    >>> round(worst_contamination(0.05, 0.19), 4)
    0.2083
    """
    return byzantine / (byzantine + share) if byzantine > 0 else 0.0


def breakdown_limit(rule: str, trim: float) -> float:
    """The contamination above which an aggregator can be moved anywhere: mean 0, trimmed mean β, median ½."""
    return {"mean": 0.0, "trimmed-mean": trim, "median": 0.5}[rule]


def c_epsilon(epsilon: float) -> float:
    """C_ε = √(2π)·exp(½ Φ⁻¹(1 − ε)²) (Theorem 1).

    >>> round(c_epsilon(0.5), 4)
    2.5066
    """
    return math.sqrt(2 * math.pi) * math.exp(0.5 * float(ndtri(1 - epsilon)) ** 2)


def misclustered_share(s: Setting) -> float:
    """c₁η²/(δλ_F²Δ⁴n_min): the fraction of clients in a wrong cluster, with probability 1 − δ (Lemma 1)."""
    q, c = s.quantities, s.constants
    if s.separation == 0:
        return math.inf
    return c.c1 * q.loss_sd**2 / (c.delta * q.strong_convexity**2 * s.separation**4 * s.samples)


def _log_term(s: Setting, plus: float = 0.0) -> float:
    return math.log(plus + s.total * s.quantities.lipschitz * s.quantities.diameter)


class Condition(NamedTuple):
    """An inequality left ≤ right."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left <= self.right


def theorem1_condition(s: Setting) -> Condition:
    """4c₁η²/(pδλ_F²Δ⁴n) + 4α/p + √(d log(1 + N L_f D)/(m(p/4 − c₁η²/(δλ_F²Δ⁴n) − α))) + 0.4748 S/√n ≤ ½ − ε."""
    wrong = misclustered_share(s)
    left_over = s.share / 4 - wrong - s.byzantine
    if left_over <= 0:
        return Condition(math.inf, 0.5 - s.constants.epsilon)
    left = (
        4 * (wrong + s.byzantine) / s.share
        + math.sqrt(s.dim * _log_term(s, plus=1.0) / (s.clients * left_over))
        + 0.4748 * s.quantities.skewness / math.sqrt(s.samples)
    )
    return Condition(left, 0.5 - s.constants.epsilon)


def theorem2_condition(s: Setting) -> Condition:
    """4c₁η²/(pδλ_F²Δ⁴n) + 4α/p ≤ β; for β > ½ − ε it does not hold, whatever the left side."""
    admitted = s.trim if s.trim <= 0.5 - s.constants.epsilon else -math.inf
    return Condition(4 * (misclustered_share(s) + s.byzantine) / s.share, admitted)


def theorem2_trim(s: Setting) -> float | None:
    """The smallest β that Theorem 2 admits, or None where that is above ½ − ε."""
    needed = theorem2_condition(s).left
    return needed if needed <= 0.5 - s.constants.epsilon else None


def start_condition(s: Setting) -> Condition:
    """‖θ_j⁽⁰⁾ − θ*_j‖ ≤ ¼√(λ_F/L_F)Δ (Assumption 5)."""
    q = s.quantities
    return Condition(s.start, 0.25 * math.sqrt(q.strong_convexity / q.smoothness) * s.separation)


def samples_condition(s: Setting) -> Condition:
    """kη²/(λ_F²Δ⁴) ≤ n_min (Assumption 5, up to a constant)."""
    q = s.quantities
    needed = s.clusters * q.loss_sd**2 / (q.strong_convexity**2 * s.separation**4) if s.separation > 0 else math.inf
    return Condition(needed, float(s.samples))


def share_condition(s: Setting) -> Condition:
    """log(N)/m ≤ p (Assumption 5, up to a constant)."""
    return Condition(math.log(s.total) / s.clients, s.share)


def separation_condition(s: Setting) -> Condition:
    """n^(−1/5) ≤ Δ (Assumption 5, up to a constant and logarithms).

    The paper has max(n^(−1/5), m^(−1/6) n^(−1/3)), of which the second is never the larger, since m ≥ 1 and n ≥ 1.
    """
    return Condition(s.samples**-0.2, s.separation)


def failure_probability(s: Setting) -> float:
    """δ + 4d/(1 + ¼ p m n L_f D)^d, the failure probability of both theorems without their 1/poly(N); at most 1."""
    q = s.quantities
    base = 1 + 0.25 * s.share * s.clients * s.samples * q.lipschitz * q.diameter
    return min(1.0, s.constants.delta + math.exp(math.log(4 * s.dim) - s.dim * math.log(base)))


def largest_byzantine(s: Setting, condition: Callable[[Setting], Condition]) -> float:
    """The largest α for which a condition holds, with the given p; 0 if it never does."""

    def slack(byzantine: float) -> float:
        found = condition(replace(s, byzantine=byzantine))
        return min(found.right - found.left, 1.0) if math.isfinite(found.left) else -1.0

    if slack(0.0) < 0:
        return 0.0
    if slack(s.share) >= 0:
        return s.share
    return float(brentq(slack, 0.0, s.share, xtol=1e-9))


def theorem1_noise(s: Setting) -> float:
    """ω = C_ε ν (S/n + α/√n + √(d log(N L_f D)/(n m p))), times the unnamed constant, as Theorem 1 states it.

    Its proof has 4α/p instead of α: Byzantine clients that all claim the smallest cluster are a fraction of that order
    of it. The factor is not a constant, and experiments show it (docs/theory.md); see `theorem1_noise_of_proof`.
    """
    q = s.quantities
    rate = (
        q.skewness / s.samples
        + s.byzantine / math.sqrt(s.samples)
        + math.sqrt(s.dim * _log_term(s) / (s.samples * s.clients * s.share))
    )
    return s.constants.bound * c_epsilon(s.constants.epsilon) * q.gradient_sd * rate


def theorem1_noise_of_proof(s: Setting) -> float:
    """2√2/n + √2 C_ε ν/√n · (the left side of Theorem 1's condition): ω with every constant of the proof.

    Infinite where the left side of the condition is.
    """
    spread = math.sqrt(2) * c_epsilon(s.constants.epsilon) * s.quantities.gradient_sd / math.sqrt(s.samples)
    return 2 * math.sqrt(2) / s.samples + spread * theorem1_condition(s).left


def theorem2_noise(s: Setting) -> float:
    """ω' = (σd/ε)(β/√n + 1/√(pmn))√log(N L_f D), times the unnamed constant."""
    rate = s.trim / math.sqrt(s.samples) + 1 / math.sqrt(s.share * s.clients * s.samples)
    spread = s.quantities.sub_exponential * s.dim / s.constants.epsilon
    return s.constants.bound * spread * rate * math.sqrt(_log_term(s))


def error_bound(s: Setting, noise: float, rounds: int) -> float:
    """(1 − λ_F/(λ_F + L_F))^T ‖θ⁽⁰⁾ − θ*‖ + 2ω/λ_F: the error bound of both theorems after T rounds."""
    q = s.quantities
    return (1 - q.strong_convexity / (q.strong_convexity + q.smoothness)) ** rounds * s.start + (
        2 * noise / q.strong_convexity
    )


def rounds_needed(s: Setting, noise: float) -> int:
    """T ≥ ((L_F + λ_F)/λ_F) log(λ_F ‖θ⁽⁰⁾ − θ*‖/(2ω)), after which the error is at most 4ω/λ_F."""
    q = s.quantities
    ratio = q.strong_convexity * s.start / (2 * noise) if noise > 0 else math.inf
    if not math.isfinite(ratio):
        raise ValueError("noise must be positive, else no number of rounds is enough")
    return max(1, math.ceil((q.smoothness + q.strong_convexity) / q.strong_convexity * math.log(max(ratio, 1.0))))


def theorem1_rate(s: Setting) -> float:
    """α/√n + √d/√(pmn) + 1/n (after Theorem 1, without ν, C_ε and logarithms)."""
    n = s.samples
    return s.byzantine / math.sqrt(n) + math.sqrt(s.dim / (s.share * s.clients * n)) + 1 / n


def theorem2_rate(s: Setting) -> float:
    """αd/(p√n) + d/√(pmn) (after Theorem 2, with β proportional to 4α/p)."""
    n = s.samples
    return s.byzantine * s.dim / (s.share * math.sqrt(n)) + s.dim / math.sqrt(s.share * s.clients * n)


def three_stage_misclustering(s: Setting) -> float:
    """ρ = Γ'(c/r₁² + √(5k log((1−α)m)/(γ₁²(1−α)m))) + C₃ with β_j = β, α_j = α/(α + p) (Appendix C).

    γ₁ = p/(1−α), r₁ = (Δ/σ)√(γ₁/(1 + kd/((1−α)m))), σ = ν/(λ_F√n) the spread of a local minimiser over √d.
    Infinite where two centres coincide.
    """
    if s.separation == 0:
        return math.inf
    honest = (1 - s.byzantine) * s.clients
    smallest = s.share / (1 - s.byzantine)
    spread = s.quantities.gradient_sd / (s.quantities.strong_convexity * math.sqrt(s.samples * s.dim))
    ratio = s.separation / spread * math.sqrt(smallest / (1 + s.clusters * s.dim / honest)) if spread else math.inf
    inside = worst_contamination(s.byzantine, s.share)
    scale = (1 - s.trim) / (1 - inside)
    spill = math.sqrt(5 * s.clusters * math.log(honest) / (smallest**2 * honest))
    return scale * (s.constants.c3 / ratio**2 + spill) + s.trim / (1 - inside)


def three_stage_rate(s: Setting, misclustered: float | None = None) -> float:
    """α̃d/√n + d/√(pmn) with α̃ = (ρp + α)/(p + α) (Section 5.3); ρ as given or as in Appendix C, at most 1."""
    rho = min(1.0, three_stage_misclustering(s)) if misclustered is None else misclustered
    tilted = (rho * s.share + s.byzantine) / (s.share + s.byzantine)
    return tilted * s.dim / math.sqrt(s.samples) + s.dim / math.sqrt(s.share * s.clients * s.samples)


def lower_bound(s: Setting) -> float:
    """σ√(α/n + d/(mn)), σ² the noise: a lower bound for any method with k = 1, up to a constant (Zhu et al., 2023)."""
    return math.sqrt(s.quantities.noise * (s.byzantine + s.dim / s.clients) / s.samples)


def oracle_error(s: Setting) -> float:
    """√(noise·d/(pmn − d − 1)): the error of pooled least squares on the smallest cluster; pmn for means.

    Exact for E‖θ̂ − θ*‖² with Gaussian features; infinite where the pooled samples do not determine the model.
    """
    freedom = s.share * s.clients * s.samples - (s.dim + 1 if s.quantities.regression else 0)
    return math.sqrt(s.quantities.noise * s.dim / freedom) if freedom > 0 else math.inf
