"""Evaluation over the wire: a request with the models goes to every site, a report with its scores comes back.

A report is untrusted: reading one never raises, and one that is not as it must be is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from coterie._src.federation.messages import finite_table, first_line, read_refusal

EVALUATE = "evaluate"
"""Flower's type of the messages of an evaluation."""
LARGEST = 1e100
"""The largest number of a report, whose square is still a number."""
Score = Literal["r2", "accuracy", "loss"]
"""What is shown beside the loss: R² for squared error, the accuracy for classes, nothing else for other tasks."""


class Request(NamedTuple):
    """A request for a report."""

    centres: NDArray[Any]  # (k, d)
    for_all: NDArray[Any] | None = None  # (1, d), one model for all sites, if the server has one

    def record(self) -> RecordDict:
        """Return the records that Flower sends."""
        given = {"centres": self.centres, **({} if self.for_all is None else {"for_all": self.for_all})}
        arrays = ArrayRecord({name: Array(np.ascontiguousarray(values)) for name, values in given.items()})
        return RecordDict({"models": arrays, "request": ConfigRecord({"kind": "report"})})


def read_request(content: RecordDict) -> Request:
    """Return the request of a message; an invalid one is a ValueError, as a site need not trust its server."""
    try:
        arrays = content.array_records["models"]
        found = Request(arrays["centres"].numpy(), arrays["for_all"].numpy() if "for_all" in arrays else None)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"request: cannot be read ({type(error).__name__}: {error})") from None
    finite_table("request: centres", found.centres)
    if found.for_all is not None:
        finite_table("request: for_all", found.for_all)
        if len(found.for_all) != 1:
            raise ValueError(f"request: for_all must be one model, got shape {found.for_all.shape}")
    return found


class Report(NamedTuple):
    """What a site says about the models that it could use. Numbers alone: no rows, no model.

    The scores are means over the site's held-out rows. `target_mean` and `target_variance` are of its held-out targets,
    the variance around that mean; `error` is the standard error of the difference of the personal model's loss and
    that of the site's own model.
    """

    cluster: int
    samples: int
    test_samples: int = 0
    losses: Mapping[str, float] = {}  # by the names of `client_rows.MODELS`
    accuracies: Mapping[str, float] = {}  # the same, for classes
    target_mean: float = 0.0
    target_variance: float = 0.0
    error: float = 0.0

    def numbers(self) -> dict[str, float]:
        """Return the report as one mapping, as it is sent."""
        return {
            "cluster": self.cluster,
            "samples": self.samples,
            "test_samples": self.test_samples,
            **{f"loss.{name}": value for name, value in self.losses.items()},
            **{f"accuracy.{name}": value for name, value in self.accuracies.items()},
            "target_mean": self.target_mean,
            "target_variance": self.target_variance,
            "error": self.error,
        }

    def record(self) -> RecordDict:
        """Return the records that Flower sends."""
        return RecordDict({"report": MetricRecord({**self.numbers()})})


def read_report(reply: Message) -> tuple[dict[str, Any] | None, str]:
    """Return the numbers of a reply, whatever they are, and what was wrong with it (empty for nothing)."""
    if reply.has_error():
        return None, f"the site says: {first_line(reply.error.reason)}"
    if refusal := read_refusal(reply):
        return None, refusal
    try:
        return dict(reply.content.metric_records["report"]), ""
    except Exception as error:  # a hostile record may raise anything
        return None, f"no numbers ({type(error).__name__})"


def admit_report(numbers: Mapping[str, Any], *, clusters: int, models: Iterable[str], score: Score) -> Report | str:
    """Return the report, or the reason for which it is refused.

    A whole number must be in its range, and every other number finite, at most LARGEST in absolute value, and possible:
    losses, variances and standard errors at least 0, accuracies from 0 to 1. Numbers that are not needed are ignored.

    >>> numbers = {"cluster": 0, "samples": 9, "test_samples": 3, "loss.cluster": 0.5, "error": 0.1}
    >>> admit_report(numbers, clusters=2, models=["cluster"], score="loss").losses
    {'cluster': 0.5}
    >>> admit_report({**numbers, "loss.cluster": -1.0}, clusters=2, models=["cluster"], score="loss")
    'loss.cluster must be from 0 to 1e+100, got -1'
    """
    try:
        report = Report(
            _whole(numbers, "cluster", 0, clusters - 1),
            _whole(numbers, "samples", 1),
            _whole(numbers, "test_samples", 0),
        )
        if not report.test_samples:
            return report
        models = tuple(models)
        report = report._replace(
            losses={name: _number(numbers, f"loss.{name}", 0.0) for name in models},
            error=_number(numbers, "error", 0.0),
        )
        if score == "accuracy":
            return report._replace(accuracies={name: _number(numbers, f"accuracy.{name}", 0.0, 1.0) for name in models})
        if score == "r2":
            return report._replace(
                target_mean=_number(numbers, "target_mean", -LARGEST),
                target_variance=_number(numbers, "target_variance", 0.0),
            )
        return report
    except ValueError as error:
        return str(error)


def _whole(numbers: Mapping[str, Any], name: str, low: int, high: int = 2**53) -> int:
    value = numbers.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} must be a whole number, got {_what(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {value}")
    return value


def _number(numbers: Mapping[str, Any], name: str, low: float, high: float = LARGEST) -> float:
    value = numbers.get(name)
    if type(value) not in (float, int):
        raise ValueError(f"{name} must be a number, got {_what(value)}")
    assert isinstance(value, float | int)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low:g} to {high:g}, got {value:g}")
    return float(value)


def _what(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}" if not isinstance(value, float) else f"{value:g}"
