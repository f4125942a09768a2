"""The server's optimisers, from a cluster's aggregated update g_t to a step direction: plain, momentum, Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from coterie._src.arrays import Array, Bools, Ints, as_numpy, like, namespace


class Moments(NamedTuple):
    """The state of an optimiser."""

    first: Array  # (k, d)
    second: Array  # (k, d)
    rounds: Ints  # (k,), the number of rounds in which a cluster had an update


class Optimiser(Protocol):
    """A rule from aggregated updates to step directions, with state."""

    def update(self, gradients: Array, counts: Ints, moments: Moments | None) -> tuple[Array, Moments | None]:
        """(k, d) aggregated updates -> (k, d) directions, and the state for the next round.

        counts: (k,), the replies behind each update; where there are none, the direction is the gradient, unchanged (0,
        except for shared coordinates). moments: None in the first round. An update that is not finite does not change
        the state of its cluster, since its step is not taken.
        """
        ...


@dataclass(frozen=True)
class PlainSteps:
    """Direction g_t, as in the paper."""

    def update(self, gradients: Array, counts: Ints, moments: Moments | None) -> tuple[Array, Moments | None]:
        return gradients, moments


@dataclass(frozen=True)
class Momentum:
    """Direction v_t = μ v_{t−1} + g_t, as robust as the aggregates that it sums."""

    momentum: float = 0.9

    def update(self, gradients: Array, counts: Ints, moments: Moments | None) -> tuple[Array, Moments | None]:
        xp = namespace(gradients)
        mask, before, _ = _masked(gradients, counts, moments)
        first = xp.where(mask, self.momentum * before.first + gradients, before.first)
        return xp.where(mask, first, gradients), before._replace(first=first)


@dataclass(frozen=True)
class Adam:
    """Direction m̂_t/(√v̂_t + ε) in every coordinate, with the running means m of g and v of g².

    References
    ----------
    Kingma and Ba, Adam, 2015; for a server Reddi et al., Adaptive federated optimization, 2021.
    """

    momentum: float = 0.9
    second: float = 0.99
    epsilon: float = 1e-3

    def update(self, gradients: Array, counts: Ints, moments: Moments | None) -> tuple[Array, Moments | None]:
        xp = namespace(gradients)
        mask, before, sound = _masked(gradients, counts, moments)
        first = xp.where(mask, self.momentum * before.first + (1 - self.momentum) * gradients, before.first)
        second = xp.where(mask, self.second * before.second + (1 - self.second) * gradients**2, before.second)
        rounds = before.rounds + sound
        counted = np.maximum(rounds, 1)
        unbiased, spread = (
            moment / like((1 - rate**counted)[:, None], gradients)
            for moment, rate in ((first, self.momentum), (second, self.second))
        )
        along = unbiased / (xp.sqrt(spread) + self.epsilon)
        return xp.where(mask, along, gradients), Moments(first, second, rounds)


def _masked(gradients: Array, counts: Ints, moments: Moments | None) -> tuple[Array, Moments, Bools]:
    """The mask of clusters with a finite update, as a (k, 1) array like the gradients and as (k,), and the moments."""
    xp = namespace(gradients)
    zeros = xp.zeros_like(gradients)  # not 0·g: an infinite first update must not stay in the memory as NaN
    before = moments or Moments(zeros, zeros, np.zeros(len(counts), dtype=np.int64))
    sound = (counts > 0) & as_numpy(xp.all(xp.isfinite(gradients), axis=1))
    return like(sound[:, None].astype(np.float64), gradients) > 0, before, sound
