"""The first centres by name: random, near the truth, from a file, or found by asking the clients."""

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
from coterie._src.registry import Registry


@dataclass(frozen=True)
class Start:
    """A start by its name.

    Parameters
    ----------
    draw : from k, d, the truth, the closeness of a warm start and a generator to (k, d) centres; None for a start that
        asks the clients or comes from the module itself.
    find : how answers are clustered, for a start that asks.
    question : what it asks for.
    needs_truth : whether it needs the true centres.
    for_modules : whether it is a module's own start.
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
        """Whether the server of a real federation can begin so."""
        return not self.needs_truth and not self.for_modules

    def asking(
        self,
        byzantine_fraction: float,
        clusters: int | None,
        max_clusters: int,
        curvature: float,
        ridge: float,
        origin: Array | None,
        shared: int,
    ) -> RobustStart:
        """The start of a server that asks; see `RobustStart`."""
        assert self.find is not None
        settings = byzantine_fraction, clusters, max_clusters, curvature, ridge, origin, shared
        return RobustStart(self.find, self.question, *settings)


def _warm(clusters: int, dim: int, truth: Truth | None, closeness: float, rng: Generator) -> Floats:
    if truth is None:
        raise ValueError("algorithm.init: warm needs the true centres")
    return init.warm(truth, closeness, rng)


STARTS: Registry[Start] = Registry(
    "start",
    [
        Start("spectral", "found from one round of gradients, along their leading directions", find=init.spectral),
        Start("balls", "found from one round of gradients, from the densest balls", find=init.balls),
        Start("erm", "found from the clients' own minimisers", find=init.erm, question="minimiser"),
        Start("bernoulli", "random, of norm 1", lambda k, d, truth, near, rng: init.bernoulli(k, d, rng)),
        Start("gaussian", "random, of norm about 1", lambda k, d, truth, near, rng: init.gaussian(k, d, rng)),
        Start("warm", "near the truth", _warm, needs_truth=True),
        Start("fresh", "a module's own random start", for_modules=True),
    ],
)
DEFAULT_ASKING = "spectral"
"""What a method that finds its own start takes where the configured start asks nobody."""


def asks(name: str) -> bool:
    """Whether a server that begins so asks the clients."""
    return name in STARTS and STARTS[name].asks


def is_file(name: str) -> bool:
    """Whether it is no named start, so that it must be a file of centres."""
    return name not in STARTS


def file_of(name: str) -> str:
    """The file of a start that names one, without the tensor's name."""
    return name.partition(".safetensors#")[0] + (".safetensors" if ".safetensors#" in name else "")


def first_centres(
    name: str, clusters: int, dim: int, truth: Truth | None, closeness: float, dtype: str, rng: Generator
) -> Array:
    """The first (k, d) centres of a start that asks nobody: a named one, or a file."""
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
