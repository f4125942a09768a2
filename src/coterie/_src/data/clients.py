"""The clients' samples, ragged by nature, and the truth about them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.arrays import Array, Bools, Ints, namespace

BLOCK_ELEMENTS = 1 << 24
"""Feature values in one block at most: it bounds the temporary memory of a pass over the data."""


class Block(NamedTuple):
    """Consecutive clients with the same number of samples, as one dense batch (views, no copy)."""

    start: int
    stop: int
    features: Array  # (stop - start, n, d)
    targets: Array | None  # (stop - start, n)


@dataclass(frozen=True)
class Clients:
    """The private samples of m clients, one after the other in two flat arrays.

    Parameters
    ----------
    features : array or tensor of shape (N, d)
        N = Σ n_i; for mean estimation these are the samples themselves. Whole numbers become float64.
    targets : array or tensor of shape (N,), or None
        What to predict; None for mean estimation.
    sizes : array of shape (m,)
        n_i ≥ 1, the number of samples of each client.
    names : tuple of str, optional
        One name per client, for reports; "0", "1", … by default.

    Examples
    --------
    >>> Clients(np.zeros((5, 3)), np.zeros(5), np.array([2, 3])).count
    2
    """

    features: Array
    targets: Array | None
    sizes: Ints
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = np.asarray(self.sizes, dtype=np.int64)
        object.__setattr__(self, "sizes", sizes)
        if self.features.ndim != 2:
            raise ValueError(f"features must have two axes (samples, columns), got shape {tuple(self.features.shape)}")
        xp = namespace(self.features)
        if not xp.isdtype(self.features.dtype, "real floating"):
            object.__setattr__(self, "features", xp.astype(self.features, xp.float64))
        if sizes.ndim != 1 or sizes.size == 0 or sizes.min() < 1:
            raise ValueError("sizes must hold at least one client, and every client at least one sample")
        if sizes.sum() != self.features.shape[0]:
            raise ValueError(f"sizes add up to {sizes.sum()} samples, but features has {self.features.shape[0]} rows")
        if self.targets is not None and tuple(self.targets.shape) != (self.features.shape[0],):
            raise ValueError(f"targets must have shape ({self.features.shape[0]},), got {tuple(self.targets.shape)}")
        if not self.names:
            object.__setattr__(self, "names", tuple(str(i) for i in range(sizes.size)))
        if len(self.names) != sizes.size:
            raise ValueError(f"names must hold one name per client ({sizes.size}), got {len(self.names)}")

    @cached_property
    def count(self) -> int:
        """m, the number of clients."""
        return int(self.sizes.size)

    @property
    def dim(self) -> int:
        """The number of feature columns."""
        return int(self.features.shape[1])

    @cached_property
    def offsets(self) -> Ints:
        """(m + 1,): client i owns the rows offsets[i] : offsets[i + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def samples(self, client: int) -> tuple[Array, Array | None]:
        """The features (n_i, d) and targets (n_i,) of one client, as views."""
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return self.features[rows, :], None if self.targets is None else self.targets[rows]

    def blocks(self, elements: int = BLOCK_ELEMENTS) -> Iterator[Block]:
        """Runs of neighbours with equal n_i as dense (c, n, d) batches of at most `elements` feature values.

        The only place that deals with raggedness: with equal n_i there is one block (or a few, by
        memory), with all n_i different there is one per client.
        """
        cuts = np.flatnonzero(np.diff(self.sizes)) + 1
        for first, last in zip([0, *cuts], [*cuts, self.count], strict=True):
            n = int(self.sizes[first])
            stride = max(1, elements // max(1, n * self.dim))
            for start in range(int(first), int(last), stride):
                stop = min(start + stride, int(last))
                rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
                xp = namespace(self.features)
                features = xp.reshape(self.features[rows, :], (stop - start, n, self.dim))
                targets = None if self.targets is None else xp.reshape(self.targets[rows], (stop - start, n))
                yield Block(start, stop, features, targets)

    def of_samples(self, rows: Ints | slice, sizes: Ints, names: tuple[str, ...]) -> Clients:
        """The clients with these rows of the flat arrays, in this order."""
        return Clients(self.features[rows], None if self.targets is None else self.targets[rows], sizes, names)

    def take(self, clients: Sequence[int] | Ints) -> Clients:
        """The given clients only, in the given order; of neighbours the samples are views, no copies."""
        chosen = np.asarray(clients, dtype=np.int64)
        rows: Ints | slice
        if len(chosen) and (np.diff(chosen) == 1).all():
            rows = slice(int(self.offsets[chosen[0]]), int(self.offsets[chosen[-1] + 1]))
        else:
            rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in chosen])
        return self.of_samples(rows, self.sizes[chosen], tuple(self.names[i] for i in chosen))

    def pool(self, clients: Sequence[int] | Ints) -> Clients:
        """One client that owns all samples of the given ones."""
        taken = self.take(clients)
        return Clients(taken.features, taken.targets, np.array([taken.sizes.sum()]), ("pooled",))

    def part(self, index: int, parts: int) -> Clients:
        """Part `index` of `parts` disjoint parts of every client's samples (re-sampling, Section 5).

        Part sizes of one client differ by at most one; every client needs n_i ≥ parts.
        """
        if not 0 <= index < parts:
            raise ValueError(f"index must be in [0, parts), got index={index}, parts={parts}")
        if self.sizes.min() < parts:
            raise ValueError(
                f"every client needs at least {parts} samples to be cut into {parts} parts, "
                f"the smallest has {self.sizes.min()}"
            )
        low = self.offsets[:-1] + self.sizes * index // parts
        high = self.offsets[:-1] + self.sizes * (index + 1) // parts
        rows = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
        return self.of_samples(rows, high - low, self.names)


