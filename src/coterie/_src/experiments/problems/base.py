"""What a problem is: a table of the configuration that draws its own federation and builds its own task."""

from __future__ import annotations

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
    """The part of a problem that all kinds have.

    Class attributes
    ----------------
    has_truth : whether the clusters of the clients are known.
    has_parameters : whether there are true centres, so that there is a distance to them.
    defaults : what stands for a key of another table that is not given.
    keeps_draws : whether the next trial may reuse the data of the last one where nothing of the problem changed.
    """

    has_truth: ClassVar[bool] = True
    has_parameters: ClassVar[bool] = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    keeps_draws: ClassVar[bool] = True

    kind: str
    clusters: int = Field(5, ge=1, description="k, the number of clusters and of centres")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of data, updates and centres")

    def draw(self, rng: Generator) -> Federation:
        """The clients of one trial."""
        raise NotImplementedError

    def build_task(self, clients: Clients) -> Task:
        """What the clients compute."""
        raise NotImplementedError

    def setup(self, drawn: Federation, device: str, rng: Generator) -> Setup:
        """The task on a draw, and where its starts begin."""
        task = self.build_task(drawn.clients)
        return Setup(task, drawn, np.zeros((1, task.dim), dtype=np.dtype(self.dtype)))

    def computing(self) -> AbstractContextManager[None]:
        """What must hold while the clients compute."""
        return nullcontext()

    def files(self) -> tuple[str, ...]:
        """The files and folders that the problem reads."""
        return ()

    def anchored(self) -> Self:
        """The same with whole paths, so that it means the same from any working directory."""
        return self

    def check(self, clients: Clients, device: str) -> None:
        """Find what only the data can tell, before any work is done."""

    def reads_data(self) -> bool:
        """Whether the data come from files, which may be wrong."""
        return bool(self.files())

    def title(self) -> str:
        """One line for the head of a table."""
        raise NotImplementedError

    def loss_of(self) -> str | None:
        """The name of the task that predicts targets; None where nothing is predicted."""
        return None


class Setup(NamedTuple):
    """What a trial begins with."""

    task: Task
    federation: Federation
    example: Array  # (…, dim): the kind, dtype and device of centres
    origin: Array | None = None  # (1, dim), where a robust start asks for gradients; None for 0
    shared: int = 0  # leading coordinates that all clusters have in common
