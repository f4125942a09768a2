"""Synthetic federations: the paper's mixture of regressions and its mean-estimation examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import DTypeLike, NDArray

from coterie._src.arrays import Floats, Ints
from coterie._src.data.clients import Clients, Federation, Truth

Samples = int | range | Sequence[int]
"""Samples per client: one number for all, a range to draw from, or one number per client."""


def unit_bernoulli(count: int, dim: int, rng: Generator) -> Floats:
    """(count, dim) vectors of Bernoulli(½) coordinates, rescaled to norm 1; a zero vector is redrawn."""
    vectors = rng.integers(0, 2, size=(count, dim)).astype(np.float64)
    while (empty := ~vectors.any(axis=1)).any():
        vectors[empty] = rng.integers(0, 2, size=(int(empty.sum()), dim))
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def byzantine_count(clients: int, fraction: float) -> int:
    """round(α·m), less than m."""
    if not 0 <= fraction < 1:
        raise ValueError(f"byzantine must be in [0, 1), got {fraction}")
    count = round(fraction * clients)
    if count >= clients:
        raise ValueError(f"byzantine = {fraction} leaves no honest client among {clients}")
    return count


def split_evenly(total: int, shares: Sequence[float]) -> Ints:
    """`total` clients over clusters in proportion to `shares`, by largest remainder (ties: first cluster).

    >>> split_evenly(10, [1 / 3, 1 / 3, 1 / 3]).tolist()
    [4, 3, 3]
    """
    quota = np.asarray(shares, dtype=np.float64) * total
    counts = np.floor(quota + 1e-9).astype(np.int64)
    largest_first = np.argsort(-(quota - counts).round(9), kind="stable")
    counts[largest_first[: total - counts.sum()]] += 1
    return counts


def draw_labels(clients: int, clusters: int, byzantine: float, shares: Sequence[float] | None) -> Ints:
    """(m,) true labels, cluster by cluster; the round(α·m) Byzantine clients come last, with label -1."""
    if clusters < 1:
        raise ValueError(f"clusters must be at least 1, got {clusters}")
    if clusters > clients:
        raise ValueError(f"clusters must be at most clients ({clients}), got {clusters}")
    if shares is None:
        shares = [1 / clusters] * clusters
    if len(shares) != clusters or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares must be {clusters} positive numbers that add up to 1, got {list(shares)}")
    byzantine_clients = byzantine_count(clients, byzantine)
    honest = clients - byzantine_clients
    counts = split_evenly(honest, shares)
    if counts.min() < 1:
        raise ValueError(
            f"every cluster needs an honest client: {honest} of them over {clusters} clusters "
            f"gives cluster {int(counts.argmin())} none"
        )
    return np.concatenate([np.repeat(np.arange(clusters), counts), np.full(byzantine_clients, -1)]).astype(np.int64)


def draw_sizes(clients: int, samples: Samples, rng: Generator) -> Ints:
    """(m,) numbers of samples n_i."""
    if isinstance(samples, range):
        if len(samples) == 0 or min(samples[0], samples[-1]) < 1:
            raise ValueError(f"samples must be a non-empty range of positive numbers, got {samples}")
        return samples.start + samples.step * rng.integers(len(samples), size=clients)
    sizes = np.broadcast_to(np.asarray(samples, dtype=np.int64), (clients,)) if isinstance(samples, int) else samples
    sizes = np.array(sizes, dtype=np.int64)
    if sizes.shape != (clients,):
        raise ValueError(f"samples must hold one number per client ({clients}), got {sizes.size}")
    if sizes.min() < 1:
        raise ValueError(f"samples must be at least 1, got {sizes.min()}")
    return sizes


class Layout(NamedTuple):
    """The labels, sizes and parameters of a synthetic federation."""

    labels: Ints  # (m,), -1 for a Byzantine client
    sizes: Ints  # (m,)
    centres: Floats  # (k, d), norm 1 as drawn
    byzantine_parameters: Floats  # (Byzantine clients, d), norm 3

    def client_parameters(self) -> Floats:
        """(m, d): the parameter that generates each client's samples; every Byzantine client has another one."""
        found = self.centres[self.labels]
        found[self.labels < 0] = self.byzantine_parameters
        return found

    def rows(self) -> Iterator[slice]:
        """Yield, for every client, the slice of its samples."""
        for size, end in zip(self.sizes, np.cumsum(self.sizes), strict=True):
            yield slice(int(end - size), int(end))

    def parameters(self) -> Iterator[tuple[slice, Floats]]:
        """Yield, for every client, the slice of its samples and the (d,) parameter that generates them."""
        own = iter(self.byzantine_parameters)
        for rows, label in zip(self.rows(), self.labels, strict=True):
            yield rows, self.centres[label] if label >= 0 else next(own)


def draw_layout(
    rng: Generator,
    clients: int,
    clusters: int,
    samples: Samples,
    dim: int,
    byzantine: float,
    shares: Sequence[float] | None,
    unit_vectors: Callable[[int, int, Generator], Floats] = unit_bernoulli,
) -> Layout:
    """Labels, sizes and parameters of a federation; unit_vectors: (count, dim, rng) -> (count, dim), of norm 1."""
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    labels = draw_labels(clients, clusters, byzantine, shares)
    sizes = draw_sizes(clients, samples, rng)
    centres = unit_vectors(clusters, dim, rng)
    return Layout(labels, sizes, centres, 3.0 * unit_vectors(int((labels < 0).sum()), dim, rng))


