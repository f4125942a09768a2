"""Models whose loss depends on the features through scores x·W: linear, logistic and softmax regression.

F_i(θ) = (1/n_i) Σ_l ℓ(x^{i,l}·W, y^{i,l}) with θ the flattened W of shape (columns, outputs). The three
differ only in ℓ, so a task consists of the data and a `Loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, lstsq, solve, svd
from scipy.linalg.lapack import dpocon, dpotrf, dpotrs, sgetrf, sgetri
from scipy.optimize import minimize

from coterie._src.arrays import Array, Floats, Ints, as_numpy, cast, like, namespace
from coterie._src.data import Clients
from coterie._src.data.clients import Block
from coterie._src.kernels import squared_loss as kernel
from coterie._src.kernels.elkan import AssignmentCache
from coterie._src.kernels.second_moments import packed_moments
from coterie._src.kernels.squared_loss import RegressionData
from coterie._src.packed import packed, triangle
from coterie._src.tasks import shrinkage
from coterie._src.tasks.base import Response, assign
from coterie._src.tasks.shrinkage import Anchor, Shrunk

WELL_CONDITIONED = 1e-6
"""If the inverse condition number of the Gram matrix is larger, its Cholesky factor gives ten correct digits."""
UNTIL_SMALL = {"gtol": 1e-8, "ftol": 0.0, "maxcor": 20}
"""Options of L-BFGS: the largest entry of the gradient ends the search."""
POWER_STEPS = 30
CACHED_ELEMENTS = 1 << 19
"""Feature values of a block that is read twice: 2 MB of float32, which stay in the cache of a core."""


class Loss(NamedTuple):
    """ℓ(s, y) for scores s (…, outputs) and targets y (…).

    value: (s, y) -> (…). slope: (s, y) -> ∂ℓ/∂s, (…, outputs). curvature: an upper bound on the eigenvalues of ∂²ℓ/∂s².
    predict: s -> the predicted targets. classes: the number of classes that y is of, 0 where y is a number. second:
    s -> ∂²ℓ/∂s², (…, outputs, outputs), which does not depend on y; None where it is the number `curvature`. square:
    whether it is the square loss, for which there are kernels.
    """

    outputs: int
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    curvature: float
    predict: Callable[[Array], Array]
    classes: int = 0
    second: Callable[[Floats], Floats] | None = None
    square: bool = False


def squared_loss() -> Loss:
    """ℓ(s, y) = (s − y)², as in the paper (without a factor ½, so the gradient has a factor 2)."""
    return Loss(
        1,
        value=lambda s, y: (s[..., 0] - y) ** 2,
        slope=lambda s, y: 2.0 * (s - y[..., None]),
        curvature=2.0,
        predict=lambda s: s[..., 0],
        square=True,
    )


def logistic_loss() -> Loss:
    """ℓ(s, y) = log(1 + e^s) − y·s for y ∈ {0, 1}, computed without overflow."""

    def value(s: Array, y: Array) -> Array:
        xp = namespace(s)
        s = s[..., 0]
        return xp.where(s > 0, s, 0.0 * s) + xp.log1p(xp.exp(-xp.abs(s))) - y * s

    def slope(s: Array, y: Array) -> Array:
        xp = namespace(s)
        return 0.5 * (1.0 + xp.tanh(0.5 * s)) - y[..., None]

    def second(s: Floats) -> Floats:
        found: Floats = (0.25 / np.cosh(0.5 * np.clip(s, -700, 700)) ** 2)[..., None]
        return found

    return Loss(1, value, slope, 0.25, predict=lambda s: s[..., 0] > 0, classes=2, second=second)


def softmax_loss(classes: int) -> Loss:
    """ℓ(s, y) = log Σ_c e^{s_c} − s_y for y ∈ {0, …, classes − 1}, computed without overflow."""
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")

    def hot(s: Array, y: Array) -> Array:
        xp = namespace(s)
        return xp.astype(y[..., None] == xp.arange(classes, dtype=y.dtype, device=y.device), s.dtype)

    def value(s: Array, y: Array) -> Array:
        xp = namespace(s)
        s = s - xp.max(s, axis=-1, keepdims=True)
        return xp.log(xp.sum(xp.exp(s), axis=-1)) - xp.sum(s * hot(s, y), axis=-1)

    def slope(s: Array, y: Array) -> Array:
        xp = namespace(s)
        e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True) - hot(s, y)

    def second(s: Floats) -> Floats:
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        p = e / e.sum(axis=-1, keepdims=True)
        found: Floats = p[..., None] * (np.eye(classes) - p[..., None, :])
        return found

    return Loss(
        classes,
        value,
        slope,
        curvature=0.5,
        predict=lambda s: namespace(s).argmax(s, axis=-1),
        classes=classes,
        second=second,
    )


@dataclass(frozen=True)
class LinearModel:
    """A linear model with loss ℓ on the clients' samples; see `coterie.tasks.Task` for the methods."""

    clients: Clients
    loss: Loss
    minimise: Callable[[NDArray[Any], NDArray[Any], float], Floats]

    def __post_init__(self) -> None:
        if self.clients.targets is None:
            raise ValueError("targets are missing: a regression task needs them")

    @property
    def dim(self) -> int:
        return self.clients.dim * self.loss.outputs

    @property
    def curvature_bound(self) -> float:
        return self.loss.curvature

    @property
    def has_curvatures(self) -> bool:
        return True

    @property
    def hessians_known(self) -> Literal["constant", "varying"]:
        return "constant" if self.loss.second is None else "varying"

    def on(self, clients: Clients) -> LinearModel:
        return replace(self, clients=clients)

    def poisoned(self, change: Callable[[Array, int], Array]) -> LinearModel:
        return self._with_targets(change(self.clients.targets, self.loss.classes))

    def with_targets_from(self, model: Array) -> LinearModel:
        return self._with_targets(self.predict(model, self.clients.features))

    def predict(self, centre: Array, features: Array) -> Array:
        """(n,): the targets that a centre predicts for (n, columns) features."""
        return self.loss.predict(features @ self._weights(centre)[0])

    def _with_targets(self, targets: Array) -> LinearModel:
        return self.on(replace(self.clients, targets=cast(targets, self.clients.features)))

    def _weights(self, centres: Array) -> Array:
        return namespace(centres).reshape(centres, (-1, self.clients.dim, self.loss.outputs))

    def _scores(self, block: Block, centres: Array) -> Array:
        """(c, n, k, outputs): the scores under all centres, by one matrix product per client.

        Not one product for the whole block: for few columns BLAS is twice as fast on small factors.
        """
        xp = namespace(centres)
        weights = self._weights(centres)
        k, _, outputs = weights.shape
        beside = xp.concat([weights[j, :, :] for j in range(k)], axis=1)  # (columns, k·outputs), rows contiguous
        scores = block.features @ beside
        return xp.reshape(scores, (*scores.shape[:2], k, outputs))

    def _losses(self, block: Block, scores: Array) -> Array:
        """(c, n, k, outputs) scores -> (c, k)."""
        assert block.targets is not None
        targets = block.targets[:, :, None]
        if self._data is None:
            return namespace(scores).mean(self.loss.value(scores, targets), axis=1)
        errors = (scores[..., 0] - targets).astype(np.float64)  # a float32 sum over many samples would lose digits
        return ((errors * errors).sum(axis=1) / errors.shape[1]).astype(scores.dtype)

    def _gradients(self, block: Block, scores: Array) -> Array:
        """(c, n, outputs) scores at the chosen centres -> (c, dim)."""
        xp = namespace(scores)
        slope = self.loss.slope(scores, block.targets) / block.features.shape[1]
        gradient = xp.permute_dims(block.features, (0, 2, 1)) @ slope
        return xp.reshape(gradient, (gradient.shape[0], self.dim))

    @cached_property
    def _data(self) -> RegressionData | None:
        """The data in the form of the kernels; None for another loss, or where the samples are tensors."""
        clients = self.clients
        return (
            RegressionData.of_samples(clients.features, clients.targets, clients.offsets) if self.loss.square else None
        )

    def _kernel_data(self, centres: Array) -> RegressionData | None:
        return self._data if self._data is not None and self._data.fits(centres) else None

    def losses(self, centres: Array) -> Array:
        # of a NumPy block the errors are held in float64: small blocks keep that below the samples' memory
        blocks = self.clients.blocks() if self._data is None else self.clients.blocks(CACHED_ELEMENTS)
        return namespace(centres).concat([self._losses(block, self._scores(block, centres)) for block in blocks])

    def loss_variances(self, centres: Array, labels: Ints) -> Floats:
        """(m,): the variance of the losses of a client's samples at the centre that labels[i] names; NaN for one."""
        weights, found = self._weights(centres), np.full(self.clients.count, np.nan)
        for block in self.clients.blocks(CACHED_ELEMENTS):
            if block.features.shape[1] > 1:
                scores = block.features @ weights[labels[block.start : block.stop]]
                each = as_numpy(self.loss.value(scores, block.targets)).astype(np.float64)
                found[block.start : block.stop] = each.var(axis=1, ddof=1)
        return found

    def respond(self, centres: Array, cache: AssignmentCache | None = None) -> Response:
        if (data := self._kernel_data(centres)) is not None:
            found = None if cache is None else kernel.best_centres(data, centres, cache, self.clients.features.nbytes)
            if found is not None:
                return Response(*found)
            labels = assign(self.losses(centres))
            return Response(labels, self.gradients(centres, labels))
        # in blocks that stay in the cache between the two uses of the features
        answers = [self._respond(block, centres) for block in self.clients.blocks(CACHED_ELEMENTS)]
        chosen, gradients = zip(*answers, strict=True)
        return Response(np.concatenate(chosen), namespace(centres).concat(gradients))

    def _respond(self, block: Block, centres: Array) -> tuple[Ints, Array]:
        scores = self._scores(block, centres)
        labels = assign(self._losses(block, scores))
        return labels, self._gradients(block, scores[np.arange(len(labels)), :, labels, :])

    def gradients(self, centres: Array, labels: Ints) -> Array:
        if (data := self._kernel_data(centres)) is not None:
            return kernel.losses_and_gradients(data, centres, labels)[1]
        weights = self._weights(centres)
        return namespace(centres).concat(
            [
                self._gradients(block, block.features @ weights[labels[block.start : block.stop]])
                for block in self.clients.blocks(CACHED_ELEMENTS)
            ]
        )

    def minimisers(self, ridge: float = 0.0) -> Array:
        found = np.empty((self.clients.count, self.dim), dtype=as_numpy(self.clients.features[:1, :]).dtype)
        for client in range(self.clients.count):
            x, y = self.clients.samples(client)
            found[client] = self.minimise(as_numpy(x), as_numpy(y), ridge)
        return like(found, self.clients.features)

    def personalised(self, centres: Array | None, labels: Ints | None) -> tuple[Array, Floats, tuple[Anchor, ...]]:
        """As `coterie._src.personal.personalise`."""
        return personal_regressions(self.clients, centres, labels, self.loss)

    def curvatures(self) -> Floats:
        return self._curvatures

    @cached_property
    def _curvatures(self) -> Floats:
        """Computed once: all methods of a trial ask the same clients."""
        return self.loss.curvature * gram_curvatures(self.clients)

    def hessians(self, centres: Array, labels: Ints) -> Floats:
        if self.loss.second is None:
            return second_moments(self.clients, self.loss.curvature)
        weights = as_numpy(self._weights(centres)).astype(np.float64)
        columns, outputs = self.clients.dim, self.loss.outputs
        found = np.empty((self.clients.count, triangle(self.dim)))
        for block in self.clients.blocks(CACHED_ELEMENTS):
            features = as_numpy(block.features).astype(np.float64)
            seconds = self.loss.second(features @ weights[labels[block.start : block.stop]])
            # parameters are ordered by column, then by output
            together = np.empty((len(features), columns, outputs, columns, outputs))
            for a, b in np.ndindex(outputs, outputs):
                together[:, :, a, :, b] = weighted_moments(features, seconds[..., a, b])
            found[block.start : block.stop] = packed(together.reshape(-1, self.dim, self.dim))
        return found


