"""The problem `folder`: the user's data, one file per client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import AfterValidator, Field

from coterie._src.data import Clients, Federation, feature_names, hold_out, read_folder
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.problems.base import KIND, Problem
from coterie._src.tasks import TASKS, Task

TaskName = Annotated[str, AfterValidator(TASKS.resolve)]


class Folder(Problem):
    """A folder with one .csv, .parquet or .npz file per client."""

    has_truth: ClassVar[bool] = False
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "algorithm": {"init": "spectral", "coordinates": "hessian", "personalise": "shrink"},
        "run": {"methods": ["coterie", "global", "local"], "trials": 1},
    }

    kind: Literal["folder"] = Field("folder", description=KIND)
    dtype: Literal["float32", "float64"] = Field("float64", description="precision of data, updates and centres")
    path: str = Field("clients", min_length=1, description="folder with one .csv, .parquet or .npz file per client")
    task: TaskName = Field(
        "linear", description="linear, logistic (target 0/1), softmax (target 0..classes-1), or mean (no target)"
    )
    target: str = Field("y", description="name of the target column (not used by the mean task)")
    columns: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="the feature columns, in this order; empty: all but the target, in the order of the first file"
    )
    offset: list[float] = Field([], description="one number per feature, which is subtracted; empty: 0")
    scale: list[Annotated[float, Field(gt=0)]] = Field(
        [], description="one number per feature, which it is then divided by (for mean 0, deviation 1); empty: 1"
    )
    classes: int = Field(2, ge=2, description="number of classes of the softmax task")
    intercept: bool = Field(False, description="add a feature that is always 1")
    holdout: float = Field(
        0.25, ge=0, lt=1, description="fraction of each client's samples that no method sees, for evaluation; 0: none"
    )
    byzantine: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="for a rehearsal: fraction of the clients, drawn at random, that send what [attack] says",
    )

    def draw(self, rng: Generator) -> Federation:
        clients, held_out = hold_out(self.own_clients(self.path), self.holdout, rng)
        byzantine = np.zeros(clients.count, dtype=np.bool_)
        byzantine[rng.permutation(clients.count)[: byzantine_count(clients.count, self.byzantine)]] = True
        return Federation(clients, held_out=held_out, byzantine=byzantine)

    def own_clients(self, path: str) -> Clients:
        """The clients of a folder, or the one client of a file."""
        return read_folder(
            path,
            self.target_column,
            columns=self.columns,
            offset=self.offset,
            scale=self.scale,
            intercept=self.intercept,
            dtype=self.dtype,
        )

    @property
    def target_column(self) -> str | None:
        return self.target if TASKS[self.task].needs_targets else None

    def weight_names(self) -> list[str]:
        """The names of the features whose weights are the coordinates of a centre."""
        names = feature_names(self.path, self.target_column, self.columns)
        return [*names, *(["intercept"] if self.intercept else [])]

    def build_task(self, clients: Clients) -> Task:
        return TASKS[self.task].build(clients, self.classes)

    def loss_of(self) -> str | None:
        return self.task if TASKS[self.task].needs_targets else None

    def files(self) -> tuple[str, ...]:
        return (self.path,)

    def anchored(self) -> Self:
        return self.model_copy(update={"path": str(Path(self.path).resolve())})

    def check(self, clients: Clients, device: str) -> None:
        if TASKS[self.task].classifies:
            self.build_task(clients)  # raises an error if a target is not a class

    def title(self) -> str:
        return f"{self.path}: k={self.clusters}, {self.task}"
