"""What the server makes of a cluster's aggregated update g_t: plain steps, momentum, or Adam, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from coterie._src.arrays import Array, Bools, Ints, as_numpy, like, namespace


class Moments(NamedTuple):
    """What an optimiser remembers of the rounds so far."""

    first: Array  # (k, d)
    second: Array  # (k, d)
    rounds: Ints  # (k,), in which a cluster had an update


class Optimiser(Protocol):
    """A rule from aggregated updates to the directions of the steps, with a memory."""

    def update(self, gradients: Array, updated: Bools, moments: Moments | None) -> tuple[Array, Moments | None]:
        """(k, d) aggregated updates -> (k, d) directions, and what is remembered for the next round.

        updated: (k,), the clusters that had an update; the direction of another is its gradient (0, or only a shared
        one) as it is. moments: None in the first round. An update that is not finite leaves the memory of its cluster
        as it was: its step is not taken, either.
        """
        ...


@dataclass(frozen=True)
class PlainSteps:
    """The step goes along g_t, as in the paper."""

    def update(self, gradients: Array, updated: Bools, moments: Moments | None) -> tuple[Array, Moments | None]:
        return gradients, moments


@dataclass(frozen=True)
class Momentum:
    """The step goes along v_t = μ v_{t−1} + g_t. The aggregate is robust; its past is as robust as it was."""

    momentum: float = 0.9

    def update(self, gradients: Array, updated: Bools, moments: Moments | None) -> tuple[Array, Moments | None]:
        xp = namespace(gradients)
        mask, before, _ = _masked(gradients, updated, moments)
        first = xp.where(mask, self.momentum * before.first + gradients, before.first)
        return xp.where(mask, first, gradients), before._replace(first=first)


@dataclass(frozen=True)
class Adam:
    """The step goes along m̂_t/(√v̂_t + ε) in every coordinate, with the running means m of g and v of g².

    References
    ----------
    Kingma and Ba, Adam, 2015; for a server Reddi et al., Adaptive federated optimization, 2021.
    """

    momentum: float = 0.9
    second: float = 0.99
    epsilon: float = 1e-3

    def update(self, gradients: Array, updated: Bools, moments: Moments | None) -> tuple[Array, Moments | None]:
        xp = namespace(gradients)
        mask, before, sound = _masked(gradients, updated, moments)
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


def _masked(gradients: Array, updated: Bools, moments: Moments | None) -> tuple[Array, Moments, Bools]:
    """Which clusters have a finite update, as a (k, 1) mask of the gradients' kind and as (k,), and the moments."""
    xp = namespace(gradients)
    before = moments or Moments(0 * gradients, 0 * gradients, np.zeros(len(updated), dtype=np.int64))
    sound = updated & as_numpy(xp.all(xp.isfinite(gradients), axis=1))
    return like(sound[:, None].astype(np.float64), gradients) > 0, before, sound
