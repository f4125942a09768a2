"""The contract of a task: everything the rest of Coterie may ask the clients' data for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

from coterie._src.arrays import Array, Floats, Ints
from coterie._src.data import Clients
from coterie._src.kernels.squared_loss import Local

Choice = Callable[[Array], Ints]
"""From the losses (c, k) of some clients to their labels (c,)."""


class Response(NamedTuple):
    """What m honest clients compute in one round."""

    losses: Array | None  # (m, k); None where nobody needed them all: labels were given, or clients remember
    labels: Ints  # (m,)
    updates: Array  # (m, dim)


class Revisited(Protocol):
    """What a task may offer beside `Task`, so that clients who remember need not look at all centres again."""

    def kernel_data(self, centres: Array) -> Local | None:
        """What the compiled kernels read of the clients, for such centres; None where they do not serve.

        Only for losses that are convex: a client who remembers relies on tangent planes.
        """
        ...


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

    def on(self, clients: Clients) -> Self:
        """The same task on other clients (a subset, a part of the samples, a pool)."""
        ...

    def flipped(self) -> Self:
        """The same task on data turned into their contrary: −y, the other class, −z where there is no target."""
        ...

    def posing(self, model: Array) -> Self:
        """The same task on data that the (dim,) model explains: its own targets, or samples around it."""
        ...

    def losses(self, centres: Array) -> Array:
        """(k, dim) -> (m, k): F_i(θ_j)."""
        ...

    def gradients(self, centres: Array, labels: Ints) -> Array:
        """(k, dim), (m,) -> (m, dim): ∇F_i at the centre that labels[i] names."""
        ...

    def respond(self, centres: Array, choose: Choice) -> Response:
        """`losses`, the labels that follow from them, and `gradients` there, in one pass over the data."""
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
