"""One row per client: the held-out scores of the models that it could use."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from coterie._src.data import Clients, HeldOut
from coterie._src.evaluation import Scores
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.outcome import MethodResult, Row

ALONE = f"local{OWN}"
"""The method that gives a client what it could have without the federation."""
FOR_ALL = "global"
"""The method that gives all clients one model."""


def client_rows(method: str, results: Mapping[str, MethodResult], clients: Clients, held_out: HeldOut) -> list[Row]:
    """A row per client for a clustering method, without the method and the trial.

    cluster; samples and test_samples, the numbers of samples that were learnt from and held out; the scores (R² or
    accuracy, else the negative loss) of the cluster's model, the personal one, the global one, and the client's own
    (`local+own`); and best, the one with the lowest held-out loss. A score that is not known is empty.
    """
    result = results[method]
    models = {
        "cluster": result,
        "personal": results.get(method + OWN),
        "global": results.get(FOR_ALL),
        "local": results.get(ALONE),
    }
    scores = {name: found.scores for name, found in models.items() if found is not None and found.scores is not None}
    tested = np.zeros(clients.count, dtype=np.int64)
    tested[held_out.owners] = held_out.clients.sizes
    return [
        {
            "client": name,
            "cluster": int(result.labels[client]),
            "samples": int(clients.sizes[client]),
            "test_samples": int(tested[client]),
            **{f"{model}_score": _score(scores.get(model), client) for model in models},
            "best": _best(scores, client) if tested[client] else "",
        }
        for client, name in enumerate(clients.names)
    ]


def _score(scores: Scores | None, client: int) -> float | str:
    value = math.nan if scores is None else float(scores.main[client])
    return round(value, 6) if math.isfinite(value) else ""


def _best(scores: Mapping[str, Scores], client: int) -> str:
    losses = {name: float(found.losses[client]) for name, found in scores.items()}
    return min(losses, key=lambda name: math.inf if math.isnan(losses[name]) else losses[name])