def personal_regressions(
    clients: Clients, centres: Array | None, labels: Ints | None, loss: Loss
) -> tuple[Array, Floats, tuple[Anchor, ...]]:
    """The models of all clients, their shrinkage and their anchors."""

    def towards(anchor: Floats | None) -> Shrunk:
        if loss.square:
            return shrinkage.shrunk_regression(x, *data, anchor, intercept)
        return shrinkage.shrunk_classifier(x, *data, anchor, intercept, loss)

    intercept, fits = shrinkage.intercept_column(clients.features), []
    for client, anchor in enumerate(shrinkage.anchors_of(centres, labels, clients.count)):
        features, targets = (as_numpy(part) for part in clients.samples(client))
        others = features if intercept is None else np.delete(features, intercept, axis=1)
        x = shrinkage.decomposed(others, intercept is not None)
        data = features.astype(np.float64), targets.astype(np.float64)
        fits.append(shrinkage.preferred(None if anchor is None else towards(anchor), towards(None)))
    return shrinkage.collected(fits, clients.features if centres is None else centres)


def second_moments(clients: Clients, factor: float = 1.0) -> Floats:
    """(m, d(d + 1)/2) in float64: factor·XᵀX/n of every client, packed."""
    found = np.empty((clients.count, triangle(clients.dim)))
    for block in clients.blocks(CACHED_ELEMENTS):
        packed_moments(as_numpy(block.features), factor, found[block.start : block.stop])
    return found


