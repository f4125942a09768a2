"""Tasks with a quadratic local risk: mean estimation, and linear regression from its Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from coterie._src.arrays import Array, Floats, Ints, as_numpy, cast, like, namespace
from coterie._src.data import Clients
from coterie._src.kernels import squared_loss as kernel
from coterie._src.kernels.elkan import AssignmentCache
from coterie._src.kernels.squared_loss import RegressionData
from coterie._src.tasks import shrinkage
from coterie._src.tasks.base import Response, assign
from coterie._src.tasks.linear import (
    LinearModel,
    gram_curvatures,
    least_squares,
    personal_regressions,
    second_moments,
    squared_loss,
)
from coterie._src.tasks.shrinkage import Anchor

BLOCK = 1 << 22
"""The number of values in the temporary arrays of a block of clients."""
GRAM_SHARE, GRAM_NUMBERS = 0.2, 1 << 24
"""The size limit of the Gram matrices: this share of the samples, or this many values, whichever is more."""

EXACT = 1e3
"""The smallest eigenvalue of a Gram matrix should be at least so many rounding errors."""


@dataclass(frozen=True)
class Quadratic:
    """F_i(θ) = floor_i + (θ − a_i)ᵀ G_i (θ − a_i), with G_i = I where `grams` is None.

    a_i is a local minimiser, so that no digits cancel: in the form θᵀGθ − 2bᵀθ + c the loss is a small difference of
    large numbers, which in float32 may be a rounding error.
    minima: (m, d), a_i. floors: (m,), F_i(a_i). grams: (m, d, d) or None. build: makes the same task for other clients.
    """

    clients: Clients
    minima: Array
    floors: Array
    grams: Array | None
    build: Callable[[Clients], Quadratic]

    @property
    def dim(self) -> int:
        return self.clients.dim

    @property
    def curvature_bound(self) -> float:
        return 2.0

    @property
    def has_curvatures(self) -> bool:
        return True

    @property
    def hessians_known(self) -> Literal["never", "constant"]:
        return "never" if self.grams is None else "constant"

    def on(self, clients: Clients) -> Quadratic:
        return self.build(clients)

    def poisoned(self, change: Callable[[Array, int], Array]) -> Quadratic:
        if self.clients.targets is None or self.grams is None:
            return self.on(replace(self.clients, features=change(self.clients.features, 0)))
        return self.on(replace(self.clients, targets=change(self.clients.targets, 0)))

    def with_targets_from(self, model: Array) -> Quadratic:
        features = self.clients.features
        if self.clients.targets is not None and self.grams is not None:
            return self.on(replace(self.clients, targets=features @ model))
        owner = np.repeat(np.arange(self.clients.count), self.clients.sizes)
        return self.on(replace(self.clients, features=features - self.minima[owner] + model[None, :]))

    def _times_gram(self, offsets: Array, some: slice) -> Array:
        """(c, r, d) -> (c, r, d): the offsets of some clients times their G_i."""
        return offsets if self.grams is None else offsets @ self.grams[some]

    def _blocks(self, numbers: int) -> Iterator[slice]:
        """Blocks of clients that need at most `BLOCK` values in all; numbers: the values per client."""
        together = max(1, BLOCK // numbers)
        for start in range(0, self.clients.count, together):
            yield slice(start, start + together)

    def losses(self, centres: Array) -> Array:
        if (data := self._kernel_data(centres)) is not None:
            each = [np.full(self.clients.count, j) for j in range(len(centres))]
            return np.stack([kernel.losses_and_gradients(data, centres, labels)[0] for labels in each], axis=1)
        xp, found = namespace(centres), []
        for block in self._blocks(centres.shape[0] * self.dim):
            offsets = centres[None, :, :] - self.minima[block][:, None, :]
            found.append(self.floors[block][:, None] + xp.sum(offsets * self._times_gram(offsets, block), axis=2))
        return xp.concat(found)

    def loss_variances(self, centres: Array, labels: Ints) -> Floats:
        """(m,): the variance of the losses of a client's samples at the centre that labels[i] names; NaN for one."""
        if self.grams is not None:
            return LinearModel(self.clients, squared_loss(), least_squares).loss_variances(centres, labels)
        xp, found = namespace(centres), np.full(self.clients.count, np.nan)
        for block in self.clients.blocks():
            if block.features.shape[1] > 1:
                offsets = block.features - centres[labels[block.start : block.stop]][:, None, :]
                each = as_numpy(xp.sum(offsets**2, axis=2)).astype(np.float64)
                found[block.start : block.stop] = each.var(axis=1, ddof=1)
        return found

    @cached_property
    def _data(self) -> RegressionData | None:
        """The data in the form of the kernels; None without Gram matrices, or where these are tensors."""
        return RegressionData.of_statistics(self.minima, self.floors, self.grams)

    def _kernel_data(self, centres: Array) -> RegressionData | None:
        return self._data if self._data is not None and self._data.fits(centres) else None

    def respond(self, centres: Array, cache: AssignmentCache | None = None) -> Response:
        if cache is not None and (data := self._kernel_data(centres)) is not None:
            found = kernel.best_centres(data, centres, cache, self.clients.features.nbytes)
            if found is not None:
                return Response(*found)
        labels = assign(self.losses(centres))
        return Response(labels, self.gradients(centres, labels))

    def gradients(self, centres: Array, labels: Ints) -> Array:
        if (data := self._kernel_data(centres)) is not None:
            return kernel.losses_and_gradients(data, centres, labels)[1]
        xp = namespace(centres)
        gradients = xp.empty((len(labels), self.dim), dtype=centres.dtype, device=centres.device)
        for block in self._blocks(self.dim):
            offsets = centres[labels[block]] - self.minima[block]
            gradients[block] = 2.0 * self._times_gram(offsets[:, None, :], block)[:, 0, :]
        return gradients

    def minimisers(self, ridge: float = 0.0) -> Array:
        if ridge == 0:
            return self.minima
        if self.grams is None:
            return self.minima / (1.0 + ridge)
        xp = namespace(self.minima)
        found, penalty = xp.empty_like(self.minima), ridge * like(np.eye(self.dim), self.grams)
        for block in self._blocks(self.dim * self.dim):
            grams = self.grams[block]
            found[block] = xp.linalg.solve(grams + penalty, grams @ self.minima[block][:, :, None])[:, :, 0]
        return found

    def personalised(self, centres: Array | None, labels: Ints | None) -> tuple[Array, Floats, tuple[Anchor, ...]]:
        """As `coterie._src.personal.personalise`."""
        if self.grams is not None:
            return personal_regressions(self.clients, centres, labels, squared_loss())
        fits = []
        for client, anchor in enumerate(shrinkage.anchors_of(centres, labels, self.clients.count)):
            samples = as_numpy(self.clients.samples(client)[0]).astype(np.float64)
            near = None if anchor is None else shrinkage.shrunk_mean(samples, anchor)
            fits.append(shrinkage.preferred(near, shrinkage.shrunk_mean(samples, None)))
        return shrinkage.collected(fits, self.clients.features if centres is None else centres)

    def curvatures(self) -> Floats:
        if self.grams is None:  # the Hessian is 2·I, without sampling error
            return np.broadcast_to([2.0, 0.0], (self.clients.count, 2)).copy()
        return self._curvatures

    def hessians(self, centres: Array, labels: Ints) -> Floats:
        if self.grams is None:
            raise ValueError("hessians: a mean has none that depends on the data")
        return second_moments(self.clients, 2.0)  # not the matrices of the task, which may be in float32

    @cached_property
    def _curvatures(self) -> Floats:
        """Computed once: all methods of a trial ask the same clients."""
        return 2.0 * gram_curvatures(self.clients)


