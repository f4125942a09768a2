"""A dry run of a site on its own data: whether they can be read, and what would be sent. Nothing leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import Context, RecordDict

from coterie._src.arrays import Floats, as_numpy
from coterie._src.data import Clients
from coterie._src.experiments.config import Config
from coterie._src.experiments.problems import Folder, Networks
from coterie._src.federation.guard import facts_of
from coterie._src.federation.installed import OWN_DATA, ready_made_site
from coterie._src.federation.messages import KINDS, OWN_CHOICE, Question
from coterie._src.federation.privacy import epsilon_of
from coterie._src.federation.site import Site
from coterie._src.federation.site_policy import ALLOWED, REFUSALS, History, SitePolicy, judge
from coterie._src.federation.site_reports import Request
from coterie._src.tasks import TASKS

MEANING = {
    "gradient": "in which direction a model should change, and which model fits best",
    "loss": "how well models fit",
    "minimiser": "the model that fits this site alone",
    "curvature": "the largest curvature of the loss",
    "size": "the number of samples",
    "hessian": "the second moments of the columns, for classes weighted by a model",
    "report": "scores on the held-out samples",
}
CLASSIFYING = [task.name for task in TASKS if task.classifies]
NUMBERS_OF_A_REPORT = "about 12"


class Sent(NamedTuple):
    """What one kind of question would be answered with."""

    kind: str
    meaning: str
    numbers: str
    samples: int  # behind the answer
    refusal: str  # why it is not answered; empty: it is


class SiteCheck(NamedTuple):
    """What a dry run found."""

    samples: int  # to learn from
    held_out: int
    weights: tuple[str, ...]
    sent: list[Sent]
    notes: list[str]


def check_site(config: Config, policy: SitePolicy, file: str | Path) -> SiteCheck:
    """Read a site's file as the federation would, and say what would be sent.

    Parameters
    ----------
    config
        The configuration of the federation.
    policy
        The site's rules.
    file
        The site's data. A ValueError names what is wrong with them.

    Returns
    -------
    SiteCheck
        The numbers of samples, the names of the weights of a model, what each kind of question would be answered with,
        and what the administrator should know.
    """
    problem = config.problem
    if not isinstance(problem, OWN_DATA):
        raise ValueError(f"problem.kind: a site has data of its own only with folder or network, got {problem.kind}")
    site = ready_made_site(config, Context(0, 0, {"data": str(file)}, RecordDict(), {}))
    clients = site.task.clients
    samples, held = int(clients.sizes[0]), 0 if site.held_out is None else int(site.held_out.sizes[0])
    columns = list[str]()
    weights: tuple[str, ...] = (f"each of the {site.task.dim} parameters of the network",)
    if isinstance(problem, Folder):
        width = clients.features.shape[1] - problem.adds_intercept
        columns = list(problem.columns) or [f"column {i + 1}" for i in range(width)]
        weights = (*columns, *(["intercept"] if problem.adds_intercept else []))
    sent = [_sent(kind, config, policy, site) for kind in ALLOWED]
    return SiteCheck(samples, held, weights, sent, list(_notes(config, policy, clients, columns, held)))


def _sent(kind: str, config: Config, policy: SitePolicy, site: Site) -> Sent:
    facts = facts_of(site)
    dim, clusters = facts.dim, config.problem.clusters
    resampled = kind == "gradient" and config.algorithm.resample
    centres = np.zeros((clusters, dim))
    question: Question | Request = Request(centres)
    if kind in KINDS:
        label = OWN_CHOICE if kind == "gradient" else 0
        question = Question(kind, 0, centres, label, (0, config.algorithm.rounds) if resampled else None)
    refusal = judge(policy, question, facts, History())
    numbers = {
        "gradient": f"{dim} and 4 more", "loss": "one for each model", "minimiser": str(dim), "curvature": "2",
        "size": "1", "hessian": str(dim * (dim + 1) // 2), "report": NUMBERS_OF_A_REPORT,
    }  # fmt: skip
    behind = facts.samples
    if kind == "report":
        behind = 0 if site.held_out is None else int(site.held_out.sizes[0])
    elif resampled:
        behind = facts.samples // (2 * max(1, config.algorithm.rounds))
    return Sent(kind, MEANING[kind], numbers[kind], behind, "" if refusal is None else REFUSALS[refusal])


def _notes(config: Config, policy: SitePolicy, clients: Clients, columns: list[str], held: int) -> Iterator[str]:
    samples = int(clients.sizes[0])
    if samples < policy.min_samples:
        yield f"min_samples: all is refused: {samples} samples to learn from, at least {policy.min_samples} are wanted"
    elif samples < 2 * policy.min_samples:
        yield (
            "min_samples: answers on one half of the samples are refused, which an estimate of the number of clusters "
            f"(algorithm.clusters = auto) needs; they take {2 * policy.min_samples} samples, here are {samples}"
        )
    needed = 2 * config.algorithm.rounds * policy.min_samples
    if config.algorithm.resample and samples < needed:
        yield (
            f"min_samples: algorithm.resample with {config.algorithm.rounds} rounds takes {needed} samples, here are "
            f"{samples}; its questions are refused"
        )
    if 0 < held < policy.min_held_out:
        yield f"min_held_out: {held} samples are held out, fewer than {policy.min_held_out}; no scores are reported"
    if samples <= clients.features.shape[1]:
        yield "with no more samples than columns, second moments determine the samples up to a rotation"
    features = np.asarray(as_numpy(clients.features), dtype=np.float64)
    for name, values in zip(columns, features.T, strict=False):
        rare = _rare(values)
        if 0 < rare < policy.min_samples:
            yield (
                f"{name}: only {rare} samples differ from its usual value, so second moments and gradients of this "
                "column tell about these alone; leave the column out, or join its values"
            )
    if policy.noise is None and (isinstance(config.problem, Networks) or config.problem.loss_of() in CLASSIFYING):
        yield "noise: for this loss two answers at models that a malicious server chooses tell a row; only noise helps"
    if policy.noise is not None:
        epsilon = epsilon_of((2 * config.algorithm.rounds * (2.0 / policy.noise) ** 2) ** 0.5, policy.delta)
        bound = "no bound is set" if policy.epsilon is None else f"the site stops at {policy.epsilon:g}"
        yield f"noise: {config.algorithm.rounds} rounds would have ε = {epsilon:.3g} at δ = {policy.delta:g}; {bound}"


def _rare(values: Floats) -> int:
    """How many values differ from the most frequent one; 0 for a column whose values are mostly different."""
    _, counts = np.unique(values, return_counts=True)
    others = int(len(values) - counts.max())
    return others if others < len(values) / 2 else 0