def weighted_moments(features: Floats, weights: Floats) -> Floats:
    """(c, n, d), (c, n) -> (c, d, d): Σ_l w_l x_l x_lᵀ / n."""
    found: Floats = features.transpose(0, 2, 1) @ (features * weights[..., None]) / features.shape[1]
    return found


def gram_curvatures(clients: Clients) -> Floats:
    """(m, 2): λ_max(XᵀX/n) by power iteration, and tr(XᵀX/n)/n."""
    return np.concatenate([block_curvatures(block.features) for block in clients.blocks(CACHED_ELEMENTS)])


def block_curvatures(features: Array) -> Floats:
    """(c, n, d) -> (c, 2): as `gram_curvatures`, for some clients."""
    xp = namespace(features)
    c, n, d = features.shape
    transposed = xp.permute_dims(features, (0, 2, 1))
    # a fixed random start: data are hardly ever orthogonal to it, and the result is reproducible
    start = np.random.default_rng(0).standard_normal((1, d, 1))
    vector = like(np.tile(start, (c, 1, 1)), features)
    for _ in range(POWER_STEPS):
        vector = transposed @ (features @ vector)
        vector = vector / (xp.linalg.vector_norm(vector, axis=1, keepdims=True) + 1e-30)
    top = xp.sum((features @ vector) ** 2, axis=(1, 2)) / n
    trace = xp.sum(features**2, axis=(1, 2)) / n
    return np.stack([as_numpy(top), as_numpy(trace) / n], axis=1).astype(np.float64)


