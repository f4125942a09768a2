"""An upper bound on the number of Byzantine clients, estimated by what a robust start finds under several bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import floor_count
from coterie._src.arrays import Array
from coterie._src.init.asking import STRAY_CLIENTS, CandidateLosses, RobustStart, agreement_of
from coterie._src.init.sampling import byzantine_among, draw_sample
from coterie._src.network import Network

LADDER = (0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0)
"""The fractions that are tried, the largest first."""
LARGEST_UNKNOWN = 0.2
"""The largest fraction where the number of clusters is estimated as well.

A group of clients that are fewer than the bound is then taken for Byzantine, and never for a cluster.
"""
WORSE = 3.0
"""The sum of losses is higher if the increase is this many times its noise."""


def rungs(clients: int, clusters: int | None) -> list[int]:
    """The bounds to try, the largest first, as numbers of clients.

    >>> rungs(200, 5), rungs(200, None), rungs(6, 2)
    ([31, 30, 20, 10, 4, 0], [40, 30, 20, 10, 4, 0], [0])
    """
    if clusters is None:
        return sorted({floor_count(share, clients) for share in LADDER if share <= LARGEST_UNKNOWN}, reverse=True)
    highest = largest_bound(clients, clusters)
    return sorted({min(highest, floor_count(share, clients)) for share in LADDER} | {highest}, reverse=True)


def largest_bound(clients: int, clusters: int) -> int:
    """The largest bound with k clusters above it: ⌈m/(k + 1)⌉ less those who may choose a centre by chance, less one.

    If all clusters are larger than the number of Byzantine clients, these are less than a share of 1/(k + 1).
    """
    return max(0, math.ceil(clients / (clusters + 1)) - STRAY_CLIENTS - 1)


def estimated_bound(start: RobustStart, network: Network, example: Array, rng: Generator) -> int:
    """The largest bound on the number of Byzantine clients with which the start loses no cluster.

    A bound may be far above the number of Byzantine clients without harm, as long as it is below the size of every
    cluster. From the largest bound downwards candidates are computed from one half of every client's samples, and
    judged on the other half. A bound is taken if each cluster has more clients than may be Byzantine, plus two, if it
    is possible with as many clusters (`largest_bound`), and if the candidate of a bound of at most half of it is not
    clearly better (`loses_clusters`).

    start: its own bound is not used. example: as for `RobustStart.search`. Of very many clients a sample is asked, in
    which more of them may be Byzantine than their share says (`init.sampling`).
    """
    bounds = rungs(network.count, start.clusters)
    if start.clusters == 1 or len(bounds) == 1:
        return bounds[0]
    everyone = network.count
    network = draw_sample(network, 0, rng).network
    of_all = {byzantine_among(network.count, bound, everyone): bound for bound in reversed(bounds)}
    counts = sorted(of_all, reverse=True)
    starts = {count: replace(start, byzantine_fraction=count / network.count) for count in counts}
    asked = starts[counts[0]].ask(network, example)
    found: dict[int, CandidateLosses] = {}

    def candidate(count: int) -> CandidateLosses:
        if count not in found:
            found[count] = starts[count].halved(network, example, rng, asked)
        return found[count]

    for count in counts[:-1]:
        below = next(one for one in counts if 2 * one <= count)
        one = candidate(count)
        admissible = one.count == 1 or one.sizes.min() > count + STRAY_CLIENTS
        admissible &= count <= largest_bound(network.count, one.count)
        if admissible and not loses_clusters(one, candidate(below), count):
            return of_all[count]
    return of_all[counts[-1]]


def loses_clusters(candidate: CandidateLosses, other: CandidateLosses, byzantine: int) -> bool:
    """Whether the other candidate has lower losses for more clients than may be Byzantine.

    The two must differ in the clusters of more than `byzantine` clients. The `byzantine` largest and as many smallest
    differences of the losses do not count; the noise of the sum of the others is that of the negative ones, twice,
    which a lost cluster does not raise.
    """
    both = candidate.answered & other.answered
    differing = round((1 - agreement_of(candidate.labels, other.labels)) * int(both.sum()))
    if differing <= byzantine:
        return False
    gains = np.sort((candidate.losses - other.losses)[both])
    middle = gains[byzantine : len(gains) - byzantine]
    noise = np.minimum(middle, 0.0)
    return bool(middle.sum() > WORSE * math.sqrt(2 * float(noise @ noise)))
