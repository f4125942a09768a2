"""What an adversary sees and sends, and the two parts of an attack: payload and target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, cast
from coterie._src.client import AssignmentCache, Response
from coterie._src.coordinates import Coordinates
from coterie._src.data import Truth
from coterie._src.tasks import Task

Question = Literal["gradient", "minimiser", "loss", "curvature", "size", "hessian"]


class Prospect(NamedTuple):
    """Where a server would be after some rounds, as the adversary sees it.

    Attributes
    ----------
    distance, worst_cluster : the matched distance to the true centres, on average and of the worst cluster.
    ari : the agreement of the clusters that honest clients choose with the true ones.
    left : how far the centres still have to go, in standard errors, or the largest move where that is not known.
    converged : whether the descent has ended.
    """

    distance: float
    worst_cluster: float
    ari: float
    left: float
    converged: bool


class View(NamedTuple):
    """What the adversary sees in one exchange between the server and the clients.

    Attributes
    ----------
    round : the round, or -1 before the first.
    centres : (k, d), as broadcast; None where the server did not ask for gradients.
    labels, updates : (m,) and (m, …), what all clients would send if they were honest.
    is_byzantine : (m,), which clients the adversary controls.
    task : what the Byzantine clients compute on their own data.
    aggregate : the server's rule, if the adversary knows it.
    rng : the adversary's random generator.
    fixed : whether the server has fixed the labels, so that claimed clusters are ignored.
    question : what the server asked for.
    cache : the assignment cache of the Byzantine clients; None where they differ from round to round.
    response : the honest response of the Byzantine clients at `Payload.working_centres`, if the payload has these.
    claims : the clusters that the Byzantine clients claim; None: those that they would choose if they were honest.
    coordinates : in which the server aggregates, and in which `updates` and forged updates are; None for those of the
        centres.
    truth : the true clusters and centres, if the adversary knows them.
    objective : what the adversary maximises, one of `Payload.objectives`.
    memory : what the attack keeps from round to round; every method of a trial has its own.
    rehearse : (attack, rounds) -> where the server would be after so many rounds under this attack; None where the
        adversary does not know the server.
    losses_at : (k, d), the centres at which the server asks for losses; None where it asks for something else.
    """

    round: int
    centres: Array | None
    labels: Ints
    updates: Array
    is_byzantine: Bools
    task: Task
    aggregate: Callable[[Array], Array] | None
    rng: Generator
    fixed: bool = False
    question: Question = "gradient"
    cache: AssignmentCache | None = None
    response: Response | None = None
    claims: Ints | None = None
    coordinates: Coordinates | None = None
    truth: Truth | None = None
    objective: str = ""
    memory: dict[Any, Any] | None = None
    rehearse: Callable[[Callable[[View], Forgery], int], Prospect] | None = None
    losses_at: Array | None = None

    def gradients(self, task: Task, centres: Array, labels: Ints) -> Array:
        """The gradients of a task in the coordinates of `updates`."""
        found = task.gradients(centres, labels)
        return found if self.coordinates is None else cast(self.coordinates.updates(as_numpy(found)), self.updates)

    @property
    def rule(self) -> Callable[[Array], Array] | None:
        """The server's rule for one cluster, with what the honest updates of all clusters tell it."""
        pooled = getattr(self.aggregate, "pooled", None)
        if pooled is None or self.is_byzantine.all():
            return self.aggregate
        honest = ~self.is_byzantine
        found: Callable[[Array], Array] = pooled(self.updates[np.flatnonzero(honest)], self.labels[honest])
        return found

    @property
    def points(self) -> Floats:
        """(k, r): the centres in the coordinates of `updates`."""
        centres = as_numpy(self.centres).astype(np.float64)
        return centres if self.coordinates is None else self.coordinates.points(centres)

    @property
    def clusters(self) -> int:
        """k."""
        return 1 if self.centres is None else int(self.centres.shape[0])

    @property
    def byzantine_count(self) -> int:
        """The number of Byzantine clients."""
        return int(self.is_byzantine.sum())

    @property
    def claimed(self) -> Ints:
        """The clusters that the Byzantine clients claim."""
        return self.labels[self.is_byzantine] if self.claims is None else self.claims

    def honest_rows(self, cluster: int) -> Array:
        """The honest updates of a cluster, or of all honest clients where it has none.

        Where no honest client takes part: what the Byzantine clients would send if they were honest.
        """
        if self.is_byzantine.all():
            return self.updates
        members = np.flatnonzero(~self.is_byzantine & (self.labels == cluster))
        return self.updates[members if len(members) else np.flatnonzero(~self.is_byzantine)]