def mixed_regression(
    rng: Generator | int,
    *,
    clients: int = 200,
    clusters: int = 5,
    samples: Samples = 100,
    dim: int = 100,
    noise_variance: float = 0.2,
    byzantine: float = 0.05,
    shares: Sequence[float] | None = None,
    dtype: DTypeLike = np.float32,
) -> Federation:
    """A mixture of linear regressions (the paper's experiments).

    y = ⟨x, θ*_j⟩ + ε with x ~ N(0, I_d), ε ~ N(0, σ²) and θ*_j ~ Bernoulli(½)^d rescaled to norm 1.
    The data of each of the round(α·m) Byzantine clients come from other coefficients, of norm 3.

    Parameters
    ----------
    rng : Generator or int
        What everything is drawn from, or a seed.
    clients : int, default 200
        m, Byzantine ones included.
    clusters : int, default 5
        k.
    samples : int, range or sequence, default 100
        n_i: one number for all clients, a range to draw from, or one number for each.
    dim : int, default 100
        d, the dimension of a centre.
    noise_variance : float, default 0.2
        σ².
    byzantine : float, default 0.05
        α in [0, 1): round(α·m) clients are Byzantine; they come last.
    shares : sequence of float, optional
        The share of the honest clients in each cluster; by default all the same.
    dtype : data type, default float32
        Of samples, targets and true centres.

    Returns
    -------
    Federation
        The clients, and the truth about them.

    Examples
    --------
    >>> federation = mixed_regression(0, clients=8, clusters=2, dim=3, byzantine=0.25)
    >>> federation.clients.count, federation.truth.labels.tolist()
    (8, [0, 0, 0, 1, 1, 1, -1, -1])
    """
    rng, scale = default_rng(rng), noise_scale(noise_variance)
    layout = draw_layout(rng, clients, clusters, samples, dim, byzantine, shares)
    total = int(layout.sizes.sum())
    features = rng.standard_normal((total, dim), dtype=np.float32 if np.dtype(dtype) == np.float32 else np.float64)
    targets = scale * rng.standard_normal(total)
    for rows, parameter in layout.parameters():
        targets[rows] += features[rows] @ parameter
    return Federation(
        Clients(features.astype(dtype, copy=False), targets.astype(dtype), layout.sizes),
        Truth(layout.centres.astype(dtype), layout.labels),
    )


def gaussian_means(
    rng: Generator | int,
    *,
    clients: int = 200,
    clusters: int = 5,
    samples: Samples = 100,
    dim: int = 100,
    noise_variance: float = 0.2,
    byzantine: float = 0.05,
    shares: Sequence[float] | None = None,
    dtype: DTypeLike = np.float32,
) -> Federation:
    """Mean estimation (Section 3): z ~ N(θ*_j, σ² I_d), parameters as in `mixed_regression`.

    Parameters
    ----------
    rng : Generator or int
        What everything is drawn from, or a seed.
    clients : int, default 200
        m, Byzantine ones included.
    clusters : int, default 5
        k.
    samples : int, range or sequence, default 100
        n_i: one number for all clients, a range to draw from, or one number for each.
    dim : int, default 100
        d, the dimension of a centre.
    noise_variance : float, default 0.2
        σ².
    byzantine : float, default 0.05
        α in [0, 1): round(α·m) clients are Byzantine; they come last.
    shares : sequence of float, optional
        The share of the honest clients in each cluster; by default all the same.
    dtype : data type, default float32
        Of samples, targets and true centres.

    Returns
    -------
    Federation
        The clients, and the truth about them.

    Examples
    --------
    >>> gaussian_means(0, clients=8, clusters=2, samples=5, dim=3).clients.features.shape
    (40, 3)
    """
    rng, scale = default_rng(rng), noise_scale(noise_variance)
    layout = draw_layout(rng, clients, clusters, samples, dim, byzantine, shares)
    return _means(lambda mean, size: mean + scale * rng.standard_normal((size, dim)), layout, dtype)


def poisson_means(
    rng: Generator | int,
    *,
    clients: int = 200,
    clusters: int = 5,
    samples: Samples = 100,
    dim: int = 100,
    byzantine: float = 0.05,
    shares: Sequence[float] | None = None,
    dtype: DTypeLike = np.float32,
) -> Federation:
    """Poisson means (Section 5.3): every coordinate z^h ~ Poisson(λ*_j^h), parameters as in `mixed_regression`.

    The local means are not sub-Gaussian, as the analysis of Three-Stage assumes.
    """
    rng = default_rng(rng)
    layout = draw_layout(rng, clients, clusters, samples, dim, byzantine, shares)
    return _means(lambda mean, size: rng.poisson(mean, (size, dim)), layout, dtype)


def _means(draw: Callable[[Floats, int], NDArray[Any]], layout: Layout, dtype: DTypeLike) -> Federation:
    """Draw the samples client by client, so that no temporary array has the size of all samples."""
    samples = np.empty((int(layout.sizes.sum()), layout.centres.shape[1]), dtype=dtype)
    for rows, mean in layout.parameters():
        samples[rows] = draw(mean, rows.stop - rows.start)
    return Federation(Clients(samples, None, layout.sizes), Truth(layout.centres.astype(dtype), layout.labels))


def noise_scale(variance: float) -> float:
    """σ from σ²."""
    if not 0 <= variance < np.inf:
        raise ValueError(f"noise_variance must be at least 0 and finite, got {variance}")
    return float(np.sqrt(variance))
