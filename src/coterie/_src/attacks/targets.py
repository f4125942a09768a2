"""The cluster that the Byzantine clients claim."""

from __future__ import annotations

import numpy as np

from coterie._src.arrays import Ints
from coterie._src.attacks.base import View, target


@target("own", "each claims the cluster that fits its own data best, as an honest client does")
def own(view: View) -> Ints:
    """argmin_j F_i(θ_j), at the centres at which the payload computes."""
    return view.claimed if view.response is None else view.response.labels


@target("smallest", "all claim the cluster with the fewest honest clients in this round, and at least one")
def smallest(view: View) -> Ints:
    """The worst case of the theorems, updated in every round as clients change clusters."""
    honest = _honest(view)
    return np.full(view.byzantine_count, np.where(honest > 0, honest, honest.max() + 1).argmin())


@target("emptiest", "all claim the cluster with the fewest honest clients, possibly none, to capture its centre")
def emptiest(view: View) -> Ints:
    return np.full(view.byzantine_count, _honest(view).argmin())


@target("random", "each claims a random cluster in every round")
def random(view: View) -> Ints:
    return view.rng.integers(view.clusters, size=view.byzantine_count)


@target("rotating", "all claim the same cluster, the next one in every round", aliases=("hop",))
def rotating(view: View) -> Ints:
    return np.full(view.byzantine_count, max(view.round, 0) % view.clusters)


def _honest(view: View) -> Ints:
    """(k,): the number of honest clients of every cluster."""
    return np.bincount(view.labels[~view.is_byzantine], minlength=view.clusters)
