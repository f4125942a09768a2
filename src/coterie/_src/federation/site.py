"""A site of a federation: its rows, the models that it could use, and their scores on the rows that it held out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from coterie._src.arrays import Array, as_numpy, like
from coterie._src.data import Clients, HeldOut
from coterie._src.evaluation import held_out_scores
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.federation.site_reports import LARGEST, Report, Request
from coterie._src.personal import personalise
from coterie._src.tasks import Task, assign

PERSONAL = "personal.safetensors"
"""The file of a site's own models, in the folder of its models."""


@dataclass(frozen=True)
class Site:
    """The data of one site.

    Parameters
    ----------
    task
        The task on the rows that the site learns from. For a network: its own model alone is trained as
        `task.fitting(rounds, step)` says; for as many rounds as the federation has, the comparison is fair.
    held_out
        The rows that no model sees, those of one client; None for a site that held out none.
    models
        The folder into which the site writes its models after the last round; None: it writes none.
    method
        The name under which the models of all clusters are written.
    files
        Further files of this folder, by name.
    names
        What a safetensors file says about its tensors, such as the names of the columns.

    Examples
    --------
    >>> from coterie._src.tasks import mean_estimation
    >>> rows = np.arange(8.0)[:, None]
    >>> site = Site(mean_estimation(Clients(rows[:6], None, np.array([6]))), Clients(rows[6:], None, np.array([2])))
    >>> site.task.clients.count, site.held_out.sizes.tolist()
    (1, [2])
    """

    task: Task
    held_out: Clients | None = None
    models: Path | None = None
    method: str = "federation"
    files: Mapping[str, bytes] | None = None
    names: Mapping[str, str] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all values of the site's samples."""
        found = hashlib.blake2b(digest_size=16)
        for clients in (self.task.clients, *(() if self.held_out is None else (self.held_out,))):
            for values in (clients.features, clients.targets):
                if values is not None:
                    row = np.ascontiguousarray(as_numpy(values))
                    found.update(f"{row.dtype}{row.shape}".encode())
                    found.update(row.data)
        return found.hexdigest()

    def __post_init__(self) -> None:
        for rows, clients in (("its data", self.task.clients), ("its held-out rows", self.held_out)):
            if clients is not None and clients.count != 1:
                raise ValueError(f"a site is one client, but {rows} hold {clients.count}")


def evaluated_site(site: Site, request: Request) -> tuple[Report, dict[str, Array]]:
    """Return what a site reports, and its models: of its cluster, its personal one, one for all, and its own alone.

    The cluster is the one whose model has the lowest loss on the rows that the site learnt from. The models stay at the
    site. A loss that is not finite is reported as the largest number that a report may hold.
    """
    task = site.task
    for name, given in (("centres", request.centres), ("for_all", request.for_all)):
        if given is not None and given.shape[1] != task.dim:
            raise ValueError(f"request: {name} has {given.shape[1]} parameters, this model has {task.dim}")
    centres = like(request.centres, task.clients.features)
    with np.errstate(all="ignore"):
        label = assign(task.losses(centres))
        models = {
            "cluster": centres[int(label[0]) : int(label[0]) + 1],
            "personal": personalise(task, centres, label).models,
            "local": personalise(task).models,
        }
        if request.for_all is not None:
            models["global"] = like(request.for_all, task.clients.features)
        report = Report(int(label[0]), int(task.clients.sizes[0]))
        return (report if site.held_out is None else _scored(report, task, site.held_out, models)), models


def _scored(report: Report, task: Task, held_out: Clients, models: Mapping[str, Array]) -> Report:
    """The report with the scores on the held-out rows."""
    rows, counted = HeldOut(held_out, np.zeros(1, dtype=np.int64)), np.ones(1, dtype=np.bool_)
    scores = {name: held_out_scores(task, rows, model, counted) for name, model in models.items()}
    accuracies = {name: float(found.accuracies[0]) for name, found in scores.items()}
    targets = None if held_out.targets is None else as_numpy(held_out.targets).astype(np.float64)
    error = 0.0
    if scores["personal"].samples and scores["local"].samples:
        each = scores["personal"].samples[0] - scores["local"].samples[0]
        error = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else 0.0
    return report._replace(
        test_samples=int(held_out.sizes[0]),
        losses={name: _limited(float(found.losses[0])) for name, found in scores.items()},
        accuracies={name: value for name, value in accuracies.items() if math.isfinite(value)},
        target_mean=0.0 if targets is None else float(targets.mean()),
        target_variance=0.0 if targets is None else float(targets.var()),
        error=_limited(error),
    )


def _limited(value: float) -> float:
    return min(value, LARGEST) if math.isfinite(value) else LARGEST


def write_models(site: Site, request: Request, report: Report, models: Mapping[str, Array]) -> None:
    """Write a site's models into its folder, where `coterie.load` finds the clusters' models; nothing without a folder.

    Files: personal.safetensors (a tensor for each model that the site could use), centres.safetensors (the models of
    all clusters), report.json (what was sent to the server), and those of the site.
    """
    if site.models is None:
        return
    names = dict(site.names or {}) or None
    own = {name: np.ascontiguousarray(as_numpy(model)[0]) for name, model in models.items()}
    write_atomically(site.models / PERSONAL, save(own, names))
    write_atomically(site.models / "centres.safetensors", save({site.method: np.array(request.centres)}, names))
    write_atomically(site.models / "report.json", f"{json.dumps(report.numbers(), indent=2)}\n".encode())
    for name, content in (site.files or {}).items():
        write_atomically(site.models / name, content)