def mean_estimation(clients: Clients) -> Quadratic:
    """Mean estimation with the square loss f(θ; z) = ‖θ − z‖² (Section 3); the minimiser is the sample mean."""
    xp = namespace(clients.features)
    if (clients.sizes == 1).all():
        return Quadratic(clients, clients.features, 0 * clients.features[:, 0], None, mean_estimation)
    means, spreads = [], []
    for block in clients.blocks():
        # in float64: a float32 sum over many samples far from 0 would lose digits
        mean = xp.mean(block.features, axis=1, dtype=xp.float64)
        means.append(cast(mean, block.features))
        offsets = block.features - means[-1][:, None, :]
        spreads.append(cast(xp.mean(xp.sum(offsets**2, axis=2), axis=1, dtype=xp.float64), block.features))
    return Quadratic(clients, xp.concat(means), xp.concat(spreads), None, mean_estimation)


def linear_regression(clients: Clients, form: Literal["auto", "direct", "gram"] = "auto") -> LinearModel | Quadratic:
    """Linear regression with the square loss f(θ; x, y) = (y − ⟨x, θ⟩)².

    `direct` reads X (n·d values per client) in every round, `gram` the matrices XᵀX/n (d² values), which are computed
    once. `auto` is gram where d is less than the mean n_i, where it is faster, unless the matrices need more than a
    fifth of the memory of X (d > n_i/5) and more than 64 MB in float32, or the columns are so correlated that the
    rounding errors of the matrices matter.
    """
    if form not in ("auto", "direct", "gram"):
        raise ValueError(f'form must be "auto", "direct" or "gram", got {form!r}')
    m, d, n = clients.count, clients.dim, clients.sizes.mean()
    small = d < n and (d <= GRAM_SHARE * n or m * d * d <= GRAM_NUMBERS)
    if form == "gram" or (form == "auto" and small):
        found = _gram_regression(clients)
        if form == "gram" or (_exact(found.grams) and _agree(found)):
            return found
    return LinearModel(clients, squared_loss(), least_squares)


