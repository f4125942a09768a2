"""One row per client: the held-out scores of the models that it could use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from coterie._src.arrays import Ints
from coterie._src.data import Clients, HeldOut
from coterie._src.evaluation import Scores
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.outcome import MethodResult, Row

ALONE = f"local{OWN}"
"""The method that gives a client what it could have without the federation."""
FOR_ALL = "global"
"""The method that gives all clients one model."""


MODELS = ("cluster", "personal", "global", "local")
"""The models that a client could use: of its cluster, its personal one, one for all, and what it has alone."""


def client_rows(method: str, results: Mapping[str, MethodResult], clients: Clients, held_out: HeldOut) -> list[Row]:
    """A row per client for a clustering method, without the method and the trial; see `score_rows`."""
    result = results[method]
    found = (result, results.get(method + OWN), results.get(FOR_ALL), results.get(ALONE))
    scores = {
        name: one.scores for name, one in zip(MODELS, found, strict=True) if one is not None and one.scores is not None
    }
    tested = np.zeros(clients.count, dtype=np.int64)
    tested[held_out.owners] = held_out.clients.sizes
    return score_rows(clients.names, result.labels, clients.sizes, tested, scores)


def score_rows(
    names: Sequence[str], labels: Ints, samples: Ints, tested: Ints, scores: Mapping[str, Scores]
) -> list[Row]:
    """A row per client; scores: by the names of `MODELS`.

    cluster; samples and test_samples, the numbers of samples that were learnt from and held out; the scores (R² or
    accuracy, else the negative loss) of the models; and best, the one with the lowest held-out loss. A score that is
    not known is empty.
    """
    return [
        {
            "client": name,
            "cluster": int(labels[client]),
            "samples": int(samples[client]),
            "test_samples": int(tested[client]),
            **{f"{model}_score": _score(scores.get(model), client) for model in MODELS},
            "best": _best(scores, client) if tested[client] else "",
        }
        for client, name in enumerate(names)
    ]


def _score(scores: Scores | None, client: int) -> float | str:
    value = math.nan if scores is None else float(scores.main[client])
    return round(value, 6) if math.isfinite(value) else ""


def _best(scores: Mapping[str, Scores], client: int) -> str:
    losses = {name: float(found.losses[client]) for name, found in scores.items()}
    return min(losses, key=lambda name: math.inf if math.isnan(losses[name]) else losses[name])
