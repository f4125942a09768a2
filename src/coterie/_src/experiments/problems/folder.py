"""Problems whose clients are tables: the user's own files, and tables that are known by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import AfterValidator, Field, model_validator

from coterie._src.data import Clients, Encoding, Federation, OwnData, encode_tables, hold_out, read_tables, stamp
from coterie._src.data.known_tables import KNOWN_TABLES, read_known
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.problems.base import KIND, Problem
from coterie._src.tasks import TASKS, Task

TaskName = Annotated[str, AfterValidator(TASKS.resolve)]


class ClientTables(Problem):
    """The base class of problems whose clients are tables with named columns."""

    has_truth: ClassVar[bool] = False
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "algorithm": {"init": "spectral", "coordinates": "hessian", "personalise": "shrink"},
        "run": {"methods": ["coterie", "global", "local"], "trials": 1},
    }

    dtype: Literal["float32", "float64"] = Field("float64", description="precision of data, updates and centres")
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
    intercept: bool = Field(True, description="add a feature that is always 1; the mean task has none")
    level_clients: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="a level of a text column counts if more than this fraction of the clients have it: at least the "
        "fraction that may be Byzantine",
    )
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
        clients, held_out = hold_out(self.own_data().clients, self.holdout, rng)
        byzantine = np.zeros(clients.count, dtype=np.bool_)
        byzantine[rng.permutation(clients.count)[: byzantine_count(clients.count, self.byzantine)]] = True
        return Federation(clients, held_out=held_out, byzantine=byzantine)

    def title(self, clusters: str = "") -> str:
        """clusters: how many were found, where k is estimated."""
        return f"{self.source}: k={clusters or self.clusters}, {self.task}"

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the clients come from, for titles."""

    @abstractmethod
    def own_data(self) -> OwnData:
        """The clients and the encoding of their columns; files that did not change are read once."""

    def encoding(self) -> Encoding:
        """What is done to the columns."""
        return self.own_data().encoding

    def _options(self) -> dict[str, Any]:
        return {
            "target": self.target_column,
            "columns": tuple(self.columns),
            "offset": tuple(self.offset),
            "scale": tuple(self.scale),
            "intercept": self.adds_intercept,
            "dtype": self.dtype,
        }

    @property
    def adds_intercept(self) -> bool:
        return self.intercept and TASKS[self.task].needs_targets

    @property
    def target_column(self) -> str | None:
        return self.target if TASKS[self.task].needs_targets else None

    def weight_names(self) -> list[str]:
        """The names of the features whose weights are the coordinates of a centre."""
        return [*self.encoding().feature_names, *(["intercept"] if self.adds_intercept else [])]

    def build_task(self, clients: Clients) -> Task:
        return TASKS[self.task].build(clients, self.classes)

    def loss_of(self) -> str | None:
        return self.task if TASKS[self.task].needs_targets else None

    def check(self, clients: Clients, device: str) -> None:
        if TASKS[self.task].classifies:
            self.build_task(clients)  # raises an error if a target is not a class


class Folder(ClientTables):
    """A folder with one .csv, .tsv, .parquet or .npz file per client, or one such file with a column of clients."""

    kind: Literal["folder"] = Field("folder", description=KIND)
    clusters: int = Field(
        5, ge=1, description="k, the number of clusters and of centres; not set: algorithm.clusters is auto"
    )
    path: str = Field(
        "clients", min_length=1, description="folder with one .csv, .tsv, .parquet or .npz file per client, or one file"
    )
    client: str = Field(
        "", description="the column of one file that says whose row it is; empty: a file holds one client"
    )

    def own_data(self) -> OwnData:
        options = {**self._options(), "client": self.client or None, "max_byzantine": self.level_clients}
        return _read_once(self.path, stamp(self.path), **options)

    def site_clients(self, path: str) -> Clients:
        """The one client in the file of a site of a real federation.

        What to do with text and missing values would depend on the tables of all clients, which no site has.
        """
        clients, encoding = read_tables(path, **self._options())
        if not encoding.is_plain:
            line = next(line for line in encoding.lines() if not line.endswith("as it is"))
            raise ValueError(f"{path}: a site needs columns of numbers without missing values; {line}")
        return clients

    def files(self) -> tuple[str, ...]:
        return (self.path,)

    def anchored(self) -> Self:
        return self.model_copy(update={"path": str(Path(self.path).resolve())})

    @property
    def source(self) -> str:
        return self.path

    @classmethod
    def defaults_for(cls, given: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The number of clusters of own data is estimated where it is not given."""
        if "clusters" in given:
            return cls.defaults
        return {**cls.defaults, "algorithm": {**cls.defaults["algorithm"], "clusters": "auto"}}


class KnownTables(ClientTables):
    """A table that is known by name (`KNOWN_TABLES`), with its task, its target and its clients."""

    kind: Literal["schools-like", "ilea", "hsb82", "exam", "parkinsons", "heart"] = Field(
        "schools-like", description=KIND
    )
    clusters: int = Field(3, ge=1, description="k, the number of clusters and of centres")
    path: str = Field(".", min_length=1, description="folder with the published files; schools-like has none")

    @model_validator(mode="before")
    @classmethod
    def _as_known(cls, raw: Any) -> Any:
        """Set the task and the target, which only the table decides, and the path of a table without files."""
        if not isinstance(raw, dict) or raw.get("kind", "schools-like") not in KNOWN_TABLES.names:
            return raw
        known = KNOWN_TABLES[raw.get("kind", "schools-like")]
        for key, value in (("task", known.task), ("target", known.target)):
            if raw.get(key, value) != value:
                raise ValueError(f"{key} of {known.name} must be {value}, got {raw[key]}")
        found = {**raw, "task": known.task, "target": known.target}
        return found if known.files else {**found, "path": "."}

    def own_data(self) -> OwnData:
        return _read_known_once(
            self.kind, self.path, tuple(map(stamp, self.files())), self.level_clients, **self._options()
        )

    def files(self) -> tuple[str, ...]:
        return tuple(str(Path(self.path) / file) for file in KNOWN_TABLES[self.kind].files)

    def reads_data(self) -> bool:
        return True

    def anchored(self) -> Self:
        if not self.files():
            return self
        return self.model_copy(update={"path": str(Path(self.path).resolve())})

    @property
    def source(self) -> str:
        return self.kind


@lru_cache(maxsize=1)
def _read_once(path: str, stamp: tuple[tuple[str, int, int], ...], **options: Any) -> OwnData:
    """The clients of the files; stamp: that of the path, so that changed files are read again."""
    return read_tables(path, **options)


@lru_cache(maxsize=len(KNOWN_TABLES.names))
def _read_known_once(name: str, path: str, stamps: tuple[Any, ...], level_clients: float, **options: Any) -> OwnData:
    """The clients of a known table; stamps: those of its files."""
    return encode_tables(read_known(name, path), max_byzantine=level_clients, **options)
