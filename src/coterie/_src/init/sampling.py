"""A random sample of the clients, from which a start is computed where there are very many of them.

The centres that are found have the errors of so many clients, and the rounds, in which all clients take part, remove
them. What a sample must not lose is the bound on the Byzantine share. Of m clients let b be Byzantine, and let s be
drawn without replacement. Then more than (b/m + t)·s of the drawn ones are Byzantine with a probability of at most

    exp(−s·KL(b/m + t ‖ b/m)),   KL(p‖q) = p log(p/q) + (1 − p) log((1 − p)/(1 − q))

(Hoeffding, Probability inequalities for sums of bounded random variables, 1963, Theorem 1 and Section 6). The same
holds for the clients that are not drawn, of which then few are Byzantine; where most are drawn that says more. The
start allows for the smallest number for which one of the two is at most `UNLIKELY`. A cluster must be larger than that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.arrays import Ints
from coterie._src.network import Network, SomeClients

SAMPLE = 8192
"""Of more clients so many are drawn."""
UNLIKELY = 1e-6
"""The probability with which a sample may hold more Byzantine clients than the start allows for."""


class Sample(NamedTuple):
    """Some clients of a network as a network of their own; clients: their numbers, None where these are all."""

    network: Network
    clients: Ints | None
    byzantine: int  # at most so many of these are

    @property
    def fraction(self) -> float:
        """The bound as a share of the sample."""
        return self.byzantine / self.network.count


def draw_sample(network: Network, byzantine: int, rng: Generator) -> Sample:
    """At most `SAMPLE` clients of a network with at most so many Byzantine ones."""
    count = network.count
    if count <= SAMPLE:
        return Sample(network, None, byzantine)
    clients = np.sort(rng.choice(count, SAMPLE, replace=False))
    return Sample(SomeClients(network, clients), clients, byzantine_among(SAMPLE, byzantine, count))


def byzantine_among(drawn: int, byzantine: int, clients: int) -> int:
    """The smallest number that the Byzantine ones of the drawn clients hardly exceed (`UNLIKELY`); less than half.

    >>> byzantine_among(8192, 50_000, 1_000_000), byzantine_among(8192, 0, 1_000_000)
    (517, 0)
    """
    most, share, enough = min((drawn - 1) // 2, byzantine), byzantine / clients, -math.log(UNLIKELY)
    for count in range(math.ceil(share * drawn), most):
        more, left = count + 1, byzantine - count - 1  # what exceeds `count`, and what is not drawn then
        if drawn * _divergence(more / drawn, share) >= enough:
            return count
        if drawn < clients and (clients - drawn) * _divergence(left / (clients - drawn), share) >= enough:
            return count
    return most


def _divergence(found: float, expected: float) -> float:
    """KL(p‖q) of two Bernoulli variables."""
    return sum(p * math.log(p / q) for p, q in ((found, expected), (1 - found, 1 - expected)) if p > 0)
