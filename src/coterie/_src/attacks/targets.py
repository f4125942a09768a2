"""Which cluster the Byzantine clients claim."""

from __future__ import annotations

import numpy as np

from coterie._src.arrays import Ints
from coterie._src.attacks.base import View


def own(view: View) -> Ints:
    """Each claims the cluster that fits its own data best, argmin_j F_i(θ_j): the honest choice."""
    return view.claimed


def smallest(view: View) -> Ints:
    """All gather on the cluster with the fewest honest clients in this round (but some).

    The worst case that the theorems allow for; where the clusters change, it follows them.
    """
    honest = _honest(view)
    return np.full(view.count, np.where(honest > 0, honest, honest.max() + 1).argmin())


def emptiest(view: View) -> Ints:
    """All gather on the cluster with the fewest honest clients, and first of all on one with none: to capture it."""
    return np.full(view.count, _honest(view).argmin())


def random(view: View) -> Ints:
    """Each draws a cluster anew in every round."""
    return view.rng.integers(view.clusters, size=view.count)


def hop(view: View) -> Ints:
    """All gather on one cluster and move on to the next in every round."""
    return np.full(view.count, max(view.round, 0) % view.clusters)


def _honest(view: View) -> Ints:
    """(k,): the honest clients of every cluster."""
    return np.bincount(view.labels[~view.byzantine], minlength=view.clusters)
