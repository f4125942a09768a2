"""A client's own model, shrunk towards an anchor as far as the client's own rows advise: formulas for one client.

The client's parameter is θ = θ_anchor + δ with δ ~ N(0, τ²S), and the noise has variance σ². Given n rows, the
posterior mean of δ is a ridge fit of the residuals y − Xθ_anchor with penalty λ = σ²/(nτ²), and λ is not known. All
values of a grid, 0 and infinity included, come from one decomposition of X, with their leave-one-out residuals; the fit
that is returned is their mean with the weights of their marginal likelihood (empirical Bayes). The λ of the lowest
leave-one-out error alone follows the noise more closely: it costs more where the anchor is the client's parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, like

if TYPE_CHECKING:
    from coterie._src.tasks.linear import Loss

Anchor = Literal["cluster", "own"]

INTERCEPT_FACTORS = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0])
"""n/(n + λ) of the intercept: 0 keeps that of the anchor, 1 is the client's own."""
PENALTIES = np.concatenate([[np.inf], 10.0 ** np.arange(2, -4.1, -0.5), [0.0]])
"""λ of the slopes, per row and in standardised columns."""
ANCHOR_PRIOR, SMOOTH_ANCHOR_PRIOR = 1.0, 3.0
"""The logarithm of how much more likely λ = ∞ is than any other value of the grid, before the rows are seen; for the
square, and for other losses, whose left-out folds are a noisier guide than a marginal likelihood: on simulated logistic
clients with 30 to 200 rows and 8 or 25 columns a prior of 3 instead of 1 about halves the excess loss where the anchor
is the client's parameter, and costs at most a fifth of the gain where it is not."""
NOISE_ROWS = 2.0
"""The prior on σ² weighs as much as so many rows, and says that the residuals at the anchor are all noise.

Without it a fit with as many parameters as rows has the highest likelihood."""
LARGEST_FACTOR = 0.999
"""Of a direction, in the marginal likelihood, which is 0 for an unpenalised fit."""
SATURATED = 1 - 1e-6
"""A fit with a leverage above this has no leave-one-out residuals."""
SMOOTH_INTERCEPTS, SMOOTH_SLOPES = np.array([np.inf, 0.3, 0.03]), np.array([np.inf, 3.0, 0.3, 0.03, 0.003])
"""λ of the intercept and of the slopes for a loss that is not the square."""
FOLDS, PROXIMAL_STEPS = 4, 60
ROUNDING = 8
"""A column whose range is at most so many rounding errors of its largest value is constant."""
TOLERANCE = 0.5
"""The cluster's anchor is preferred unless its error is higher by so many standard errors of the difference."""

UNSEEN_DEVIATIONS, UNSEEN_SCORES = 2.0, 5.0
"""What a direction in which the client's rows do not vary may change: so many deviations of its targets, or so much of
the scores of a classifier."""
DEVIATION_LEVEL = 0.25
"""The deviation of a client's targets is its upper confidence bound at one minus this level: few rows tell little."""


class Shrunk(NamedTuple):
    """A client's fit: the model, its shrinkage from 0 (own fit) to 1 (the anchor), and (n,) leave-one-out losses."""

    model: Floats
    shrinkage: float
    losses: Floats


class Decomposition(NamedTuple):
    """X = 1·x̄ᵀ + U·diag(d)·Vᵀ·diag(scale); columns that do not vary are left out, and x̄ = 0 without an intercept."""

    mean: Floats  # (p,)
    used: Bools  # (p,)
    indicator: Bools  # (p,), 0 or 1 in every row
    scale: Floats  # (used,)
    left: Floats  # (n, r), U
    values: Floats  # (r,), d
    right: Floats  # (r, used), Vᵀ
    indicated: Floats  # (s, used indicators), Vᵀ of the indicators alone

    def slopes(self, coordinates: Floats) -> Floats:
        """(r, …) coefficients of the columns of U -> (p, …) coefficients of the columns of X."""
        found = np.zeros((len(self.used), *coordinates.shape[1:]))
        scaled = (coordinates.T / self.values).T
        found[self.used] = ((self.right.T @ scaled).T / self.scale).T
        return found