def least_squares(x: NDArray[Any], y: NDArray[Any], ridge: float) -> Floats:
    """argmin (1/n)‖Xθ − y‖² + ridge·‖θ‖², of minimal norm.

    By Cholesky where the Gram matrix is well conditioned; else by QR with pivoting, which is several times slower and
    allows singular matrices. Directions in which the columns differ by less than the precision of x (inches beside
    centimetres in float32) are treated as rounding errors.
    """
    (n, d), precision = x.shape, float(np.finfo(x.dtype).eps)
    if ridge == 0 and n > d and (quick := _by_cholesky(x, y)) is not None:
        return quick
    x, y = x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)
    if ridge == 0:
        solution: Floats = lstsq(x, y, cond=max(n, d) * precision, lapack_driver="gelsy")[0]
        return solution
    if d <= n:
        return np.asarray(solve(x.T @ x + n * ridge * np.eye(d), x.T @ y, assume_a="pos"))
    return np.asarray(x.T @ solve(x @ x.T + n * ridge * np.eye(n), y, assume_a="pos"))


def _by_cholesky(x: NDArray[Any], y: NDArray[Any]) -> Floats | None:
    """The solution of the normal equations; None where they are too ill-conditioned.

    In float64, by blocks of samples, since those of a whole cluster may be large.
    """
    d, step = x.shape[1], max(1, CACHED_ELEMENTS // x.shape[1])
    gram, moment = np.zeros((d, d)), np.zeros(d)
    for start in range(0, len(x), step):
        part = x[start : start + step].astype(np.float64, copy=False)
        gram += part.T @ part
        moment += part.T @ y[start : start + step].astype(np.float64, copy=False)
    factor, failed = dpotrf(gram)
    if failed or not dpocon(factor, np.abs(gram).sum(axis=0).max())[0] > WELL_CONDITIONED:
        return None
    return np.asarray(dpotrs(factor, moment)[0])


def float32_inverse(x: NDArray[Any], y: NDArray[Any], ridge: float) -> Floats:
    """(XᵀX)⁻¹Xᵀy in float32, the pseudo-inverse only where the determinant is not positive.

    As in the paper's published Three-Stage baseline, to reproduce it. Where d ≥ n the Gram matrix is singular, and the
    result consists of rounding errors; `least_squares` has no such problem.
    """
    x32, y32 = x.astype(np.float32), y.astype(np.float32)
    gram = x32.T @ x32 + np.float32(len(x) * ridge) * np.eye(x.shape[1], dtype=np.float32)
    moment = x32.T @ y32
    with np.errstate(all="ignore"):
        lu, pivots, _ = sgetrf(gram)
        swaps = np.count_nonzero(pivots != np.arange(len(pivots)))
        if (-1) ** swaps * np.prod(np.diag(lu)) > 0:  # in float32, where a small determinant is 0
            return np.asarray(sgetri(lu, pivots)[0] @ moment, dtype=np.float64)
        values, vectors = eigh(gram, driver="evd", check_finite=False)
        # NumPy's threshold for a pseudo-inverse, 1e-15, is far below the precision of float32: hardly any value is cut
        kept = np.abs(values) > 1e-15 * np.abs(values).max()
        inverses = np.where(kept, 1 / np.where(kept, values, 1), 0)
        return np.asarray(vectors @ (inverses * (vectors.T @ moment)), dtype=np.float64)


def smooth_minimiser(loss: Loss) -> Callable[[NDArray[Any], NDArray[Any], float], Floats]:
    """A function (x, y, ridge) -> local minimiser of a smooth convex loss, by L-BFGS from 0.

    Without ridge in coordinates in which the second moment of the features is the identity, so that the scale and the
    correlation of the columns do not matter; directions below the precision of x are left out, as in `least_squares`.
    On separable data without ridge there is no minimiser; the search then stops where the gradient is small.
    """

    def minimise(x: NDArray[Any], y: NDArray[Any], ridge: float) -> Floats:
        n, precision = len(x), float(np.finfo(x.dtype).eps)
        x, y = x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)
        basis = np.eye(x.shape[1]) if ridge else _whitening(x, precision)

        def objective(found: Floats) -> tuple[float, Floats]:
            weights = basis @ found.reshape(basis.shape[1], loss.outputs)
            scores = x @ weights
            gradient = basis.T @ (x.T @ loss.slope(scores, y) / n + 2 * ridge * weights)
            return float(loss.value(scores, y).mean() + ridge * (weights**2).sum()), gradient.ravel()

        start = np.zeros(basis.shape[1] * loss.outputs)
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options=UNTIL_SMALL).x
        return np.asarray(basis @ found.reshape(basis.shape[1], loss.outputs)).ravel()

    return minimise


