"""Rows of sites for the tests of the estimators."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SITES = 12


class Rows(NamedTuple):
    """Features, targets, and the site of every row."""

    X: np.ndarray
    y: np.ndarray
    site: np.ndarray


def numbers(seed: int = 0, rows: int = 30, columns: int = 3, noise: float = 0.3) -> Rows:
    """Sites of even and of odd numbers with opposite models, y = ±(1 + Σx)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((SITES * rows, columns))
    place = np.repeat(np.arange(SITES), rows)
    y = (1 - 2 * (place % 2)) * (1 + X.sum(axis=1)) + noise * rng.standard_normal(len(X))
    return Rows(X, y, np.array([f"site {i:02}" for i in range(SITES)])[place])


def classes(labels: Any, seed: int = 0, rows: int = 60) -> Rows:
    """Sites of even and of odd numbers whose classes, by the largest of the first columns, are in opposite order."""
    rng, labels = np.random.default_rng(seed), np.asarray(labels)
    X = rng.standard_normal((SITES * rows, 3))
    place = np.repeat(np.arange(SITES), rows)
    codes = (X[:, : len(labels)] + 0.3 * rng.standard_normal((len(X), len(labels)))).argmax(axis=1)
    codes = np.where(place % 2, len(labels) - 1 - codes, codes)
    return Rows(X, labels[codes], np.array([f"site {i:02}" for i in range(SITES)])[place])


def in_turn(labels: Any) -> bool:
    """Whether the sites of even and of odd numbers are the two clusters."""
    return len(set(labels[::2])) == len(set(labels[1::2])) == 1 and labels[0] != labels[1]