def decomposed(x: NDArray[Any], centred: bool) -> Decomposition:
    """The decomposition of (n, p) features, in float64 with the tolerance of the precision of x."""
    precision = float(np.finfo(x.dtype).eps)
    x = x.astype(np.float64, copy=False)
    n, p = x.shape
    mean = x.mean(axis=0) if centred else np.zeros(p)
    offsets = x - mean
    if centred:
        offsets -= offsets.mean(axis=0)  # the first mean is rounded by as much as x is far from 0
    deviations = np.sqrt((offsets**2).mean(axis=0))
    # by the range and not by the deviations: the mean of equal numbers is rounded, and that rounding is not a spread
    used = (np.ptp(x, axis=0) if centred else np.abs(x).max(axis=0)) > ROUNDING * precision * np.abs(x).max(axis=0)
    scale = deviations[used]
    left, values, right = _singular(offsets[:, used] / scale, n - centred, precision)
    indicator = ((x == 0) | (x == 1)).all(axis=0)
    indicated = _singular(offsets[:, used & indicator], n - centred, precision)[2]
    return Decomposition(mean, used, indicator, scale, left, values, right, indicated)


def _singular(x: Floats, rank: int, precision: float) -> tuple[Floats, Floats, Floats]:
    """The singular value decomposition with values beyond rounding, at most `rank` of them."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    kept = values > ROUNDING * precision * max(x.shape) * values.max(initial=0.0)
    kept[max(0, rank) :] = False
    return left[:, kept], values[kept], right[kept]


def bounded_where_unseen(x: Decomposition, weights: Floats, limit: Floats, intercept: int | None) -> Floats:
    """(p + 1, o), or (p, o) without an intercept: an anchor whose coefficients are bounded where no row judges them.

    The rows of a client say nothing about columns that do not vary in them, as of a level that the client does not
    have, nor about the difference of two levels that always come together. If few other clients know them either, the
    coefficients may have come from Byzantine clients alone, and left-out rows of the client do not show it. So the
    coefficient of a column that is 0 or 1 in all rows is at most limit (o,); other columns that do not vary have no
    scale, and get 0; and the part of the coefficients of indicators that changes no row has at most the norm limit.
    What this changes in the rows of the client, the intercept makes good.
    """
    others = np.arange(len(weights)) != intercept  # all of them where intercept is None
    slopes = weights[others]
    found = slopes.copy()
    varied = x.used & x.indicator
    unseen = slopes[varied] - x.indicated.T @ (x.indicated @ slopes[varied])
    norms = np.sqrt((unseen**2).sum(axis=0))
    kept = np.where(norms > limit, limit / np.where(norms > limit, norms, 1.0), 1.0)
    kept[norms > limit / np.finfo(np.float64).eps] = np.nan  # what rounding leaves of it is above the limit
    found[varied] -= (1 - kept) * unseen
    largest = np.where(x.indicator[~x.used], limit[:, None], 0.0).T
    found[~x.used] = np.clip(slopes[~x.used], -largest, largest)
    bounded = weights.copy()
    bounded[others] = found
    if intercept is not None:
        bounded[intercept] += x.mean @ (slopes - found)
    return bounded


def largest_deviation(targets: Floats) -> float:
    """An upper confidence bound on the standard deviation of normal targets; infinite for one row."""
    freedom = len(targets) - 1
    return float(targets.std() * np.sqrt(len(targets) / chdtri(freedom, 1 - DEVIATION_LEVEL))) if freedom else np.inf


def slope_factors(values: Floats, rows: int) -> Floats:
    """(r,) singular values -> (L, r): d²/(d² + nλ) for every penalty, the factor of the least-squares coefficients."""
    eigenvalues = values**2 / rows
    found: Floats = eigenvalues / (eigenvalues + PENALTIES[:, None])
    return found


class Candidates(NamedTuple):
    """The fits of a client's residuals r at an anchor, for A factors of the intercept and L of the slopes.

    A fit is a_g·r̄ + U·diag(f_l)·Uᵀr; without an intercept the only factor of it is 0.
    """

    residuals: Floats  # (n,), r
    middle: float  # r̄
    moments: Floats  # (r,), Uᵀr
    intercepts: Floats  # (A,)
    slopes: Floats  # (L, r)
    left_out: (
        Floats  # (n, A, L), the residuals of every row under the fit to the other rows; not finite where saturated
    )

    @property
    def admitted(self) -> Bools:
        """(A, L), whether the leave-one-out residuals exist."""
        return np.asarray(np.isfinite(self.left_out).all(axis=0))


def candidates(residuals: Floats, basis: Floats, intercepts: Floats, slopes: Floats) -> Candidates:
    """All fits and their leave-one-out residuals e_i/(1 − h_ii), h the diagonal of the matrix from r to the fit."""
    n, middle, moments = len(residuals), float(residuals.mean()), basis.T @ residuals
    fits = (basis * moments) @ slopes.T
    leverages = intercepts[:, None] / n + ((basis**2) @ slopes.T)[:, None, :]
    errors = residuals[:, None, None] - middle * intercepts[:, None] - fits[:, None, :]
    open_ = leverages.max(axis=0) < SATURATED
    left_out = np.where(open_, errors / np.where(open_, 1 - leverages, 1), np.inf)
    return Candidates(residuals, middle, moments, intercepts, slopes, left_out)


def evidence(found: Candidates, free: bool) -> Floats:
    """(A, L): the logarithm of the marginal likelihood of every fit, up to a constant; σ² is integrated out.

    free: the intercept has no prior, and its degree of freedom does not count. For a candidate with I − H = (I + K)⁻¹
    it is ½ log det(I − H) − ½(N + ν) log(rᵀ(I − H)r + ν·rᵀr/N), with ν = NOISE_ROWS.
    """
    n = len(found.residuals)
    intercepts = np.zeros(1) if free else np.minimum(found.intercepts, 1 - 1 / (n + 1))
    slopes = np.minimum(found.slopes, LARGEST_FACTOR)
    total = float(((found.residuals - found.middle) ** 2).sum() if free else (found.residuals**2).sum())
    if not 0 < total < np.inf:  # the anchor is exact, or so wrong that squares overflow
        return _only_first((len(intercepts), len(slopes)))
    explained = (intercepts * n * found.middle**2)[:, None] + (slopes @ found.moments**2)
    unexplained = np.maximum(1 - explained / total, 0.0)
    rows = n - free
    determinant = 0.5 * np.log1p(-intercepts)[:, None] + 0.5 * np.log1p(-slopes).sum(axis=1)
    likelihood: Floats = determinant - 0.5 * (rows + NOISE_ROWS) * np.log(unexplained + NOISE_ROWS / rows)
    return likelihood


def _only_first(shape: tuple[int, ...]) -> Floats:
    """Logarithms of weights that are 1 for the anchor, the first of the grid, and 0 for all others."""
    return np.where(np.arange(np.prod(shape)) == 0, 0.0, -np.inf).reshape(shape)


def weights(scores: Floats, admitted: Bools, prior: float = ANCHOR_PRIOR) -> Floats:
    """(A, L): positive numbers with sum 1 that are proportional to e^score times the prior of the grid."""
    likelihood = np.where(admitted, scores, -np.inf)
    likelihood[0, :] += prior
    likelihood[:, 0] += prior
    if not np.isfinite(likelihood.max()):
        likelihood = _only_first(likelihood.shape)
    found = np.exp(likelihood - likelihood.max())
    mean: Floats = found / found.sum()
    return mean


def shrunk_regression(
    x: Decomposition, features: Floats, targets: Floats, anchor: Floats | None, intercept: int | None
) -> Shrunk:
    """The squared-loss fit of one client towards an anchor, or towards its own mean where anchor is None.

    features: (n, p + 1), or (n, p) where intercept, the index of the column of ones, is None. x: of the other columns.
    """
    n, rank = x.left.shape
    free = anchor is None and intercept is not None
    start: Floats = np.zeros(features.shape[1])
    if anchor is not None and n > 1:
        limit = np.array([UNSEEN_DEVIATIONS * largest_deviation(targets)])
        start = bounded_where_unseen(x, anchor[:, None], limit, intercept)[:, 0]
    elif anchor is not None:
        start = anchor
    residuals = targets - features @ start
    factors = np.ones(1) if free else INTERCEPT_FACTORS if intercept is not None else np.zeros(1)
    found = candidates(residuals, x.left, factors, slope_factors(x.values, n))
    scores = evidence(found, free) if n > 1 else _only_first(found.left_out.shape[1:])
    weight = weights(scores, found.admitted)
    shift = float(weight.sum(axis=1) @ factors) * found.middle
    mean_factors = weight.sum(axis=0) @ found.slopes
    slopes = x.slopes(mean_factors * found.moments)
    model = start.copy()
    if intercept is None:
        model += slopes
    else:
        model[np.arange(len(model)) != intercept] += slopes
        model[intercept] += shift - slopes @ x.mean
    degrees = mean_factors.sum() + (0.0 if free else weight.sum(axis=1) @ factors)
    own = rank + (intercept is not None and not free)
    left_out = np.where(weight > 0, found.left_out, 0.0).reshape(n, -1) @ weight.ravel()
    losses = left_out**2 if found.admitted.any() else np.full(n, np.inf)
    return Shrunk(model, 1.0 - float(degrees) / own if own else 1.0, losses)


def shrunk_mean(samples: Floats, anchor: Floats | None) -> Shrunk:
    """The mean of (n, d) samples, shrunk towards an anchor by one factor; the mean itself where anchor is None.

    With z̄ − θ the only direction that matters it is the positive-part estimator of James and Stein (1961), averaged.
    """
    n, d = samples.shape
    start = samples.mean(axis=0) if anchor is None else anchor
    offsets = samples - start
    middle = offsets.mean(axis=0)
    factors = np.ones(1) if anchor is None else INTERCEPT_FACTORS
    if n == 1:
        losses = np.full(1, np.inf if anchor is None else float((offsets**2).sum()))
        return Shrunk(start, float(anchor is not None), losses)
    total, own = float((offsets**2).sum()), n * float((middle**2).sum())
    weight: Floats = np.ones(1)
    if anchor is not None and 0 < total < np.inf:
        likely = np.minimum(factors, 1 - 1 / (n + 1))
        unexplained = np.maximum(1 - likely * own / total, 0.0)
        rows = n * d
        scores = 0.5 * d * np.log1p(-likely) - 0.5 * (rows + NOISE_ROWS) * np.log(unexplained + NOISE_ROWS / rows)
        weight = weights(scores[:, None], np.arange(len(factors))[:, None] < len(factors))[:, 0]
    elif anchor is not None:
        weight = (factors == 0).astype(np.float64)
    left_out = [(((offsets - factor * middle) / (1 - factor / n)) ** 2).sum(axis=1) for factor in factors]
    factor = float(weight @ factors)
    return Shrunk(start + factor * middle, 1.0 - factor, weight @ np.stack(left_out))


def proximal_fits(
    start: Floats, targets: Floats, basis: Floats, penalties: tuple[Floats, Floats], rows: Bools, loss: Loss
) -> tuple[Floats, Floats]:
    """(B, 1, o) and (B, r, o): minimisers of B penalised risks with scores start + a + basis·b, near enough.

    start: (n, o) scores of the anchor. basis: (n, r), orthogonal columns. penalties: (B,) each, of a and b, in units of
    the bound c on the curvature of the loss. rows: (B, n), those that count. Accelerated steps that are divided by the
    bound c·(basisᵀbasis/n + λ), which is diagonal; they do not diverge on separable data.
    """
    n, count = len(start), len(rows)
    moments = (basis**2).mean(axis=0)[:, None]
    finite = [np.where(np.isinf(p), 0.0, p)[:, None, None] for p in penalties]
    steps = [
        np.where(np.isinf(p)[:, None, None], 0.0, 1 / (loss.curvature * (m + q)))
        for p, q, m in zip(penalties, finite, (np.ones((1, 1)), moments), strict=True)
    ]
    shift, slopes = np.zeros((count, 1, start.shape[1])), np.zeros((count, basis.shape[1], start.shape[1]))
    last_shift, last_slopes = shift, slopes
    for t in range(PROXIMAL_STEPS):
        momentum = t / (t + 3)
        a, b = shift + momentum * (shift - last_shift), slopes + momentum * (slopes - last_slopes)
        pull = loss.slope(start + a + basis @ b, targets[None]) * rows[:, :, None] / n
        last_shift, last_slopes = shift, slopes
        shift = a - steps[0] * (pull.sum(axis=1, keepdims=True) + loss.curvature * finite[0] * a)
        slopes = b - steps[1] * (basis.T @ pull + loss.curvature * finite[1] * b)
    return shift, slopes


def folds_of(targets: Floats) -> Ints:
    """(n,): the fold of each row; neighbours in the order of the targets are in different folds."""
    found = np.empty(len(targets), dtype=np.int64)
    found[np.argsort(targets, kind="stable")] = np.arange(len(targets)) % FOLDS
    return found


def shrunk_classifier(
    x: Decomposition, features: Floats, targets: Floats, anchor: Floats | None, intercept: int | None, loss: Loss
) -> Shrunk:
    """As `shrunk_regression` for a smooth convex loss, with weights e^−(total loss of left-out folds)."""
    (n, rank), outputs = x.left.shape, loss.outputs
    free = anchor is None and intercept is not None
    weights_: Floats = np.zeros((features.shape[1], outputs))
    if anchor is not None:
        weights_ = bounded_where_unseen(x, anchor.reshape(-1, outputs), np.full(outputs, UNSEEN_SCORES), intercept)
    of_intercept = np.array([1 / n]) if free else SMOOTH_INTERCEPTS if intercept is not None else np.array([np.inf])
    grid = (len(of_intercept), len(SMOOTH_SLOPES))
    penalties = [p.ravel() for p in np.meshgrid(of_intercept, SMOOTH_SLOPES, indexing="ij")]
    cells = len(penalties[0])
    fold = folds_of(targets)
    parts = [np.ones(n, dtype=np.bool_), *(fold != f for f in range(min(FOLDS, n)))]
    rows = np.repeat(np.stack(parts), cells, axis=0)
    start, basis = features @ weights_, x.left * x.values
    repeated = np.tile(penalties[0], len(parts)), np.tile(penalties[1], len(parts))
    shift, slopes = proximal_fits(start, targets, basis, repeated, rows, loss)
    values = loss.value(start + shift + basis @ slopes, targets[None]).reshape(len(parts), cells, n)
    losses = values[1 + fold, :, np.arange(n)].T  # (cells, n)
    scores = -losses.sum(axis=1).reshape(grid) if n > 1 else _only_first(grid)
    weight = weights(scores, np.isfinite(scores), SMOOTH_ANCHOR_PRIOR).ravel()
    moved = np.tensordot(weight, slopes[:cells], 1)
    change = x.slopes(moved * x.values[:, None])
    if intercept is None:
        weights_ += change
    else:
        weights_[np.arange(len(weights_)) != intercept] += change
        weights_[intercept] += weight @ shift[:cells, 0, :] - x.mean @ change
    eigenvalues = x.values**2 / n
    degrees = weight @ (eigenvalues / (eigenvalues + penalties[1][:, None])).sum(axis=1)
    degrees += 0.0 if free else weight @ (1 / (1 + penalties[0]))
    own = rank + (intercept is not None and not free)
    left_out = weight @ losses if n > 1 or anchor is not None else np.full(n, np.inf)
    # one row more, of another class: a few rows that are met by luck do not justify scores of any size
    left_out = left_out + max(0.0, float(np.abs(features @ weights_).mean()) - UNSEEN_SCORES) / n
    return Shrunk(weights_.ravel(), 1.0 - float(degrees) / own if own else 1.0, left_out)


def preferred(cluster: Shrunk | None, own: Shrunk) -> tuple[Shrunk, Anchor]:
    """The fit with the lower loss of left-out rows; the cluster's within `TOLERANCE` standard errors, and for one row.

    Losses that overflow are as those of a wrong centre: the own fit is taken.
    """
    if cluster is None or not (np.isfinite(cluster.model).all() and np.isfinite(cluster.losses).all()):
        return own, "own"
    if len(own.losses) == 1 or not np.isfinite(own.losses).all():
        return cluster, "cluster"
    excess = cluster.losses - own.losses
    excess /= np.abs(excess).max() or 1.0  # squares of large losses overflow
    error = excess.std() / np.sqrt(len(excess))
    return (cluster, "cluster") if excess.mean() <= TOLERANCE * error else (own, "own")


def intercept_column(features: Array) -> int | None:
    """The last column that is 1 in all rows; None if there is none."""
    constant = np.flatnonzero((as_numpy(features) == 1).all(axis=0))
    return int(constant[-1]) if len(constant) else None


def collected(fits: list[tuple[Shrunk, Anchor]], example: Array) -> tuple[Array, Floats, tuple[Anchor, ...]]:
    """The models (m, dim) as the kind of array that `example` is, the shrinkage (m,) and the anchors (m,)."""
    models = like(np.stack([fit.model for fit, _ in fits]), example)
    return models, np.array([fit.shrinkage for fit, _ in fits]), tuple(anchor for _, anchor in fits)


def anchors_of(centres: Array | None, labels: Ints | None, count: int) -> list[Floats | None]:
    """(dim,) in float64 for every client, None for one without a cluster or with a centre that is not finite."""
    if centres is None or labels is None:
        return [None] * count
    values = as_numpy(centres).astype(np.float64)
    finite = np.asarray(np.isfinite(values).all(axis=1))
    return [values[label] if label >= 0 and finite[label] else None for label in labels]
