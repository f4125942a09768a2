"""The products of rows around a centre, G_ij = ⟨x_i − c, x_j − c⟩, and what the rules want to know of them.

Two forms of the same: G itself, (rows, rows), whatever the number of columns; or, where the rows are many and their
columns few, the centred rows C with G = CCᵀ, of which nothing grows with the square of the rows but time.
"""

from __future__ import annotations

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

from coterie._src.arrays import Array, Floats, Ints, as_numpy, like, namespace
from coterie._src.kernels.pairwise import BLOCK, add_squared_distances

CUDA_BLOCK = 1 << 15
"""Columns of a block on a GPU, where a small one is over before the next is begun."""
COPY = 0.1
"""Rows nearer to each other than this many times the typical distance to the nearest other one are copies."""
PAIRS = 1 << 20
"""Distances that are looked at together."""
SAMPLE = 1 << 20
"""Pairs of rows that noise is judged by, where there are more: the median of so many is as good as exact."""
EXACT = 1e-14
"""A squared distance below this share of the two rows' own is rounding, and they are the same."""
LANCZOS = 0.01
"""Below this share of all directions an iteration is faster than a decomposition."""
SQUARINGS = 12
"""On a GPU the leading direction is that of the products squared so often: where the second eigenvalue is 1 % smaller,
what is left of it is 1e-18; where it is nearly the same, so is the direction's."""


@dataclass(frozen=True)
class Dense:
    """G, as NumPy's float64 or a tensor where the rows are."""

    gram: Array

    def __len__(self) -> int:
        return len(self.gram)

    @cached_property
    def squares(self) -> Floats:
        """(rows,): ‖x_i − c‖², the diagonal."""
        return as_numpy(namespace(self.gram).linalg.diagonal(self.gram))

    def among(self, rows: Ints) -> Dense:
        """Those between the rows of a choice."""
        xp = namespace(self.gram)
        places = rows if is_numpy_array(self.gram) else xp.asarray(rows, device=self.gram.device)
        return Dense(xp.take(xp.take(self.gram, places, axis=0), places, axis=1))

    def merged(self, means: csr_matrix) -> Dense:
        """Those of means of rows, (groups, rows)."""
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

    def copies(self, most: int) -> Ints:
        """See the function `copies`."""
        xp, squares = namespace(self.gram), namespace(self.gram).linalg.diagonal(self.gram)
        sums = squares + squares[:, None]
        between = sums - 2 * self.gram
        return copies(xp.where(between < EXACT * sums, 0.0 * between, between), most)

    def leading(self, count: int) -> tuple[Array, Array]:
        """The largest eigenvalues, ascending, and their vectors; a few of many by an iteration."""
        gram, xp = self.gram, namespace(self.gram)
        if not is_numpy_array(gram):
            if count > 1:
                values, vectors = xp.linalg.eigh(gram)
                return values[-count:], vectors[:, -count:]
            # a GPU is done with a product before an iteration's next step is begun
            power, squares = gram, xp.linalg.diagonal(gram)
            for i in range(SQUARINGS):
                if i % 4 == 0:  # the largest of c eigenvalues is then 1/c at least, and c⁻¹⁶ is no small number yet
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
        """Without some of the leading directions."""
        return Dense(self.gram - (vectors * values) @ vectors.T)

    def squared_pairs(self, rows: Ints) -> Array:
        """G_ij² of the pairs of different rows of a choice, each in both orders."""
        xp, c = namespace(self.gram), len(rows)
        each = xp.reshape(self.among(rows).gram, (-1,))
        without_diagonal = xp.reshape(each[1:], (c - 1, c + 1))[:, :-1]
        return xp.reshape(without_diagonal, (-1,)) ** 2