@dataclass(frozen=True)
class Truth:
    """What nobody in the federation knows; only evaluation, attacks and the oracle may look.

    Parameters
    ----------
    centres : array of shape (k, d)
        θ*_j; (k, 0) where there are no true parameters.
    labels : array of shape (m,)
        The true cluster of every client, -1 for a Byzantine one.
    test : Clients, optional
        Samples of each cluster that no client has, as those of k clients, for the test accuracy of modules.

    Examples
    --------
    >>> truth = Truth(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([0, 1, -1]))
    >>> truth.is_byzantine.tolist(), truth.separation
    ([False, False, True], 5.0)
    """

    centres: Array
    labels: Ints
    test: Clients | None = None

    @property
    def is_byzantine(self) -> Bools:
        """(m,), True where the client is Byzantine."""
        return self.labels < 0

    @property
    def byzantine(self) -> Bools:
        """The old name of `is_byzantine`, until version 0.2."""
        warnings.warn("Truth.byzantine is now called is_byzantine", DeprecationWarning, stacklevel=2)
        return self.is_byzantine

    @property
    def separation(self) -> float:
        """Δ = min_{j≠j'} ‖θ*_j − θ*_j'‖; infinite for one cluster."""
        xp = namespace(self.centres)
        k = self.centres.shape[0]
        gaps = [
            float(xp.linalg.vector_norm(self.centres[i, :] - self.centres[j, :])) for i in range(k) for j in range(i)
        ]
        return min(gaps, default=float("inf"))


@dataclass(frozen=True)
class HeldOut:
    """Samples of the clients that no method sees, for evaluation.

    Parameters
    ----------
    clients : Clients
        The held-out samples of the clients that have some.
    owners : array of shape (clients.count,)
        The numbers of these clients, increasing.
    """

    clients: Clients
    owners: Ints


def hold_out(clients: Clients, fraction: float, rng: Generator) -> tuple[Clients, HeldOut | None]:
    """Split the samples of every client at random: those to learn from, and ⌊fraction·n_i⌋ to evaluate on.

    Returns None in the place of the second part where no client has enough samples for one.

    >>> clients = Clients(np.arange(5.0)[:, None], None, np.array([4, 1]))
    >>> rest, held_out = hold_out(clients, 0.5, np.random.default_rng(0))
    >>> rest.sizes.tolist(), held_out.clients.sizes.tolist(), held_out.owners.tolist()
    ([2, 1], [2], [0])
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"holdout must be at least 0 and less than 1, got {fraction}")
    counts = np.floor(clients.sizes * fraction).astype(np.int64)
    if not counts.any():
        return clients, None
    is_held = np.zeros(int(clients.sizes.sum()), dtype=np.bool_)
    for start, size, count in zip(clients.offsets[:-1], clients.sizes, counts, strict=True):
        is_held[start + rng.permutation(int(size))[:count]] = True
    owners = np.flatnonzero(counts)
    names = tuple(clients.names[i] for i in owners)
    held = clients.of_samples(np.flatnonzero(is_held), counts[owners], names)
    return clients.of_samples(np.flatnonzero(~is_held), clients.sizes - counts, clients.names), HeldOut(held, owners)


@dataclass(frozen=True)
class Federation:
    """Clients and, where it is known, the truth about them.

    Parameters
    ----------
    clients : Clients
        Their samples.
    truth : Truth, optional
        Which clients are Byzantine, the clusters of the others, and the true centres.
    held_out : HeldOut, optional
        Samples of the clients that no method sees, for evaluation.
    byzantine : array of bool of shape (m,), optional
        Which clients are Byzantine, where nothing else of the truth is known.

    Examples
    --------
    >>> clients = Clients(np.zeros((5, 3)), np.zeros(5), np.array([2, 3]))
    >>> Federation(clients, Truth(np.zeros((1, 3)), np.array([0, -1]))).is_byzantine.tolist()
    [False, True]
    """

    clients: Clients
    truth: Truth | None = None
    held_out: HeldOut | None = None
    byzantine: Bools | None = None

    @property
    def is_byzantine(self) -> Bools:
        """(m,), which clients are Byzantine; none where that is not known."""
        if self.truth is not None:
            return self.truth.is_byzantine
        return np.zeros(self.clients.count, dtype=np.bool_) if self.byzantine is None else self.byzantine