class Forgery(NamedTuple):
    """The forged replies of the Byzantine clients, in the order of the clients; entries may be malformed on purpose."""

    labels: Sequence[Any] | Ints
    updates: Sequence[Any] | Array
    rounds: Sequence[Any] | None = None
    repeated: bool = False


class Entry(NamedTuple):
    """An attack in the arena: a payload with a name, a target and a strength."""

    name: str
    target: str = "smallest"
    scale: float | Literal["auto", "worst"] = "auto"
    sleep: int = 0
    objective: str = "auto"


@dataclass(frozen=True)
class Payload:
    """What Byzantine clients send: the record of one payload.

    Parameters
    ----------
    name : its name in the configuration and in `ct.attack`.
    summary : one line for help and tables.
    forge : (view) -> Forgery, or (view, scale) with another strength than the published one; a pair of labels and
        updates will do.
    published_scale : the strength that its authors give, if it is one number.
    working_centres : (broadcast centres, strength) -> the centres at which the Byzantine clients compute, also when
        they choose their cluster; None: the broadcast centres.
    poison : (targets of one Byzantine client, number of classes or 0, strength) -> the targets that this client has
        instead, in all that it computes; where there are no targets, the same of its samples. It must return the same
        for the same arguments, because a client may be asked in several processes. None: the data are not changed.
    objectives : what it may pursue, the default first; empty where there is no choice.
    arena : the attacks of the arena that use it.
    aliases : older names.

    Examples
    --------
    >>> import coterie as ct
    >>> def backwards(view, scale=1.0):
    ...     return view.claimed, -scale * view.updates[view.is_byzantine]
    >>> ct.Attack(ct.Payload("backwards", "their own updates, reversed", backwards, published_scale=1.0))
    Attack(payload=<payload backwards>, target=<target own>, scale=None, sleep=0, objective='auto')
    """

    name: str
    summary: str
    forge: Callable[..., Forgery | tuple[Any, Any]]
    published_scale: float | None = None
    working_centres: Callable[[Array, float], Array] | None = None
    poison: Callable[[NDArray[Any], int, float], NDArray[Any]] | None = None
    objectives: tuple[str, ...] = ()
    arena: tuple[Entry, ...] = ()
    aliases: tuple[str, ...] = ()

    def __call__(self, view: View, scale: float | None = None) -> Forgery:
        forged = self.forge(view) if scale is None else self.forge(view, scale)
        return forged if isinstance(forged, Forgery) else Forgery(*forged)

    def __repr__(self) -> str:
        return f"<payload {self.name}>"


@dataclass(frozen=True)
class Target:
    """Which cluster the Byzantine clients claim: the record of one target."""

    name: str
    summary: str
    choose: Callable[[View], Ints]
    aliases: tuple[str, ...] = ()

    def __call__(self, view: View) -> Ints:
        """The claimed cluster of every Byzantine client."""
        return np.asarray(self.choose(view), dtype=np.int64)

    def __repr__(self) -> str:
        return f"<target {self.name}>"


def payload(name: str, summary: str, **options: Any) -> Callable[[Callable[..., Forgery]], Payload]:
    """Decorator that makes a `Payload` of a function (view, scale=…) -> Forgery; options: fields of `Payload`."""
    return lambda forge: Payload(name, summary, forge, **options)


def target(name: str, summary: str, **options: Any) -> Callable[[Callable[[View], Ints]], Target]:
    """Decorator that makes a `Target` of a function (view) -> labels."""
    return lambda choose: Target(name, summary, choose, **options)


def as_payload(forge: Payload | Callable[..., Any]) -> Payload:
    """Return a payload unchanged, and wrap a function as a payload."""
    return forge if isinstance(forge, Payload) else Payload(getattr(forge, "__name__", "custom"), "", forge)


def as_target(choose: Target | Callable[[View], Ints]) -> Target:
    """Return a target unchanged, and wrap a function as a target."""
    return choose if isinstance(choose, Target) else Target(getattr(choose, "__name__", "custom"), "", choose)