@dataclass(frozen=True)
class Tall:
    """C, (rows, columns) with more rows than columns, in NumPy's float64. The methods are those of `Dense`."""

    away: Floats

    def __len__(self) -> int:
        return len(self.away)

    @cached_property
    def squares(self) -> Floats:
        found: Floats = np.einsum("ij,ij->i", self.away, self.away)
        return found

    def among(self, rows: Ints) -> Tall:
        return Tall(self.away[rows])

    def merged(self, means: csr_matrix) -> Tall:
        return Tall(means @ self.away)

    def centred(self, counts: Floats) -> Tall:
        return Tall((self.away - counts / counts.sum() @ self.away) * np.sqrt(counts)[:, None])

    def times(self, shares: Floats) -> Floats:
        found: Floats = self.away @ (self.away.T @ shares)
        return found

    def copies(self, most: int) -> Ints:
        return copies_among(self.away, most, self._squared_distances)

    def _squared_distances(self, some: Ints, others: Ints) -> Floats:
        """By products, which is several times faster than by differences."""
        sums = self.squares[some][:, None] + self.squares[others]
        found: Floats = sums - 2 * self.away[some] @ self.away[others].T
        found[found < EXACT * sums] = 0.0
        return found

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        """Of CᵀC, which has all eigenvalues of G that are not 0."""
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
        """Of very many rows some pairs: each row with the same number of others, so that nobody's pairs count more.

        A share α of the rows has a part in 2α of these at most, whoever they are, as of all.
        """
        away, c = self.away[rows], len(rows)
        if c * (c - 1) // 2 <= SAMPLE:
            found: Floats = Dense(away @ away.T).squared_pairs(np.arange(c))
            return found
        apart = np.unique(np.linspace(1, (c - 1) // 2, max(1, SAMPLE // c)).astype(np.int64))
        ring = np.concatenate([away, away])
        return np.concatenate([np.einsum("ij,ij->i", away, ring[s : s + c]) for s in apart]) ** 2


Products = Dense | Tall


def around(updates: Array, centre: Array, pull: Floats | None = None) -> Products:
    """The products of the rows around a centre, in the form that takes less.

    pull: (rows,), factors p_i that bring rows nearer: ⟨p_i (x_i − c), p_j (x_j − c)⟩; None for 1.

    >>> around(np.array([[3.0, 4.0], [0.0, 2.0]]), np.zeros(2)).times(np.array([1.0, 0.0])).tolist()
    [25.0, 8.0]
    """
    rows, columns = updates.shape
    if is_numpy_array(updates) and 0 < 2 * columns < rows:
        away = np.concatenate(list(centred_blocks(updates, centre)), axis=1)
        return Tall(away if pull is None else away * pull[:, None])
    return Dense(products_around(updates, centre, pull))


def in_numpy(products: Products) -> Products:
    """The same, no longer as a tensor."""
    return Dense(as_numpy(products.gram)) if isinstance(products, Dense) else products


def products_around(updates: Array, centre: Array, pull: Floats | None = None) -> Array:
    """(rows, rows) float64: ⟨p_i (x_i − c), p_j (x_j − c)⟩, a block of columns at a time, where the rows are.

    pull: (rows,), the p_i; None for 1.
    """
    xp, rows = namespace(updates), updates.shape[0]
    factors = like(np.ones((rows, 1)) if pull is None else pull[:, None], xp.astype(updates[:1, :1], xp.float64))
    gram = like(np.zeros((rows, rows)), factors)
    for block in centred_blocks(updates, centre):
        pulled = block if pull is None else block * factors
        gram += pulled @ xp.permute_dims(pulled, (1, 0))
    return gram


def centred_blocks(updates: Array, point: Array) -> Iterator[Array]:
    """The columns in blocks, less the point, in float64."""
    xp = namespace(updates)
    width = BLOCK if is_numpy_array(updates) or updates.device.type == "cpu" else CUDA_BLOCK
    for start in range(0, updates.shape[1], width):
        stop = start + width
        yield xp.astype(updates[:, start:stop], xp.float64) - xp.astype(point[start:stop], xp.float64)


def copies(squares: Array, most: int) -> Ints:
    """(rows,): the group of every row, 0, 1, …, from the (rows, rows) squared distances; copies share a group.

    Honest clients have noise of their own, and are hardly ever that near each other; who says the same as another one
    adds nothing to it. Copies of copies are copies. A group of more than `most` rows is none: if there are no more
    liars than that, these are honest, such as clients with so many samples that they agree.

    >>> points = np.array([0.0, 1.0, 2.0, 3.0, 1.01])
    >>> copies((points[:, None] - points) ** 2, most=2).tolist()
    [0, 1, 2, 3, 1]
    """
    xp = namespace(squares)
    itself = xp.eye(len(squares), dtype=squares.dtype, device=device(squares)) > 0
    between = xp.where(itself, np.inf, xp.clip(squares, 0, None))
    nearest = as_numpy(xp.min(between, axis=1))
    near = COPY**2 * typical_distance(nearest)
    if not (nearest < near).any():
        return np.arange(len(squares))
    return _groups(connected_components(csr_matrix(as_numpy(between < near)), directed=False)[1], most)


def copies_among(points: Floats, most: int, squared_distances: Callable[[Ints, Ints], Floats] | None = None) -> Ints:
    """`copies` of (rows, d) points, without the memory that all their distances would take.

    squared_distances: between the points of two choices; by default from their differences.

    >>> copies_among(np.array([[0.0], [1.0], [2.0], [3.0], [1.01]]), most=2).tolist()
    [0, 1, 2, 3, 1]
    """
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
    group = first = rows  # and the first of each group, to whom the links that were found so far are kept
    for part, squares in between(close, close):
        i, j = np.nonzero(squares < near)
        ends = np.concatenate([part[i], rows]), np.concatenate([close[j], first[group]])
        linked = csr_matrix((np.ones(len(ends[0]), dtype=np.int8), ends), (len(rows), len(rows)))
        group = connected_components(linked, directed=False)[1]
        first = np.unique(group, return_index=True)[1]
    return _groups(group, most)


def _groups(linked: Ints, most: int) -> Ints:
    """(rows,): who is linked, of one number, is of one group, unless more than `most` are; in the order of the rows."""
    groups = np.asarray(linked, dtype=np.int64)
    honest = np.bincount(groups)[groups] > most
    groups[honest] = groups.max() + 1 + np.arange(honest.sum())
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def averages(groups: Ints) -> csr_matrix:
    """(groups, rows): the matrix that takes rows to the means of their groups; one number in each of its columns."""
    return csr_matrix((1 / np.bincount(groups)[groups], (groups, np.arange(len(groups)))))


def typical_distance(distances: Floats) -> float:
    """The median; where half of the rows, or more, coincide, that of the others."""
    middle = float(np.median(distances))
    return float(np.median(distances[distances > 0])) if middle == 0 and distances.any() else middle
