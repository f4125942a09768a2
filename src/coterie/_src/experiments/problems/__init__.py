"""The registry of problems: sections of the configuration that draw a federation and build a task."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny
from pydantic_core import PydanticCustomError

from coterie._src.data.known_tables import KNOWN_TABLES
from coterie._src.experiments.problems.base import Problem, Setup
from coterie._src.experiments.problems.folder import ClientTables, Folder, KnownTables
from coterie._src.experiments.problems.images import Images
from coterie._src.experiments.problems.networks import Networks, OwnNetwork
from coterie._src.experiments.problems.synthetic import GaussianMeans, MixedRegression, PoissonMeans, Synthetic
from coterie._src.experiments.problems.tabular import Tabular
from coterie._src.registry import Registry

__all__ = [
    "PROBLEMS",
    "AnyProblem",
    "ClientTables",
    "Folder",
    "GaussianMeans",
    "Images",
    "KnownTables",
    "MixedRegression",
    "Networks",
    "OwnNetwork",
    "PoissonMeans",
    "Problem",
    "ProblemRecord",
    "Setup",
    "Synthetic",
    "Tabular",
    "problem_of",
]


@dataclass(frozen=True)
class ProblemRecord:
    """The record of a problem: a value of `problem.kind`, and its section."""

    name: str
    summary: str
    section: type[Problem]


PROBLEMS: Registry[ProblemRecord] = Registry(
    "problem",
    [
        ProblemRecord("mixed-regression", "the paper's mixture of linear regressions", MixedRegression),
        ProblemRecord("gaussian-means", "means of Gaussian samples (Section 3)", GaussianMeans),
        ProblemRecord("poisson-means", "means of counts (Section 5.3)", PoissonMeans),
        ProblemRecord("tabular", "regressions whose features look like the columns of real tables", Tabular),
        ProblemRecord("rotated-digits", "images, rotated by another angle in every cluster", Images),
        ProblemRecord("permuted-digits", "images, with the classes permuted in every cluster", Images),
        ProblemRecord("folder", "your own data, one file per client or one file for all", Folder),
        ProblemRecord("network", "your own samples, such as images, and a network", OwnNetwork),
        *(ProblemRecord(known.name, known.summary, KnownTables) for known in KNOWN_TABLES),
    ],
)


def problem_of(raw: Any) -> Any:
    """The table of the kind that a raw problem names; a validator of the configuration."""
    if not isinstance(raw, dict):
        return raw
    kind = raw.get("kind", PROBLEMS.names[0])
    if kind not in PROBLEMS.names:
        raise PydanticCustomError("union_tag_invalid", "unknown kind of problem")
    return PROBLEMS[kind].section.model_validate(raw)


AnyProblem = Annotated[SerializeAsAny[Problem], BeforeValidator(problem_of)]
"""The table `problem` of a configuration: that of any record of `PROBLEMS`."""
