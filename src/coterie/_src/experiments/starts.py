"""The registry of starts: random centres, near the true ones, from a file, or computed from answers of the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from coterie._src import init
from coterie._src.arrays import Array, Floats
from coterie._src.data import Truth
from coterie._src.init import RobustStart
from coterie._src.init.asking import Find
from coterie._src.init.conditioning import Conditioned
from coterie._src.registry import Registry


@dataclass(frozen=True)
class Start:
    """The record of a start.

    Parameters
    ----------
    draw : (k, d, truth, closeness of a warm start, generator) -> (k, d) centres; None for a start that asks the clients
        or is the initialisation of a module.
    find : the clustering of the answers, for a start that asks the clients.
    question : what it asks for.
    needs_truth : whether it needs the true centres.
    for_modules : whether it is the initialisation of a module.
    """

    name: str
    summary: str
    draw: Callable[[int, int, Truth | None, float, Generator], Floats] | None = None
    find: Find | None = None
    question: Literal["gradient", "minimiser"] = "gradient"
    needs_truth: bool = False
    for_modules: bool = False

    @property
    def asks(self) -> bool:
        """Whether the server asks the clients."""
        return self.find is not None

    @property
    def for_servers(self) -> bool:
        """Whether the server of a real federation can use it."""
        return not self.needs_truth

    def asking(
        self,
        byzantine_fraction: float,
        clusters: int | None,
        max_clusters: int,
        curvature: float,
        ridge: float,
        origin: Array | None,
        shared: int,
        conditioned: Conditioned,
    ) -> RobustStart:
        """The `RobustStart` with this clustering and question."""
        assert self.find is not None
        settings = byzantine_fraction, clusters, max_clusters, curvature, ridge, origin, shared, conditioned
        return RobustStart(self.find, self.question, *settings)


def _warm(clusters: int, dim: int, truth: Truth | None, closeness: float, rng: Generator) -> Floats:
    if truth is None:
        raise ValueError("algorithm.init: warm needs the true centres")
    return init.warm(truth, closeness, rng)


STARTS: Registry[Start] = Registry(
    "start",
    [
        Start("spectral", "clusters one gradient per client along the leading directions", find=init.spectral),
        Start("balls", "clusters one gradient per client, from the densest balls", find=init.balls),
        Start("erm", "clusters the clients' own minimisers", find=init.erm, question="minimiser"),
        Start("bernoulli", "random, of norm 1", lambda k, d, truth, near, rng: init.bernoulli(k, d, rng)),
        Start("gaussian", "random, of norm about 1", lambda k, d, truth, near, rng: init.gaussian(k, d, rng)),
        Start("warm", "near the true centres", _warm, needs_truth=True),
        Start("fresh", "random initialisation of a network", for_modules=True),
    ],
)
DEFAULT_ASKING = "spectral"
"""The start of a method that computes its own, where the configured start asks no clients."""


def asks(name: str) -> bool:
    """Whether a start asks the clients."""
    return name in STARTS and STARTS[name].asks


def is_file(name: str) -> bool:
    """Whether a start is a file of centres, since it is not in the registry."""
    return name not in STARTS


def file_of(name: str) -> str:
    """The path of a start that is a file, without #NAME."""
    return name.partition(".safetensors#")[0] + (".safetensors" if ".safetensors#" in name else "")


def first_centres(
    name: str, clusters: int, dim: int, truth: Truth | None, closeness: float, dtype: str, rng: Generator
) -> Array:
    """The (k, d) centres of a start that asks no clients."""
    if is_file(name):
        try:
            centres = init.from_file(name, clusters, dim)
        except ValueError as error:
            names = ", ".join(start.name for start in STARTS if not start.for_modules)
            raise ValueError(f"algorithm.init: {error} (or use {names})") from None
    else:
        draw = STARTS[name].draw
        assert draw is not None
        centres = draw(clusters, dim, truth, closeness, rng)
    with np.errstate(over="ignore"):
        typed = centres.astype(np.dtype(dtype))
    if not np.isfinite(typed).all():
        raise ValueError(f"algorithm.init: {name}: a value is too large for {dtype}")
    return typed
