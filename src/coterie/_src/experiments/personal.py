"""A model of its own for a client that was not in the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy, like
from coterie._src.membership import Membership, cluster_of
from coterie._src.personal import personalise
from coterie._src.tasks import Task


@dataclass(frozen=True)
class PersonalModel:
    """The model of one client, shrunk towards that of its cluster; made by `personalise` of a result alone.

    Attributes
    ----------
    model : ndarray of shape (d,)
        Its parameters, in the coordinates of the centres.
    cluster : int
        The client's cluster; -1 if it fits none of them, and then the model is the client's own.
    shrinkage : float
        From 0, the client's own fit, to 1, the cluster's model.
    anchor : str
        "cluster" or "own": what the model was shrunk towards.
    """

    model: NDArray[Any]
    cluster: int
    shrinkage: float
    anchor: str
    _predict: Callable[[NDArray[Any], Any], NDArray[Any]] = field(repr=False, compare=False)

    def predict(self, x: Any) -> NDArray[Any]:
        """(n,): the numbers or classes that the model predicts for samples in the columns of the client's data."""
        return self._predict(self.model, x)


def personal_model(
    task: Task,
    centres: NDArray[Any],
    membership: Membership | None,
    predict: Callable[[NDArray[Any], Any], NDArray[Any]],
) -> PersonalModel:
    """The personal model of the only client of a task. membership: None if it is in the nearest cluster in any case.

    predict: from (d,) parameters and samples to predictions.
    """
    points = like(centres, task.clients.features)
    cluster = cluster_of(task, points, membership)
    found = personalise(task, points, np.array([cluster]))
    return PersonalModel(as_numpy(found.models)[0], cluster, float(found.shrinkage[0]), found.anchors[0], predict)
