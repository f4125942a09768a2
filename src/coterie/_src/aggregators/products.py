"""The inner products of rows around a centre, G_ij = ⟨x_i − c, x_j − c⟩, and the operations on them that rules need.

There are two representations: G itself, (rows, rows), whatever the number of columns; or, for many rows of few columns,
the centred rows C with G = CCᵀ, so that memory does not grow with the square of the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import device, is_numpy_array
from scipy.linalg import eigh
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from coterie._src.aggregators.columns import SHARD, ranges
from coterie._src.aggregators.neighbours import components, nearest_distances
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like, namespace, on_gpu
from coterie._src.kernels.pairwise import BLOCK, add_squared_distances, squared_products

CUDA_BLOCK = 1 << 15
"""Columns of a block on a GPU, where smaller blocks would leave it idle."""
COPY = 0.1
"""Rows are copies if their distance is less than this many times the typical distance of a row to its nearest one."""
PAIRS = 1 << 20
"""The number of distances that are computed at a time."""
ALL_PAIRS = 4096
"""Up to so many rows copies are found among all pairs of them, beyond among those that `neighbours` compares."""
SAMPLE = 1 << 20
"""At most this many pairs of rows are used to estimate the noise: their median is as good as that of all pairs."""
EXACT = 1e-14
"""A squared distance below this share of the rows' squared norms is a rounding error, and counts as 0."""
LANCZOS = 0.01
"""If fewer than this share of all eigenvectors are needed, a Lanczos iteration is faster than a decomposition."""
SQUARINGS = 12
"""On a GPU the leading eigenvector is found by squaring the matrix this many times. If the second eigenvalue is 1 %
smaller than the first, it is reduced to 1e-18 of it; if they are nearly equal, either eigenvector will do."""


