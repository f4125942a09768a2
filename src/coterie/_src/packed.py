"""Symmetric matrices in packed form: of every matrix the upper triangle, row by row, d(d+1)/2 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie._src.arrays import Floats, Ints

BLOCK = 1 << 20
"""The numbers of the matrices that are transformed at once: 8 MB."""
COLUMNS = 1 << 12
"""The entries of the triangles that are multiplied at once in `PackedMatrices.along`."""


def triangle(dim: int) -> int:
    """The numbers of a (dim, dim) matrix in packed form."""
    return dim * (dim + 1) // 2


def packed(matrices: Floats) -> Floats:
    """(m, d, d) symmetric matrices -> (m, d(d+1)/2): their upper triangles."""
    dim = matrices.shape[-1]
    return np.concatenate([matrices[:, i, i:] for i in range(dim)], axis=1)


def unpacked(rows: Floats, dim: int) -> Floats:
    """The inverse of `packed`."""
    found, start = np.empty((len(rows), dim, dim)), 0
    for i in range(dim):
        found[:, i, i:] = rows[:, start : start + dim - i]
        found[:, i:, i] = found[:, i, i:]
        start += dim - i
    return found


@dataclass(frozen=True)
class PackedMatrices:
    """c symmetric (d, d) matrices H_i.

    rows: (c, d(d+1)/2), in packed form. dim: d.
    """

    rows: Floats
    dim: int

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Ints) -> PackedMatrices:
        """The matrices with these indices."""
        return PackedMatrices(self.rows[chosen], self.dim)

    @cached_property
    def _starts(self) -> Ints:
        """(d,): the columns of the diagonal, where a row of the triangle begins."""
        lengths = np.arange(self.dim, 0, -1)
        return np.cumsum(lengths) - lengths

    @cached_property
    def diagonals(self) -> Floats:
        """(c, d)."""
        return self.rows[:, self._starts]

    def mean(self, weights: Floats | None = None) -> Floats:
        """(d, d): the mean of the matrices, with weights (c,) or without."""
        row = self.rows.mean(axis=0) if weights is None else weights / max(weights.sum(), 1e-300) @ self.rows
        found: Floats = unpacked(row[None], self.dim)[0]
        return found

    def traces(self, matrix: Floats) -> Floats:
        """(c,): tr(H_i M) for a symmetric M."""
        twice = packed(2 * matrix[None])[0]
        twice[self._starts] /= 2
        found: Floats = self.rows @ twice
        return found

    def along(self, axes: Floats) -> Floats:
        """(d, r) -> (c, r): vᵀH_iv for all columns v."""
        above, found = np.triu_indices(self.dim), np.zeros((len(self), axes.shape[1]))
        for start in range(0, len(above[0]) if axes.shape[1] else 0, COLUMNS):
            part = slice(start, start + COLUMNS)
            i, j = above[0][part], above[1][part]
            found += self.rows[:, part] @ (axes[i] * axes[j] * np.where(i == j, 1.0, 2.0)[:, None])
        return found

    def transformed(self, basis: Floats) -> Iterator[tuple[slice, Floats]]:
        """BᵀH_iB for some matrices at a time: which these are, and (…, r, r), which is overwritten afterwards.

        With H_i = U_i + U_iᵀ, where U_i is triangular, this is BᵀU_iB and its transpose: three quarters of the work.
        """
        dim, rank = basis.shape
        step = max(1, BLOCK // max(1, dim * rank))
        half, found = np.empty((min(step, len(self)), dim, rank)), np.empty((min(step, len(self)), rank, rank))
        for start in range(0, len(self), step):
            rows = self.rows[start : start + step].copy()
            rows[:, self._starts] /= 2
            for i, first in enumerate(self._starts.tolist()):
                np.matmul(rows[:, first : first + dim - i], basis[i:], out=half[: len(rows), i])
            both = np.matmul(basis.T, half[: len(rows)])
            np.add(both, both.transpose(0, 2, 1), out=found[: len(rows)])
            yield slice(start, start + len(rows)), found[: len(rows)]
