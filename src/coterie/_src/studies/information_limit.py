"""The information limit: the smallest error that any server can reach against a shift hidden in noise.

One cluster, as the server sees it near the end of a descent: honest updates μ + e_i and Byzantine updates μ + v + e_i,
with standard normal noise e_i in R^d. `informed_mean` knows the Byzantine fraction and the size of v, and returns the
posterior mean of μ; no estimator has a smaller mean squared error over this prior. (In the experiment the number of
Byzantine clients and the distance are fixed; an estimator that knew both exactly would gain a little.) Where the error
of `informed_mean` is far above that of the honest mean, no other aggregator can close the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import SpectralFilter
from coterie._src.arrays import Floats
from coterie._src.studies.markdown import plus_minus, table

CELLS = ((10, 20), (15, 20), (15, 50), (15, 100))
"""(k, d) of the paper's grid, m = 40k and 5 % Byzantine clients, with the largest errors of the attacked cluster."""
HONEST = 38
SHIFTS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
"""The size of the shift v, in standard deviations of one update."""
CHAINS, STEPS = 2, 600
DRAWS, QUICK_DRAWS = 300, 20
SEARCHED = ((38, 10, 20), (36, 20, 20), (38, 20, 20), (38, 30, 100), (15, 14, 20))
"""Honest and Byzantine clients of the attacked cluster, and d, where the adversary searches (in `beyond.TILTED`)."""
LEADING = 3
"""The leading directions of the honest updates that are tried, in both senses, beside that of their error."""
FEWER = 10
"""The searched cells have this share of the draws, since every draw is judged under all directions and sizes."""


class Cell(NamedTuple):
    """Errors relative to that of the honest mean: root mean squares over the draws, with standard errors.

    byzantine: the number of Byzantine clients. shift: the size of v at which `informed_mean` has its largest error.
    informed: that error. filtered: the error of the filter, at the shift that is worst for it. chosen: the error of the
    filter, where the attacker chooses the worst shift of every draw, knowing all updates.
    """

    clusters: int
    dim: int
    byzantine: int
    shift: float
    informed: tuple[float, float]
    filtered: tuple[float, float]
    chosen: tuple[float, float]


class SearchedCell(NamedTuple):
    """Errors where the adversary knows all updates, and chooses direction and size of the shift against the server.

    Relative to the honest mean, as in `Cell`. along_error: where only the direction of the honest error is tried.
    """

    honest: int
    byzantine: int
    dim: int
    informed: tuple[float, float]
    filtered: tuple[float, float]
    along_error: tuple[float, float]


