"""Which cluster the Byzantine clients claim."""

from __future__ import annotations

import numpy as np

from coterie._src.arrays import Ints
from coterie._src.attacks.base import View, target


@target("own", "each claims the cluster that fits its own data best, as an honest client does")
def own(view: View) -> Ints:
    """argmin_j F_i(θ_j), at the centres that the Byzantine clients work on."""
    return view.claimed if view.response is None else view.response.labels


@target("smallest", "all claim the cluster with the fewest honest clients in this round (but some)")
def smallest(view: View) -> Ints:
    """The worst case that the theorems allow for; where the clusters change, it follows them."""
    honest = _honest(view)
    return np.full(view.byzantine_count, np.where(honest > 0, honest, honest.max() + 1).argmin())


@target("emptiest", "all claim the cluster with the fewest honest clients, an empty one first of all, to capture it")
def emptiest(view: View) -> Ints:
    return np.full(view.byzantine_count, _honest(view).argmin())


@target("random", "each draws a cluster anew in every round")
def random(view: View) -> Ints:
    return view.rng.integers(view.clusters, size=view.byzantine_count)


@target("rotating", "all claim one cluster and move on to the next in every round", aliases=("hop",))
def rotating(view: View) -> Ints:
    return np.full(view.byzantine_count, max(view.round, 0) % view.clusters)


def _honest(view: View) -> Ints:
    """(k,): the honest clients of every cluster."""
    return np.bincount(view.labels[~view.is_byzantine], minlength=view.clusters)
