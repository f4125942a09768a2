"""What no server can know: the least error against liars who stand beside honest clients, all of them in noise.

One cluster, as the server sees it near the end of a descent: honest replies μ + e_i and those of the liars μ + v + e_i,
with standard normal noise e_i in R^d. `informed_mean` is told the share of liars and the size of v, and takes the
posterior mean of μ, which on average over such liars no estimator beats. (Here there are always so many liars, at
exactly that distance; to know both to the last digit would gain a little.) Where even that is far from the mean of
the honest replies, the distance is no matter of method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import filtered_mean
from coterie._src.arrays import Floats

CELLS = ((10, 20), (15, 20), (15, 50), (15, 100))
"""(k, d) of the paper's grid, m = 40k and 5 % liars, where liars all on one cluster cost it most."""
HONEST = 38
SHIFTS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
"""How far the liars stand off, in standard deviations of one reply."""
CHAINS, STEPS = 2, 600
DRAWS = 300


class Cell(NamedTuple):
    """Errors relative to the honest mean's, root mean squares over the draws, with standard errors."""

    clusters: int
    dim: int
    liars: int
    shift: float  # at which an informed server is worst
    informed: tuple[float, float]
    filtered: tuple[float, float]  # by the filter, at the shift that is worst for it
    chosen: tuple[float, float]  # by the filter, where the liars choose their shift with all replies before them


def informed_mean(rows: Floats, liars: int, shift: float, rng: Generator) -> Floats:
    """(draws, c, d) -> (draws, d): E[μ | rows], by Gibbs sampling.

    Prior: μ flat, v normal with E‖v‖² = shift², everybody a liar with probability liars/c. Given who lies, (μ, v) is
    normal; given these, so is everybody's chance to be a liar. A further step swaps the two groups, with the
    probability that their sizes give it, or a chain would keep the one it began with.

    >>> rows = np.random.default_rng(0).standard_normal((1, 60, 5))
    >>> rows[:, :20] += 100.0
    >>> found = informed_mean(rows, 20, 100.0 * 5**0.5, np.random.default_rng(1))
    >>> np.allclose(found, rows[:, 20:].mean(axis=1), atol=1e-3)
    True
    """
    draws, count, dim = rows.shape
    odds = np.log(liars / (count - liars))
    centred = rows - rows.mean(axis=1, keepdims=True)
    leading = np.linalg.svd(centred, full_matrices=False)[2][:, 0]  # (draws, d)
    along = np.einsum("bcd,bd->bc", centred, leading)
    total = np.zeros((draws, dim))
    for chain in range(CHAINS):
        ranks = np.argsort(np.argsort(along if chain % 2 else -along, axis=1), axis=1)
        lying = (ranks < liars).astype(np.float64)
        for step in range(STEPS):
            size = lying.sum(axis=1)
            # precision of (μ, v) in every coordinate: [[c, size], [size, size + d/shift²]]
            corner = size + dim / shift**2
            determinant = count * corner - size**2
            whole, theirs = rows.sum(axis=1), np.einsum("bc,bcd->bd", lying, rows)
            centre = (corner[:, None] * whole - size[:, None] * theirs) / determinant[:, None]
            away = (count * theirs - size[:, None] * whole) / determinant[:, None]
            if step >= STEPS // 3:
                total += centre / (CHAINS * (STEPS - STEPS // 3))
            first, second = rng.standard_normal((2, draws, dim))
            spread = np.sqrt(count / determinant)[:, None]  # of v; given v, μ has variance 1/c
            moved = away + spread * first
            placed = centre - (size / count)[:, None] * (moved - away) + second / np.sqrt(count)
            logits = np.einsum("bcd,bd->bc", rows - placed[:, None], moved) - (moved**2).sum(axis=1)[:, None] / 2 + odds
            lying = (rng.random((draws, count)) < 1 / (1 + np.exp(-np.clip(logits, -500, 500)))).astype(np.float64)
            swapped = np.log(rng.random(draws)) < odds * (count - 2 * lying.sum(axis=1))
            lying = np.where(swapped[:, None], 1 - lying, lying)
    return total


def measure(draws: int, seed: int = 0, cells: Sequence[tuple[int, int]] = CELLS) -> list[Cell]:
    """Every cell on the same draws for all shifts, with the liars on the first k·2 places."""
    found = []
    for clusters, dim in cells:
        rng, liars = np.random.default_rng([seed, clusters, dim]), 2 * clusters
        noise = rng.standard_normal((draws, liars + HONEST, dim))
        direction = rng.standard_normal((draws, 1, dim))
        direction /= np.linalg.norm(direction, axis=2, keepdims=True)
        known, judged = [], []
        for shift in SHIFTS:
            rows = noise.copy()
            rows[:, :liars] += shift * direction
            known.append((informed_mean(rows, liars, shift, rng) ** 2).sum(axis=1))
            judged.append(np.array([(filtered_mean(one, liars) ** 2).sum() for one in rows]))
        floor = (noise[:, liars:].mean(axis=1) ** 2).sum(axis=1)
        worst = int(np.argmax([errors.mean() for errors in known]))
        of_filter = max(judged, key=lambda errors: float(errors.mean()))
        chosen = np.max(judged, axis=0)
        ratios = [_ratio(errors, floor) for errors in (known[worst], of_filter, chosen)]
        found.append(Cell(clusters, dim, liars, SHIFTS[worst], *ratios))
    return found


def _ratio(errors: Floats, floor: Floats) -> tuple[float, float]:
    """√(mean error² / mean floor²) and its standard error, by the delta method."""
    ratio = float(np.sqrt(errors.mean() / floor.mean()))
    influence = errors / errors.mean() - floor / floor.mean()
    return ratio, float(ratio * influence.std(ddof=1) / (2 * np.sqrt(len(errors))))


def wall_report(cells: Sequence[Cell], draws: int) -> str:
    """A table in Markdown."""
    lines = [
        f"{draws} draws.",
        "",
        "| k | d | liars | a server that knows all but who | the filter | the filter, where liars see all replies |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        informed, filtered, chosen = (f"{r:.2f} ± {e:.2f}" for r, e in (cell.informed, cell.filtered, cell.chosen))
        place = f"{cell.clusters} | {cell.dim} | {cell.liars} of {cell.liars + HONEST}"
        lines.append(f"| {place} | {informed} (at {cell.shift:g}) | {filtered} | {chosen} |")
    return "\n".join(lines) + "\n"
