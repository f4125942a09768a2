"""What the sites of a federation say about their models, on rows that they held out, and a robust summary of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from coterie._src.arrays import Array, Floats, as_numpy
from coterie._src.evaluation import WORST, Comparison, Scores
from coterie._src.experiments.client_rows import MODELS, score_rows
from coterie._src.experiments.method_setting import max_byzantine_count
from coterie._src.experiments.outcome import Row
from coterie._src.experiments.printable import printable
from coterie._src.experiments.results import as_csv
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.federation.audit import site_names
from coterie._src.federation.checkpoint import CLIENTS, SUMMARY, Checkpoint
from coterie._src.federation.network import FlowerNetwork
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.server_folder import Participants, server_of
from coterie._src.federation.site_reports import Report, Request, Score, admit_report
from coterie._src.kernels.order_statistics import mean_between_ranks
from coterie._src.metrics import NOT_APPLICABLE

NO_REPLY = "no report"
SCORE_NAMES: dict[Score, str] = {"r2": "R²", "accuracy": "accuracy", "loss": "negative loss"}


@dataclass(frozen=True)
class Evaluation:
    """The reports of the sites, and their summary. Made by `evaluate_sites`.

    A report is what a site says, and at most `max_byzantine` of them are from Byzantine sites. So every number of the
    summary is a trimmed mean: without the `max_byzantine` largest and as many smallest values. With b Byzantine sites
    among n it lies between the mean of the n − 2b lowest and that of the n − 2b highest values of the honest sites,
    whatever the others report. It is not the mean of the honest sites where their values are skewed.

    R² of a site is 1 − loss/V with one V for all sites, as in simulations, so that the numbers can be compared and
    averaged. No single site is trusted with V: each reports the mean ȳ_i and the variance v_i of its held-out targets,
    and V is the trimmed mean of v_i + (ȳ_i − ȳ)², with ȳ the trimmed mean of the ȳ_i. Without trimming this is the V of
    simulations. With a denominator of their own, 1 − loss_i/v_i, two sites with the same errors would have different
    R², and the honest site whose targets vary least would decide the mean.

    Parameters
    ----------
    names
        The names of the sites, or their numbers where these are not known.
    reports
        The accepted reports, by the number of the site.
    refused
        By the number of a site without an accepted report: why it was refused, or that none came.
    max_byzantine
        The bound on the number of Byzantine sites.
    score
        What is shown beside the loss.
    models
        Which models the sites compared.

    Examples
    --------
    >>> losses = (0.2, 0.4, 0.3, 1e9)
    >>> reports = {i: Report(0, 30, 10, {"cluster": loss}) for i, loss in enumerate(losses)}
    >>> found = Evaluation(("oslo", "bern", "rome", "lima"), reports, {}, 1, "loss", ("cluster",))
    >>> round(found.summary["cluster"]["test_loss"], 2)
    0.35
    """

    names: tuple[str, ...]
    reports: Mapping[int, Report]
    refused: Mapping[int, str]
    max_byzantine: int
    score: Score
    models: tuple[str, ...]

    @property
    def score_name(self) -> str:
        """The score as tables call it."""
        return SCORE_NAMES[self.score]

    @cached_property
    def tested(self) -> list[int]:
        """The sites whose report has scores."""
        return [site for site, report in sorted(self.reports.items()) if report.test_samples]

    @property
    def trimmed(self) -> int:
        """How many values are left out of a mean at each end: the bound, or all but the middle ones."""
        return max(0, min(self.max_byzantine, (len(self.tested) - 1) // 2))

    @cached_property
    def target_spread(self) -> float:
        """V, the denominator of R²."""
        means = self._column(lambda report: report.target_mean)
        variances = self._column(lambda report: report.target_variance)
        return self._mean(variances + (means - self._mean(means)) ** 2)

    @cached_property
    def scores(self) -> dict[str, Scores]:
        """By model the scores of all sites; NaN for a site without them."""
        found = {}
        for model in self.models:
            losses, accuracies = np.full((2, len(self.names)), np.nan)
            for site in self.tested:
                losses[site] = self.reports[site].losses[model]
                accuracies[site] = self.reports[site].accuracies.get(model, math.nan)
            known = self.score == "r2" and self.target_spread > 0
            r2 = 1.0 - losses / self.target_spread if known else np.full(len(losses), np.nan)
            found[model] = Scores(losses, r2, accuracies, NOT_APPLICABLE, ())
        return found

    @cached_property
    def summary(self) -> dict[str, dict[str, float]]:
        """By model: test_loss, test_score and test_worst, the mean over the worst tenth of the sites that are kept."""
        found = {}
        for model, scores in self.scores.items():
            losses, main = scores.losses[self.tested], scores.main[self.tested]
            kept = np.sort(main)[self.trimmed : len(main) - self.trimmed]
            worst = kept[: math.ceil(WORST * len(kept))]
            found[model] = {
                "test_loss": self._mean(losses),
                "test_score": self._mean(main),
                "test_worst": float(worst.mean()) if len(worst) else NOT_APPLICABLE,
            }
        return found

    @property
    def comparison(self) -> Comparison:
        """For how many sites the personal model is better or worse than what they have alone, as they report."""
        better = worse = 0
        for site in self.tested:
            report = self.reports[site]
            difference = report.losses["personal"] - report.losses["local"]
            better += difference < -report.error
            worse += difference > report.error
        return Comparison(better, worse, len(self.tested))

    def _column(self, value: Callable[[Report], float]) -> Floats:
        return np.array([value(self.reports[site]) for site in self.tested], dtype=np.float64)

    def _mean(self, values: Floats) -> float:
        """The trimmed mean of one number per tested site; NaN without any."""
        if not len(values):
            return NOT_APPLICABLE
        return float(mean_between_ranks(values[:, None], self.trimmed, len(values) - self.trimmed)[0])

    def rows(self) -> list[Row]:
        """A row per site, as clients.csv of a simulation has them, and what became of its report."""
        reports = [self.reports.get(site, Report(-1, 0)) for site in range(len(self.names))]
        labels, samples, tested = (
            np.array([getattr(report, name) for report in reports], dtype=np.int64)
            for name in ("cluster", "samples", "test_samples")
        )
        rows = score_rows(self.names, labels, samples, tested, self.scores)
        return [{"trial": 0, **row, "report": self.refused.get(site, "accepted")} for site, row in enumerate(rows)]

    def lines(self) -> list[str]:
        """What the summary rests on, in words."""
        n, refused = len(self.tested), [site for site, why in self.refused.items() if why != NO_REPLY]
        silent = [self.names[site] for site, why in self.refused.items() if why == NO_REPLY]
        untested = [self.names[site] for site in sorted(self.reports) if site not in self.tested]
        lines = [
            f"held-out scores as {n} of {len(self.names)} sites report them",
            f"{self.max_byzantine} of them may be Byzantine: every mean is without the {self.trimmed} largest and the "
            f"{self.trimmed} smallest values",
        ]
        if self.trimmed < self.max_byzantine and n:
            lines.append(f"with so few reports the means are medians, which {self.max_byzantine} false ones can decide")
        if {"personal", "local"} <= set(self.models) and n:
            lines.append(f"personal models, as the sites report: {self.comparison.sentence('alone')}")
        if silent:
            lines.append(f"no report came from {', '.join(silent)}")
        if untested:
            lines.append(f"too few samples to hold any out at {', '.join(untested)}")
        if refused:
            lines.append(f"{len(refused)} refused:")
        return lines + [f"  {self.names[site]}: {self.refused[site]}" for site in refused]

    def as_dict(self) -> dict[str, Any]:
        """The summary for evaluation.json; what is not known is None."""
        return {
            "score": self.score_name,
            "sites": len(self.names),
            "reports": len(self.reports),
            "with_held_out_samples": len(self.tested),
            "max_byzantine": self.max_byzantine,
            "trimmed_at_each_end": self.trimmed,
            "refused": {self.names[site]: why for site, why in self.refused.items()},
            "models": {
                model: {name: value if math.isfinite(value) else None for name, value in found.items()}
                for model, found in self.summary.items()
            },
            "lines": self.lines(),
        }

    def write(self, folder: Path) -> None:
        """Write clients.csv and evaluation.json."""
        write_atomically(folder / CLIENTS, as_csv(self.rows()).encode())
        write_atomically(folder / SUMMARY, f"{json.dumps(self.as_dict(), indent=2, ensure_ascii=False)}\n".encode())


def evaluate_sites(
    grid: Grid,
    centres: Array,
    *,
    max_byzantine: float = 0.05,
    score: Score = "loss",
    folder: str | Path | None = None,
    max_clients: int = 100,
    deadline: float = 60.0,
    for_all: Array | None = None,
) -> Evaluation:
    """Ask every site how good its models are on the rows that it held out, and return a summary of the reports.

    A site compares the model of its cluster, its personal model, one of its own alone and, where it is given, one for
    all. The models stay at the site; it sends numbers alone, and they are not trusted (see `Evaluation`).

    Parameters
    ----------
    grid
        Flower's grid, as a server app gets it.
    centres
        (k, d), the models of the clusters.
    max_byzantine
        The bound on the fraction of the sites that are Byzantine; it is rounded up to a number of sites.
    score
        "r2" for squared error, "accuracy" for classes, "loss" for any other task whose losses are at least 0.
    folder
        The folder of the federation: it says which node is which client and has the names of the sites, and clients.csv
        and evaluation.json are written there.
    max_clients
        The number of sites, at most.
    deadline
        Seconds that a site has for its report.
    for_all
        (1, d), one model for all sites.

    Returns
    -------
    Evaluation
        The reports, the summary, and for each site without a report the reason.

    Examples
    --------
    At the end of the main function of a Flower server app, after `ClusteredStrategy.start`:

    >>> def main(grid, context, strategy, start):
    ...     centres = strategy.start(grid, start).arrays["centres"].numpy()
    ...     return evaluate_sites(grid, centres, folder="federation").summary
    """
    if not 0 <= max_byzantine < 0.5:
        raise ValueError(f"max_byzantine must be at least 0 and less than 0.5, got {max_byzantine}")
    saved = None if folder is None else Checkpoint(folder).load()
    clients = ClientNumbers(max_clients, () if saved is None else saved.nodes)
    participants = Participants(None if folder is None else server_of(Path(folder)))
    network = FlowerNetwork(grid, clients, deadline, participants=participants)
    received = network.reports(Request(as_numpy(centres), None if for_all is None else as_numpy(for_all)))
    models = tuple(model for model in MODELS if model != "global" or for_all is not None)
    nodes = [(client, node) for client, node in enumerate(clients.nodes) if node is not None]
    known = {} if folder is None else site_names(Path(folder))
    reports, refused = {}, {}
    for site, (client, _) in enumerate(nodes):
        if client not in received:
            refused[site] = NO_REPLY
        elif received[client].answer is None:
            refused[site] = received[client].fault
        else:
            found = admit_report(received[client].answer, clusters=len(centres), models=models, score=score)
            if isinstance(found, Report):
                reports[site] = found
            else:
                refused[site] = printable(found)
    evaluation = Evaluation(
        tuple(known.get(str(node), str(client)) for client, node in nodes),
        reports,
        refused,
        max_byzantine_count(float(max_byzantine), max(1, len(nodes))),
        score,
        models,
    )
    if folder is not None:
        evaluation.write(Path(folder))
    return evaluation
