"""The problem `tabular`: regressions whose features look like the columns of real tables."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from numpy.random import Generator
from pydantic import Field, model_validator

from coterie._src.data import Clients, Federation, tabular
from coterie._src.data.tabular import MAX_SCALES, TaskName, check_fractions, check_shape
from coterie._src.experiments.problems.base import KIND
from coterie._src.experiments.problems.synthetic import Synthetic
from coterie._src.tasks import TASKS, Task


class Tabular(Synthetic):
    """Regressions on columns that are correlated, of unequal scale, not centred, binary, counts or heavy-tailed."""

    kind: Literal["tabular"] = Field("tabular", description=KIND)
    dim: int = Field(50, ge=1, description="d, the number of feature columns, the intercept included")
    task: TaskName = Field("linear", description="the model of the targets: linear, logistic or softmax")
    classes: int = Field(3, ge=2, description="number of classes of the softmax task")
    noise_variance: float = Field(0.2, ge=0, description="sigma^2, the variance of the noise of the linear task")
    separation: Literal["drawn"] | Annotated[float, Field(gt=0)] = Field(
        "drawn", description='smallest distance between two true centres; "drawn": whatever the draw gives'
    )
    correlation: float = Field(0.0, gt=-1, lt=1, description="correlation of neighbouring columns")
    factors: int = Field(0, ge=0, description="number of common factors of the columns, with loadings N(0, 1)")
    scales: float = Field(
        0.0, ge=0, le=MAX_SCALES, description="s: every column is multiplied by e^u, u uniform between -s and s"
    )
    mean: float = Field(0.0, description="mean of the columns that are not binary, before the scales")
    binary: float = Field(
        0.0, ge=0, le=1, description="fraction of the columns that are 1 with probability 0.1, else 0"
    )
    counts: float = Field(0.0, ge=0, le=1, description="fraction of the columns that are Poisson with mean 2")
    heavy: float = Field(
        0.0, ge=0, le=1, description="fraction of the columns that are Student t with 3 degrees of freedom, variance 1"
    )
    client_means: float = Field(0.0, ge=0, description="standard deviation of the means of each client, per column")
    client_covariances: float = Field(
        0.0, ge=0, description="c: the rows of each client are multiplied by I + c*G/sqrt(d), G standard normal"
    )
    spread: float = Field(0.0, ge=0, description="distance of a client's parameter from that of its cluster, about")
    intercept: bool = Field(False, description="whether the last column is the constant 1")

    @model_validator(mode="after")
    def _possible(self) -> Tabular:
        check_fractions(binary=self.binary, counts=self.counts, heavy=self.heavy)
        check_shape(self.dim, self.intercept, self.clusters, self.distance)
        return self

    @property
    def distance(self) -> float | None:
        """`separation` in the form of the generator."""
        return None if self.separation == "drawn" else self.separation

    def draw(self, rng: Generator) -> Federation:
        knobs = {name: getattr(self, name) for name in KNOBS}
        return self._drawn(partial(tabular, rng, **{**knobs, "separation": self.distance}))

    def build_task(self, clients: Clients) -> Task:
        return TASKS[self.task].build(clients, self.classes)

    def loss_of(self) -> str | None:
        return self.task

    def title(self) -> str:
        fields, found = type(self).model_fields, {name: getattr(self, name) for name in KNOBS}
        named = [f"{name}={value}" for name, value in found.items() if value != fields[name].default]
        return ", ".join([super().title(), *named])


KNOBS = tuple(name for name in Tabular.model_fields if name not in Synthetic.model_fields)
"""The keys that synthetic problems do not all have, which are parameters of the generator, too."""
