"""Tasks whose local risk is a parabola: mean estimation, and linear regression through its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from coterie.arrays import Array, Floats, Ints, as_numpy, cast, compiled, like, namespace
from coterie.data import Clients
from coterie.tasks.linear_model import LinearModel, gram_curvatures, least_squares, squared_loss
from coterie.tasks.task import Choice, Response

BLOCK = 1 << 22
"""Numbers that the offsets of a block of clients may have."""


@dataclass(frozen=True)
class Quadratic:
    """F_i(θ) = floor_i + (θ − a_i)ᵀ G_i (θ − a_i), with G_i = I where `grams` is None.

    a_i is a local minimiser, so nothing cancels: in the textbook form θᵀGθ − 2bᵀθ + c the loss is a
    small difference of large numbers, and in float32 it can be all rounding error.
    minima: (m, d), a_i. floors: (m,), F_i(a_i). grams: (m, d, d) or None. build: the same task on other clients.
    """

    clients: Clients
    minima: Array
    floors: Array
    grams: Array | None
    build: Callable[[Clients], Quadratic]

    @property
    def dim(self) -> int:
        return self.clients.dim

    def on(self, clients: Clients) -> Quadratic:
        return self.build(clients)

    def flipped(self) -> Quadratic:
        if self.clients.targets is None:
            return self.on(replace(self.clients, features=-self.clients.features))
        return self.on(replace(self.clients, targets=-self.clients.targets))

    def posing(self, model: Array) -> Quadratic:
        features = self.clients.features
        if self.clients.targets is not None:
            return self.on(replace(self.clients, targets=features @ model))
        owner = np.repeat(np.arange(self.clients.count), self.clients.sizes)
        return self.on(replace(self.clients, features=features - self.minima[owner] + model[None, :]))

    def _steepen(self, offsets: Array, some: slice | Ints) -> Array:
        """(c, r, d) -> (c, r, d): the offsets of some clients times their G_i."""
        return offsets if self.grams is None else offsets @ self.grams[some]

    def _blocks(self, some: Ints | None, numbers: int) -> Iterator[tuple[slice, slice | Ints]]:
        """Places and clients, so many at a time that `numbers` for each of them are not too many."""
        count, together = self.clients.count if some is None else len(some), max(1, BLOCK // numbers)
        for start in range(0, max(count, 1), together):
            places = slice(start, min(start + together, count))
            yield places, places if some is None else some[places]

    def losses(self, centres: Array) -> Array:
        xp, found = namespace(centres), []
        for _, block in self._blocks(None, centres.shape[0] * self.dim):
            offsets = centres[None, :, :] - self.minima[block][:, None, :]
            found.append(self.floors[block][:, None] + xp.sum(offsets * self._steepen(offsets, block), axis=2))
        return xp.concat(found)

    def visit(self, centres: Array, labels: Ints, some: Ints | None = None) -> tuple[Array, Array]:
        if self.revisits(centres):
            return self._visit_compiled(centres, labels, some)
        xp, losses = namespace(centres), []
        gradients = xp.empty((len(labels), self.dim), dtype=centres.dtype, device=centres.device)
        for places, block in self._blocks(some, self.dim):
            offsets = centres[labels[places]] - self.minima[block]
            steep = self._steepen(offsets[:, None, :], block)[:, 0, :]
            losses.append(self.floors[block] + xp.sum(offsets * steep, axis=1))
            gradients[places] = 2.0 * steep
        return xp.concat(losses), gradients

    def _visit_compiled(self, centres: Array, labels: Ints, some: Ints | None) -> tuple[Array, Array]:
        some = np.arange(self.clients.count) if some is None else some
        losses = np.empty(len(some), dtype=centres.dtype)
        gradients = np.empty((len(some), self.dim), dtype=centres.dtype)
        _visit(self.minima, self.floors, self.grams, some, centres, labels, losses, gradients)
        return losses, gradients

    def revisits(self, centres: Array) -> bool:
        return isinstance(centres, np.ndarray) and self.grams is not None

    def respond(self, centres: Array, choose: Choice) -> Response:
        losses = self.losses(centres)
        labels = choose(losses)
        return Response(losses, labels, self.gradients(centres, labels))

    def gradients(self, centres: Array, labels: Ints) -> Array:
        return self.visit(centres, labels)[1]

    def minimisers(self, ridge: float = 0.0) -> Array:
        if ridge == 0:
            return self.minima
        if self.grams is None:
            return self.minima / (1.0 + ridge)
        xp = namespace(self.minima)
        tilted = self.grams + ridge * xp.eye(self.dim, dtype=self.grams.dtype, device=self.grams.device)
        return xp.linalg.solve(tilted, self.grams @ self.minima[:, :, None])[:, :, 0]

    def curvatures(self) -> Floats:
        if self.grams is None:  # the Hessian is 2·I, known without any sampling error
            return np.broadcast_to([2.0, 0.0], (self.clients.count, 2)).copy()
        return self._curvatures

    @cached_property
    def _curvatures(self) -> Floats:
        """Kept: all methods of a trial ask the same clients."""
        return 2.0 * np.concatenate([gram_curvatures(block.features) for block in self.clients.blocks()])


@partial(compiled, reorder=True)
def _visit(
    minima: Floats,
    floors: Floats,
    grams: Floats,
    some: Ints,
    centres: Floats,
    labels: Ints,
    losses: Floats,
    gradients: Floats,
) -> None:
    """losses[p], gradients[p] = F_i(θ), ∇F_i(θ) with θ = centres[labels[p]] for client i = some[p], in Gram form."""
    offset = np.empty(centres.shape[1], dtype=centres.dtype)
    for p in range(len(some)):
        gram, gradient, total = grams[some[p]], gradients[p], np.float64(floors[some[p]])
        offset[:] = centres[labels[p]] - minima[some[p]]
        for row in range(len(offset)):
            values, steep = gram[row], centres.dtype.type(0)
            for c in range(len(offset)):
                steep += values[c] * offset[c]
            gradient[row] = 2 * steep
            total += np.float64(offset[row]) * np.float64(steep)
        losses[p] = total


def mean_estimation(clients: Clients) -> Quadratic:
    """Mean estimation with the square loss f(θ; z) = ‖θ − z‖² (Section 3); the minimiser is the sample mean."""
    xp = namespace(clients.features)
    if (clients.sizes == 1).all():
        return Quadratic(clients, clients.features, 0 * clients.features[:, 0], None, mean_estimation)
    means, spreads = [], []
    for block in clients.blocks():
        # float64: a float32 sum of many samples far from 0 loses its digits
        mean = xp.mean(block.features, axis=1, dtype=xp.float64)
        means.append(cast(mean, block.features))
        offsets = block.features - means[-1][:, None, :]
        spreads.append(cast(xp.mean(xp.sum(offsets**2, axis=2), axis=1, dtype=xp.float64), block.features))
    return Quadratic(clients, xp.concat(means), xp.concat(spreads), None, mean_estimation)


def linear_regression(clients: Clients, form: Literal["auto", "direct", "gram"] = "auto") -> LinearModel | Quadratic:
    """Linear regression with the square loss f(θ; x, y) = (y − ⟨x, θ⟩)².

    `direct` reads X (n·d numbers per client) in every round, `gram` the statistics XᵀX/n (d²) that are
    computed once; `auto` takes the smaller: gram when d is less than the mean n_i.
    """
    if form not in ("auto", "direct", "gram"):
        raise ValueError(f'form must be "auto", "direct" or "gram", got {form!r}')
    direct = LinearModel(clients, squared_loss(), least_squares)
    if form == "direct" or (form == "auto" and clients.dim >= clients.sizes.mean()):
        return direct
    return _gram_regression(clients)


def _gram_regression(clients: Clients) -> Quadratic:
    minima = LinearModel(clients, squared_loss(), least_squares).minimisers()
    floors, grams = [], []
    xp = namespace(clients.features)
    for block in clients.blocks():
        own = as_numpy(minima[block.start : block.stop, :]).astype(np.float64)
        residuals = np.einsum("cnd,cd->cn", as_numpy(block.features), own) - as_numpy(block.targets)
        floors.append(like((residuals**2).mean(axis=1), clients.features))
        grams.append(xp.permute_dims(block.features, (0, 2, 1)) @ block.features / block.features.shape[1])
    return Quadratic(clients, minima, xp.concat(floors), xp.concat(grams), _gram_regression)