def _exact(grams: Array) -> bool:
    """Whether the mean of the matrices is conditioned so well that their rounding errors do not matter."""
    mean = as_numpy(namespace(grams).mean(grams, axis=0)).astype(np.float64)
    used = np.flatnonzero(np.diag(mean) > 0)
    units = 1 / np.sqrt(np.diag(mean)[used])
    values = np.linalg.eigvalsh(mean[np.ix_(used, used)] * (units[:, None] * units))
    return not len(values) or bool(values[0] > EXACT * np.finfo(as_numpy(grams[:1]).dtype).eps * values[-1])


def _agree(found: Quadratic) -> bool:
    """Whether the loss at 0 is the mean square of the targets of every client: so the minimisers are not too far away.

    They are, in directions in which the columns of a client barely differ.
    """
    assert found.grams is not None
    zero = as_numpy(found.losses(0 * found.minima[:1, :]))[:, 0].astype(np.float64)
    owner = np.repeat(np.arange(found.clients.count), found.clients.sizes)
    squares = np.bincount(owner, as_numpy(found.clients.targets).astype(np.float64) ** 2) / found.clients.sizes
    tolerance = np.sqrt(np.finfo(as_numpy(found.minima[:1, :]).dtype).eps)
    return bool((np.abs(zero - squares) <= tolerance * squares).all())


def _gram_regression(clients: Clients) -> Quadratic:
    minima = LinearModel(clients, squared_loss(), least_squares).minimisers()
    xp, features = namespace(clients.features), clients.features
    floors = xp.empty((clients.count,), dtype=features.dtype, device=features.device)
    grams = xp.empty((clients.count, clients.dim, clients.dim), dtype=features.dtype, device=features.device)
    for block in clients.blocks(BLOCK >> 2):
        own = as_numpy(minima[block.start : block.stop, :]).astype(np.float64)
        residuals = np.einsum("cnd,cd->cn", as_numpy(block.features), own) - as_numpy(block.targets)
        floors[block.start : block.stop] = like((residuals**2).mean(axis=1), features)
        products = xp.permute_dims(block.features, (0, 2, 1)) @ block.features
        grams[block.start : block.stop] = products / block.features.shape[1]
    return Quadratic(clients, minima, floors, grams, _gram_regression)