def _whitening(x: Floats, precision: float) -> Floats:
    """(d, rank): W with span that of the rows of x and WᵀXᵀXW/n = I."""
    _, values, vectors = svd(np.linalg.qr(x, mode="r"), full_matrices=False)
    kept = values > precision * values[0]
    return np.asarray(vectors[kept].T * (np.sqrt(len(x)) / values[kept]))


def _check_classes(clients: Clients, classes: int) -> None:
    if clients.targets is None:
        return  # LinearModel raises the error
    wrong = ~np.isin(as_numpy(clients.targets), np.arange(classes))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        client = int(np.searchsorted(clients.offsets, row, side="right")) - 1
        raise ValueError(
            f"client {clients.names[client]}, row {row - clients.offsets[client] + 1}: target "
            f"{as_numpy(clients.targets)[row]} is not a class from 0 to {classes - 1}"
            + ("; more than two classes need softmax" if classes == 2 else "")
        )


def logistic_regression(clients: Clients) -> LinearModel:
    """Logistic regression; targets are 0 or 1, θ has one entry per feature column."""
    _check_classes(clients, 2)
    return LinearModel(clients, logistic_loss(), smooth_minimiser(logistic_loss()))


def softmax_regression(clients: Clients, classes: int) -> LinearModel:
    """Softmax regression; targets are 0 … classes − 1, θ is the flattened (columns, classes) matrix."""
    loss = softmax_loss(classes)
    _check_classes(clients, classes)
    return LinearModel(clients, loss, smooth_minimiser(loss))
