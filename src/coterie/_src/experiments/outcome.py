"""What a trial gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Floats
from coterie._src.diagnostics import Diagnostics
from coterie._src.evaluation import Scores
from coterie._src.experiments.changes import Changes
from coterie._src.membership import Membership
from coterie._src.metrics import Metrics

Row = dict[str, Any]


@dataclass(frozen=True)
class MethodResult:
    """What one method gave in one trial."""

    metrics: Metrics
    rounds: list[Row]
    audit: list[Row]
    centres: NDArray[Any]
    clusters: list[Row] = field(default_factory=list)  # per true cluster, where there are samples to test on
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (m,), of every client
    diagnostics: Diagnostics | None = None  # of Algorithm 1 with Hessians
    personal: NDArray[Any] | None = None  # (m, d), the model of every client, of a method that gives each its own
    scores: Scores | None = None  # of the clients on their held-out samples, where there are any
    membership: Membership | None = None  # of methods that cluster the clients
    assignments: list[Row] = field(default_factory=list)  # per round, the clients that came into another cluster
    directions: Floats | None = None  # (m, 2), the clients' updates at one point, see `leading_directions`


@dataclass(frozen=True)
class TrialResult:
    """What all methods gave in one trial."""

    trial: int
    methods: dict[str, MethodResult]
    clients: list[Row] = field(default_factory=list)  # per client and clustering method, with held-out samples
    comparisons: dict[str, str] = field(default_factory=dict)  # by method: who is better off than alone, in words
    changes: Changes | None = None  # of a run that continues an earlier one
    options: Mapping[str, Any] = field(default_factory=dict)  # in a sweep, those in which its configurations differ