@dataclass(frozen=True)
class Dense:
    """G itself, as a NumPy array of float64 or as a tensor on the device of the rows."""

    gram: Array

    def __len__(self) -> int:
        return len(self.gram)

    @cached_property
    def squares(self) -> Floats:
        """(rows,): ‖x_i − c‖², the diagonal."""
        return as_numpy(namespace(self.gram).linalg.diagonal(self.gram))

    def __add__(self, other: Products) -> Dense:
        """The products of the rows with the columns of both."""
        return Dense(self.gram + other.dense().gram)

    def dense(self) -> Dense:
        return self

    def scaled(self, factors: Floats) -> Dense:
        """p_i p_j G_ij."""
        column = like(factors, self.gram)
        return Dense(self.gram * column[:, None] * column)

    def among(self, rows: Ints) -> Dense:
        """The products of some of the rows."""
        xp = namespace(self.gram)
        indices = rows if is_numpy_array(self.gram) else xp.asarray(rows, device=self.gram.device)
        return Dense(xp.take(xp.take(self.gram, indices, axis=0), indices, axis=1))

    def merged(self, means: csr_matrix) -> Dense:
        """The products of means of rows; means: (groups, rows), the matrix of `group_means`."""
        shares = like(means.toarray(), self.gram)
        return Dense(shares @ self.gram @ namespace(shares).permute_dims(shares, (1, 0)))

    def centred(self, counts: Floats) -> Dense:
        """√w_i √w_j ⟨x_i − μ, x_j − μ⟩ with μ the weighted mean."""
        shares = like(counts / counts.sum(), self.gram)
        towards = self.gram @ shares
        root = like(np.sqrt(counts), self.gram)
        return Dense((self.gram - towards[:, None] - towards + shares @ towards) * root * root[:, None])

    def times(self, shares: Array) -> Array:
        """Gs."""
        return self.gram @ shares

    def copies(self, max_size: int) -> Ints:
        """See the function `copies`."""
        xp, squares = namespace(self.gram), namespace(self.gram).linalg.diagonal(self.gram)
        sums = squares + squares[:, None]
        between = sums - 2 * self.gram
        return copies(xp.where(between < EXACT * sums, 0.0 * between, between), max_size)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        """All eigenvalues, ascending, and eigenvectors: on a GPU some take about as long as all."""
        values, vectors = namespace(self.gram).linalg.eigh(self.gram)
        return values, vectors

    def leading(self, count: int) -> tuple[Array, Array]:
        """The `count` largest eigenvalues in ascending order, (count,), and their eigenvectors, (rows, count)."""
        gram, xp = self.gram, namespace(self.gram)
        if not is_numpy_array(gram):
            if count > 1:
                values, vectors = self._spectrum
                return values[-count:], vectors[:, -count:]
            # on a GPU a few large products are faster than the many small steps of an iteration
            power, squares = gram, xp.linalg.diagonal(gram)
            for i in range(SQUARINGS):
                if i % 4 == 0:  # the largest eigenvalue is then at least 1/c, so that its 16th power does not underflow
                    power = power / xp.linalg.trace(power)
                power = power @ power
            vector = gram @ (power @ xp.sqrt(xp.clip(squares, 0, None)))
            vector = vector / xp.linalg.vector_norm(vector)
            return (vector @ gram @ vector)[None], vector[:, None]
        if count < LANCZOS * len(gram):
            with suppress(ArpackNoConvergence):
                values, vectors = eigsh(gram, count, v0=np.sqrt(np.maximum(np.diag(gram), 0.0)), tol=1e-8)
                return values, vectors
        values, vectors = eigh(gram, subset_by_index=[len(gram) - count, len(gram) - 1])
        if vectors.shape[1] < count:  # LAPACK may find too few where eigenvalues are equal
            values, vectors = eigh(gram)
        return values[-count:], vectors[:, -count:]

    def without(self, values: Array, vectors: Array) -> Dense:
        """The products without the directions of some eigenvectors."""
        return Dense(self.gram - (vectors * values) @ vectors.T)

    def squared_pairs(self, rows: Ints) -> Array:
        """G_ij² of all pairs of different rows of a choice: each pair once, or each in both orders."""
        if is_numpy_array(self.gram):
            found = np.empty(len(rows) * (len(rows) - 1) // 2)
            squared_products(np.ascontiguousarray(self.gram), rows, found)
            return found
        xp, c = namespace(self.gram), len(rows)
        each = xp.reshape(self.among(rows).gram, (-1,))
        without_diagonal = xp.reshape(each[1:], (c - 1, c + 1))[:, :-1]
        return xp.reshape(without_diagonal, (-1,)) ** 2


@dataclass(frozen=True)
class Tall:
    """The centred rows C, (rows, columns), in NumPy's float64, with more rows than columns. Methods as in `Dense`."""

    away: Floats

    def __len__(self) -> int:
        return len(self.away)

    @cached_property
    def squares(self) -> Floats:
        found: Floats = np.einsum("ij,ij->i", self.away, self.away)
        return found

    def __add__(self, other: Products) -> Products:
        if isinstance(other, Dense):
            return self.dense() + other
        return Tall(np.concatenate([self.away, other.away], axis=1))

    def dense(self) -> Dense:
        with np.errstate(over="ignore", invalid="ignore"):
            return Dense(self.away @ self.away.T)

    def scaled(self, factors: Floats) -> Tall:
        return Tall(self.away * factors[:, None])

    def among(self, rows: Ints) -> Tall:
        return Tall(self.away[rows])

    def merged(self, means: csr_matrix) -> Tall:
        return Tall(means @ self.away)

    def centred(self, counts: Floats) -> Tall:
        return Tall((self.away - counts / counts.sum() @ self.away) * np.sqrt(counts)[:, None])

    def times(self, shares: Floats) -> Floats:
        found: Floats = self.away @ (self.away.T @ shares)
        return found

    def copies(self, max_size: int) -> Ints:
        return copies_among(self.away, max_size, self._squared_distances)

    def _squared_distances(self, some: Ints, others: Ints) -> Floats:
        """(some, others): squared distances by products, several times faster than by differences."""
        sums = self.squares[some][:, None] + self.squares[others]
        found: Floats = sums - 2 * self.away[some] @ self.away[others].T
        found[found < EXACT * sums] = 0.0
        return found

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of CᵀC, which has all nonzero eigenvalues of G."""
        values, axes = eigh(self.away.T @ self.away)
        return values, axes

    def leading(self, count: int) -> tuple[Floats, Floats]:
        values, axes = self._spectrum
        values, axes = np.maximum(values[-count:], 0.0), axes[:, -count:]
        vectors = self.away @ axes
        return values, vectors / np.maximum(np.linalg.norm(vectors, axis=0), 1e-300)

    def without(self, values: Floats, vectors: Floats) -> Tall:
        return Tall(self.away - vectors @ (vectors.T @ self.away))

    def squared_pairs(self, rows: Ints) -> Floats:
        """As `Dense.squared_pairs`, but for very many rows a subset of the pairs.

        Every row is in the same number of pairs, so a share α of the rows is in at most a share 2α of the pairs.
        """
        away, c = self.away[rows], len(rows)
        if c * (c - 1) // 2 <= SAMPLE:
            found: Floats = Dense(away @ away.T).squared_pairs(np.arange(c))
            return found
        apart = np.unique(np.linspace(1, (c - 1) // 2, max(1, SAMPLE // c)).astype(np.int64))
        ring = np.concatenate([away, away])
        return np.concatenate([np.einsum("ij,ij->i", away, ring[s : s + c]) for s in apart]) ** 2


Products = Dense | Tall


def around(updates: Array, centre: Array) -> Products:
    """The products ⟨x_i − c, x_j − c⟩ of the rows around a centre, in the smaller representation.

    Those with a row too far for float64 are not finite.

    >>> around(np.array([[3.0, 4.0], [0.0, 2.0]]), np.zeros(2)).times(np.array([1.0, 0.0])).tolist()
    [25.0, 8.0]
    """
    rows, columns = updates.shape
    if is_numpy_array(updates) and 0 < 2 * columns < rows:
        return Tall(np.concatenate(list(centred_blocks(updates, centre)), axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        return Dense(products_around(updates, centre))


def in_numpy(products: Products, fewest_on_gpu: float = np.inf) -> Products:
    """The products as NumPy arrays; those of so many rows and more stay on a GPU."""
    if isinstance(products, Tall) or (on_gpu(products.gram) and len(products) >= fewest_on_gpu):
        return products
    return Dense(as_numpy(products.gram))


def products_around(updates: Array, centre: Array, factors: Floats | None = None) -> Array:
    """(rows, rows) float64: ⟨p_i (x_i − c), p_j (x_j − c)⟩, computed by blocks of columns on the device of the rows.

    factors: (rows,), the p_i; None for 1.
    """
    xp, rows = namespace(updates), updates.shape[0]
    column = like(np.ones((rows, 1)) if factors is None else factors[:, None], xp.astype(updates[:1, :1], xp.float64))
    gram, columns = like(np.zeros((rows, rows)), column), updates.shape[1]
    for start, stop in ranges(columns, columns if on_gpu(updates) else SHARD):
        total = xp.zeros_like(gram)
        for block in centred_blocks(updates[:, start:stop], centre[start:stop]):
            scaled = block if factors is None else block * column
            total += scaled @ xp.permute_dims(scaled, (1, 0))
        gram += total
    return gram


def centred_blocks(updates: Array, point: Array) -> Iterator[Array]:
    """Yield updates − point by blocks of columns, in float64."""
    xp = namespace(updates)
    width = BLOCK if is_numpy_array(updates) or updates.device.type == "cpu" else CUDA_BLOCK
    for start in range(0, updates.shape[1], width):
        stop = start + width
        yield xp.astype(updates[:, start:stop], xp.float64) - xp.astype(point[start:stop], xp.float64)


def copies(squares: Array, max_size: int) -> Ints:
    """(rows,): the group of every row, 0, 1, …, from the (rows, rows) squared distances; copies share a group.

    Honest updates have independent noise and are hardly ever as near each other as copies (see `COPY`); a copy adds no
    information. Copies of copies are copies. A group of more than `max_size` rows is split into single rows: if fewer
    rows are Byzantine, it has honest members, such as clients with so many samples that their updates agree.

    >>> points = np.array([0.0, 1.0, 2.0, 3.0, 1.01])
    >>> copies((points[:, None] - points) ** 2, max_size=2).tolist()
    [0, 1, 2, 3, 1]
    """
    xp = namespace(squares)
    itself = xp.eye(len(squares), dtype=squares.dtype, device=device(squares)) > 0
    between = xp.where(itself, np.inf, xp.clip(squares, 0, None))
    nearest = as_numpy(xp.min(between, axis=1))
    near = COPY**2 * typical_distance(nearest)
    if not (nearest < near).any():
        return np.arange(len(squares))
    return _groups(connected_components(csr_matrix(as_numpy(between < near)), directed=False)[1], max_size)


def copies_among(
    points: Floats, max_size: int, squared_distances: Callable[[Ints, Ints], Floats] | None = None
) -> Ints:
    """`copies` of (rows, d) points, by blocks, so that not all squared distances are in memory at once.

    For more than `ALL_PAIRS` rows the work grows in proportion to the rows. Then the typical distance is that of some
    of them, and two rows that are hardly near enough to be copies may be missed (see `neighbours`).

    squared_distances: from two index arrays to the squared distances; default: computed from differences.

    >>> copies_among(np.array([[0.0], [1.0], [2.0], [3.0], [1.01]]), max_size=2).tolist()
    [0, 1, 2, 3, 1]
    """
    if len(points) > ALL_PAIRS:
        near = COPY * math.sqrt(typical_distance(nearest_distances(points)))
        return _groups(components(points, near), max_size)
    rows = np.arange(len(points))

    def between(some: Ints, others: Ints) -> Iterator[tuple[Ints, Floats]]:
        step, targets = max(1, PAIRS // len(points)), points[others]
        for part in (some[start : start + step] for start in range(0, len(some), step)):
            squares: Floats
            if squared_distances is None:
                squares = np.zeros((len(part), len(others)))
                add_squared_distances(points[part], targets, (0, points.shape[1]), False, squares)
            else:
                squares = squared_distances(part, others)
            squares[np.arange(len(part)), np.searchsorted(others, part)] = np.inf
            yield part, squares

    nearest = np.concatenate([squares.min(axis=1) for _, squares in between(rows, rows)])
    near = COPY**2 * typical_distance(nearest)
    close = np.flatnonzero(nearest < near)
    if len(close) == 0:
        return rows
    group = first = rows  # the links found so far are kept as links to the first row of each group
    for part, squares in between(close, close):
        i, j = np.nonzero(squares < near)
        ends = np.concatenate([part[i], rows]), np.concatenate([close[j], first[group]])
        linked = csr_matrix((np.ones(len(ends[0]), dtype=np.int8), ends), (len(rows), len(rows)))
        group = connected_components(linked, directed=False)[1]
        first = np.unique(group, return_index=True)[1]
    return _groups(group, max_size)


def _groups(components: Ints, max_size: int) -> Ints:
    """(rows,): the components, with those of more than `max_size` rows split, numbered in the order of the rows."""
    groups = np.asarray(components, dtype=np.int64)
    too_large = np.bincount(groups)[groups] > max_size
    groups[too_large] = groups.max() + 1 + np.arange(too_large.sum())
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def group_means(groups: Ints) -> csr_matrix:
    """(groups, rows): the matrix that maps rows to the means of their groups; each column has one nonzero entry."""
    return csr_matrix((1 / np.bincount(groups)[groups], (groups, np.arange(len(groups)))))


def typical_distance(distances: Floats) -> float:
    """The median distance; if it is 0, the median of the positive distances."""
    middle = float(np.median(distances))
    return float(np.median(distances[distances > 0])) if middle == 0 and distances.any() else middle