def informed_mean(rows: Floats, byzantine: int, shift: float, rng: Generator) -> Floats:
    """(draws, c, d) -> (draws, d): E[μ | rows], by Gibbs sampling.

    Prior: μ flat, v normal with E‖v‖² = shift², each client Byzantine with probability byzantine/c. Given which clients
    are Byzantine, (μ, v) is normal; given (μ, v), the clients are independent Bernoulli variables. A further step
    proposes to swap the two groups and accepts with the probability that their sizes give, since a chain would not
    leave its first grouping otherwise.

    >>> rows = np.random.default_rng(0).standard_normal((1, 60, 5))
    >>> rows[:, :20] += 100.0
    >>> found = informed_mean(rows, 20, 100.0 * 5**0.5, np.random.default_rng(1))
    >>> np.allclose(found, rows[:, 20:].mean(axis=1), atol=1e-3)
    True
    """
    draws, count, dim = rows.shape
    odds = np.log(byzantine / (count - byzantine))
    centred = rows - rows.mean(axis=1, keepdims=True)
    leading = np.linalg.svd(centred, full_matrices=False)[2][:, 0]  # (draws, d)
    along = np.einsum("bcd,bd->bc", centred, leading)
    total = np.zeros((draws, dim))
    for chain in range(CHAINS):
        ranks = np.argsort(np.argsort(along if chain % 2 else -along, axis=1), axis=1)
        is_byzantine = (ranks < byzantine).astype(np.float64)
        for step in range(STEPS):
            size = is_byzantine.sum(axis=1)
            # precision of (μ, v) in every coordinate: [[c, size], [size, size + d/shift²]]
            corner = size + dim / shift**2
            determinant = count * corner - size**2
            whole, theirs = rows.sum(axis=1), np.einsum("bc,bcd->bd", is_byzantine, rows)
            centre = (corner[:, None] * whole - size[:, None] * theirs) / determinant[:, None]
            away = (count * theirs - size[:, None] * whole) / determinant[:, None]
            if step >= STEPS // 3:
                total += centre / (CHAINS * (STEPS - STEPS // 3))
            first, second = rng.standard_normal((2, draws, dim))
            spread = np.sqrt(count / determinant)[:, None]  # of v; given v, μ has variance 1/c
            drawn_shift = away + spread * first
            drawn = centre - (size / count)[:, None] * (drawn_shift - away) + second / np.sqrt(count)
            half = (drawn_shift**2).sum(axis=1)[:, None] / 2
            logits = np.einsum("bcd,bd->bc", rows - drawn[:, None], drawn_shift) - half + odds
            chances = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
            is_byzantine = (rng.random((draws, count)) < chances).astype(np.float64)
            swapped = np.log(rng.random(draws)) < odds * (count - 2 * is_byzantine.sum(axis=1))
            is_byzantine = np.where(swapped[:, None], 1 - is_byzantine, is_byzantine)
    return total


def measure(draws: int, seed: int = 0, cells: Sequence[tuple[int, int]] = CELLS) -> list[Cell]:
    """All cells, on the same draws for all shifts; the first 2k clients are Byzantine."""
    found = []
    for clusters, dim in cells:
        rng, byzantine = np.random.default_rng([seed, clusters, dim]), 2 * clusters
        noise = rng.standard_normal((draws, byzantine + HONEST, dim))
        direction = rng.standard_normal((draws, 1, dim))
        direction /= np.linalg.norm(direction, axis=2, keepdims=True)
        informed, filtered = [], []
        for shift in SHIFTS:
            rows = noise.copy()
            rows[:, :byzantine] += shift * direction
            informed.append((informed_mean(rows, byzantine, shift, rng) ** 2).sum(axis=1))
            filtered.append(np.array([(SpectralFilter(byzantine)(one) ** 2).sum() for one in rows]))
        floor = (noise[:, byzantine:].mean(axis=1) ** 2).sum(axis=1)
        worst = int(np.argmax([errors.mean() for errors in informed]))
        of_filter = max(filtered, key=lambda errors: float(errors.mean()))
        chosen = np.max(filtered, axis=0)
        ratios = [_ratio(errors, floor) for errors in (informed[worst], of_filter, chosen)]
        found.append(Cell(clusters, dim, byzantine, SHIFTS[worst], *ratios))
    return found


def measure_searched(draws: int, seed: int = 0, cells: Sequence[tuple[int, int, int]] = SEARCHED) -> list[SearchedCell]:
    """The cells in which the adversary searches; the informed server still knows the size of the shift."""
    found = []
    for honest, byzantine, dim in cells:
        rng = np.random.default_rng([seed, honest, byzantine, dim])
        own, noise = rng.standard_normal((draws, honest, dim)), rng.standard_normal((draws, byzantine, dim))
        error = own.mean(axis=1, keepdims=True)
        axes = np.linalg.svd(own - error, full_matrices=False)[2][:, :LEADING]
        directions = np.concatenate([error / np.linalg.norm(error, axis=2, keepdims=True), axes, -axes], axis=1)
        informed, filtered = [], []
        for along in np.moveaxis(directions, 1, 0):
            for shift in SHIFTS:
                rows = np.concatenate([noise + error + shift * along[:, None], own], axis=1)
                informed.append((informed_mean(rows, byzantine, shift, rng) ** 2).sum(axis=1))
                filtered.append(np.array([(SpectralFilter(byzantine)(one) ** 2).sum() for one in rows]))
        floor = (error[:, 0] ** 2).sum(axis=1)
        worst = [np.max(errors, axis=0) for errors in (informed, filtered, informed[: len(SHIFTS)])]
        found.append(SearchedCell(honest, byzantine, dim, *(_ratio(errors, floor) for errors in worst)))
    return found


def _ratio(errors: Floats, floor: Floats) -> tuple[float, float]:
    """√(mean error² / mean floor²) and its standard error, by the delta method."""
    ratio = float(np.sqrt(errors.mean() / floor.mean()))
    influence = errors / errors.mean() - floor / floor.mean()
    return ratio, float(ratio * influence.std(ddof=1) / (2 * np.sqrt(len(errors))))


def information_limit_report(draws: int) -> str:
    """Markdown: the measured errors as a table."""
    searched = max(2, draws // FEWER)
    return as_markdown(measure(draws), draws) + "\n" + searched_as_markdown(measure_searched(searched), searched)


def as_markdown(cells: Sequence[Cell], draws: int) -> str:
    """The table of measured errors."""
    header = ["k", "d", "Byzantine", "informed server", "filter", "filter, attacker knows all updates"]
    lines = []
    for cell in cells:
        errors = [plus_minus(*found, ".2f") for found in (cell.informed, cell.filtered, cell.chosen)]
        errors[0] += f" (at {cell.shift:g})"
        count = f"{cell.byzantine} of {cell.byzantine + HONEST}"
        lines.append([cell.clusters, cell.dim, count, *errors])
    return "\n".join([f"{draws} draws.", "", *table(header, lines)]) + "\n"


def searched_as_markdown(cells: Sequence[SearchedCell], draws: int) -> str:
    """The table of measured errors where the adversary searches."""
    header = ["Byzantine", "d", "informed server", "informed server, along the error", "filter"]
    lines = [
        [
            f"{cell.byzantine} of {cell.byzantine + cell.honest}",
            cell.dim,
            *(plus_minus(*one, ".2f") for one in (cell.informed, cell.along_error, cell.filtered)),
        ]
        for cell in cells
    ]
    return (
        "\n".join([f"The adversary knows all updates and searches. {draws} draws.", "", *table(header, lines)]) + "\n"
    )
