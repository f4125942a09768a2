"""The contract of a task: everything the rest of Coterie may ask the clients' data for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np

from coterie._src.arrays import Array, Floats, Ints, as_numpy
from coterie._src.data import Clients
from coterie._src.kernels.elkan import AssignmentCache


def assign(losses: Array) -> Ints:
    """(m, k) -> (m,): the centre with the lowest loss, ĵ_i = argmin_j F_i(θ_j); ties go to the first.

    A loss that is not a number (of a centre that diverged) is never chosen over one that is.

    >>> assign(np.array([[2.0, 1.0], [np.nan, 3.0]])).tolist()
    [1, 1]
    """
    values = as_numpy(losses)
    labels: Ints = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
    return labels


class Response(NamedTuple):
    """What m honest clients answer in one round."""

    labels: Ints  # (m,), the centres they chose, or were given
    updates: Array  # (m, dim), what they computed there


class Task(Protocol):
    """The local empirical risks F_i(θ) = (1/n_i) Σ_l f(θ; z^{i,l}) of m clients, θ ∈ R^dim."""

    @property
    def clients(self) -> Clients:
        """The clients whose data this is."""
        ...

    @property
    def dim(self) -> int:
        """The number of parameters of a centre."""
        ...

    @property
    def curvature_bound(self) -> float:
        """What a gradient is divided by for a first estimate of a client's optimum: a bound on ℓ'', 1 for an update."""
        ...

    @property
    def has_curvatures(self) -> bool:
        """Whether `curvatures` is known, so that a step size can be judged from it."""
        ...

    @property
    def hessians_known(self) -> Literal["never", "constant", "varying"]:
        """Whether `hessians` is known, and whether it varies with θ."""
        ...

    def on(self, clients: Clients) -> Self:
        """The same task on other clients (a subset, a part of the samples, a pool)."""
        ...

    def poisoned(self, change: Callable[[Array, int], Array]) -> Self:
        """The same task on other targets: change(y, classes) instead of y, or change(z, 0) where there is no target.

        classes: the number of classes that y is of, 0 where y is a number.
        """
        ...

    def with_targets_from(self, model: Array) -> Self:
        """The same task on data that the (dim,) model explains: targets that it predicts, or samples around it."""
        ...

    def losses(self, centres: Array) -> Array:
        """(k, dim) -> (m, k): F_i(θ_j)."""
        ...

    def gradients(self, centres: Array, labels: Ints) -> Array:
        """(k, dim), (m,) -> (m, dim): ∇F_i at the centre that labels[i] names."""
        ...

    def respond(self, centres: Array, cache: AssignmentCache | None = None) -> Response:
        """The labels that `assign` gives the losses at (k, dim) centres, and the gradients there.

        cache: of the same clients from their last round; it saves time and changes nothing else. A task may ignore it.
        """
        ...

    def minimisers(self, ridge: float = 0.0) -> Array:
        """(m, dim): each client's argmin F_i(θ) + ridge·‖θ‖²; the one of least norm where there are many."""
        ...

    def curvatures(self) -> Floats:
        """(m, 2): per client the largest eigenvalue of the Hessian of F_i, and its trace over n_i.

        Both are upper bounds over θ. The second is what the finite sample adds to the first: for n_i
        samples with population curvature L, √λ_max ≈ √L + √(trace / n_i) (Marchenko–Pastur edge), so
        a server can tell how steep the mean of c such clients is. Zero where sampling adds nothing.
        """
        ...

    def hessians(self, centres: Array, labels: Ints) -> Floats:
        """(k, dim), (m,) -> (m, dim(dim + 1)/2) in float64: ∇²F_i at the centre that labels[i] names, packed."""
        ...
