"""The base class of problems: sections of the configuration that draw a federation and build a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.random import Generator
from pydantic import Field

from coterie._src.arrays import Array
from coterie._src.data import Clients, Federation
from coterie._src.experiments.sections import Section
from coterie._src.tasks import Task

KIND = "the kind of problem, each with keys of its own; `coterie list problems` names them"


class Problem(Section):
    """The base class of problems.

    Class attributes
    ----------------
    has_truth : whether the true clusters of the clients are known.
    has_parameters : whether there are true centres.
    defaults : defaults of keys of other sections, for this problem.
    keeps_draws : whether the data may be reused for the next trial if problem, seed and trial are the same.
    """

    has_truth: ClassVar[bool] = True
    has_parameters: ClassVar[bool] = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    keeps_draws: ClassVar[bool] = True

    kind: str
    clusters: int = Field(5, ge=1, description="k, the number of clusters and of centres")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of data, updates and centres")

    @classmethod
    def defaults_for(cls, given: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The defaults of keys of other sections; given: the keys of the problem that are set."""
        return cls.defaults

    @abstractmethod
    def draw(self, rng: Generator) -> Federation:
        """The clients of one trial."""

    @abstractmethod
    def build_task(self, clients: Clients) -> Task:
        """The task of the clients."""

    def setup(self, drawn: Federation, device: str, rng: Generator) -> Setup:
        """The task on drawn clients, with an example of its centres."""
        task = self.build_task(drawn.clients)
        return Setup(task, drawn, np.zeros((1, task.dim), dtype=np.dtype(self.dtype)))

    def computing(self) -> AbstractContextManager[None]:
        """A context in which the clients compute."""
        return nullcontext()

    def files(self) -> tuple[str, ...]:
        """The files and folders that the problem reads."""
        return ()

    def anchored(self) -> Self:
        """The problem with absolute paths, so that it is valid in any working directory."""
        return self

    def check(self, clients: Clients, device: str) -> None:
        """Raise a ValueError if the clients' data do not fit the options."""

    def reads_data(self) -> bool:
        """Whether the data come from files, so that they must be checked."""
        return bool(self.files())

    @abstractmethod
    def title(self) -> str:
        """One line for the title of a table."""

    def loss_of(self) -> str | None:
        """The name of the task that predicts targets; None where nothing is predicted."""
        return None


class Setup(NamedTuple):
    """The task and the clients of a trial."""

    task: Task
    federation: Federation
    example: Array  # (…, dim), an array with the type, dtype and device of centres
    origin: Array | None = None  # (1, dim), the point at which a robust start asks for gradients; None for 0
    shared: int = 0  # the number of leading coordinates that all clusters share
