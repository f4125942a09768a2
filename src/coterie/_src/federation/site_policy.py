"""What a site answers: rules that the site sets, and a pure function that judges a question by them.

The rules are in a file of the site, `site.toml`; no message can change them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import Field, ValidationError, model_validator

from coterie._src.experiments.sections import Section
from coterie._src.experiments.toml import read_toml, suggest, toml_value
from coterie._src.federation.messages import KINDS, OWN_CHOICE, SITE_ERROR, Question
from coterie._src.federation.privacy import epsilon_of
from coterie._src.federation.site_reports import Request

AllowedKind = Literal["gradient", "minimiser", "loss", "curvature", "size", "hessian", "report"]
ALLOWED: tuple[AllowedKind, ...] = get_args(AllowedKind)
LARGEST_RIDGE = 1e12
QUESTIONS_OF_A_START = 200
"""That a run asks beside those of its rounds, generously."""

REFUSALS: Mapping[str, str] = {
    "malformed": "the question cannot be read, or has numbers that are not finite or out of range",
    "kind": "this kind of question is not answered",
    "centres": "it has no centres, too many of them, or of another length than the models",
    "part": "there is no such part of the samples",
    "too_few_samples": "too few samples would be behind the answer",
    "overlap": "together with earlier answers it would tell about too few samples",
    "rows_changed": "the site's samples are others than those behind its earlier answers",
    "questions_per_run": "the run has asked as many questions as the site answers",
    "questions_per_hour": "as many questions as the site answers in an hour have been asked",
    "questions_in_all": "as many questions as the site answers have been asked",
    "not_private": "the answer cannot be made private by noise",
    "budget": "the privacy budget is spent",
    SITE_ERROR: "the site could not compute an answer; its own log has the reason",
}
"""What a refusal tells the server, by its code."""


class SitePolicy(Section):
    """The rules of a site.

    Examples
    --------
    >>> policy = SitePolicy(kinds=("gradient", "size"))
    >>> site = SiteFacts(samples=1000, rows="a", dim=2)
    >>> judge(policy, Question("gradient", 0, np.zeros((3, 2)), part=(0, 100)), site, History())
    'too_few_samples'
    >>> judge(policy, Question("gradient", 0, np.zeros((3, 2)), part=(0, 10)), site, History()) is None
    True
    """

    min_samples: int = Field(20, ge=1, description="the least number of samples behind any answer")
    min_held_out: int = Field(
        10, ge=1, description="the least number of held-out samples whose scores are reported; below it none are"
    )
    kinds: tuple[AllowedKind, ...] = Field(
        ALLOWED, strict=False, description="the kinds of questions that are answered"
    )
    questions_per_run: int = Field(500, ge=0, description="answers in one run, at most")
    questions_per_hour: int = Field(2000, ge=0, description="answers in any hour, at most")
    questions_in_all: int = Field(10_000, ge=0, description="answers as long as the log is kept, at most")
    row_sets: int = Field(
        1,
        ge=1,
        description="sets of samples that answer as long as the log is kept: raise it by 1 after the file has changed "
        "by at least min_samples rows",
    )
    max_centres: int = Field(1000, ge=1, description="centres in one question, at most")
    largest_centre: float = Field(1e9, gt=0, description="the largest absolute value of a coordinate of a centre")
    clip: float | None = Field(None, gt=0, description="the largest Euclidean norm of what leaves; not set: no bound")
    noise: float | None = Field(
        None, gt=0, description="standard deviation of the Gaussian noise on every number that leaves, in units of clip"
    )
    delta: float = Field(1e-6, gt=0, lt=1, description="the δ at which ε is computed")
    epsilon: float | None = Field(
        None, gt=0, description="the ε at which the site stops answering; not set: ε is logged, and does not stop it"
    )

    app: str | None = Field(
        None,
        description="the import path, package.module:name, of an app of this site's own that is installed here: a "
        "function from the context to its task or Site, or a ClientApp; not set: the ready-made one of config.toml",
    )

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> Self:
        if self.noise is not None and self.clip is None:
            raise ValueError("noise: needs clip, the bound on the norm of what is made private")
        if self.epsilon is not None and self.noise is None:
            raise ValueError("epsilon: needs noise; without it there is no ε")
        return self

    def cost(self, question: Question | Request) -> float:
        """The squared μ of the Gaussian mechanisms of an answer (`privacy`); 0 without noise.

        The answer to another data set differs by at most 2·clip, and the noise has deviation noise·clip. A gradient for
        the client's own choice among several centres is two such mechanisms: the losses, and the gradient.
        """
        if self.noise is None or isinstance(question, Request) or question.kind == "size":
            return 0.0
        two = question.kind == "gradient" and question.label == OWN_CHOICE and len(question.centres) > 1
        return (1 + two) * (2.0 / self.noise) ** 2


def read_policy(path: str | Path) -> SitePolicy:
    """Return the policy of a TOML file; what is wrong with it is one line that names the key."""
    raw = read_toml(path)
    try:
        return SitePolicy.model_validate(raw)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"][:1])
        if fault["type"] == "extra_forbidden":
            raise ValueError(f"{path}: {key}: unknown key{suggest(key, list(SitePolicy.model_fields))}") from None
        message = fault["msg"].removeprefix("Value error, ").removeprefix("Input should ")
        got = "" if not key else f", got {fault['input']!r}"
        raise ValueError(f"{path}: {f'{key}: ' if key else ''}{message}{got}") from None


def policy_as_toml(rounds: int = 0) -> str:
    """Return a file with every rule, its meaning and its default as comments.

    Only a federation of so many rounds that the default number of questions in a run would end it has that number set.
    """
    lines = [
        "# What this site answers. Only this file decides it; no message of the server can change it. Every rule has a",
        "# default, which is shown; remove the # before a key to set it. Changes hold from the next question on.",
        "# All that is asked and answered is in questions.sqlite beside this file: `coterie site log`. Keep that file:",
        "# without it the site does not know what it has already told.",
    ]
    needed = rounds + QUESTIONS_OF_A_START
    for name, field in SitePolicy.model_fields.items():
        shown = "" if field.default is None else toml_value(list(field.default) if name == "kinds" else field.default)
        unset = "# " if name != "questions_per_run" or needed <= field.default else ""
        lines += ["", f"# {field.description}", f"{unset}{name} = {shown if unset else needed}".rstrip()]
    return "\n".join(lines) + "\n"


class SiteFacts(NamedTuple):
    """What the rules need to know about the site's data."""

    samples: int  # that the site learns from
    rows: str  # a fingerprint of its samples
    dim: int  # the parameters of a model


class History(NamedTuple):
    """What the rules need to know about earlier answers."""

    in_run: int = 0
    in_hour: int = 0
    in_all: int = 0
    cuts: frozenset[int] = frozenset()  # where ranges of the same samples behind earlier answers begin or end
    row_sets: frozenset[str] = frozenset()  # the fingerprints of the samples behind earlier answers
    spent: float = 0.0  # the sum of the costs of earlier answers


def judge(policy: SitePolicy, question: Question | Request, site: SiteFacts, history: History) -> str | None:
    """Return the code of the rule by which a question is refused (`REFUSALS`), or None for one to answer."""
    return (
        _form_fault(policy, question, site)
        or _samples_fault(policy, question, site, history)
        or _count_fault(policy, history)
        or _budget_fault(policy, question, history)
    )


def _form_fault(policy: SitePolicy, question: Question | Request, site: SiteFacts) -> str | None:
    """What is wrong with the question alone."""
    given = [question.centres]
    if isinstance(question, Request):
        kind = "report"
        given += [] if question.for_all is None else [question.for_all]
    else:
        kind = question.kind
        if kind not in KINDS or not (math.isfinite(question.ridge) and 0 <= question.ridge <= LARGEST_RIDGE):
            return "malformed"
    if kind not in policy.kinds:
        return "kind"
    for centres in given:
        if centres.ndim != 2 or centres.dtype not in (np.float32, np.float64):
            return "malformed"
        about_models = kind not in ("size", "curvature")
        if not 1 <= len(centres) <= policy.max_centres or (about_models and centres.shape[1] != site.dim):
            return "centres"
        if not np.isfinite(centres).all() or np.abs(centres).max(initial=0.0) > policy.largest_centre:
            return "malformed"
    if isinstance(question, Question) and kind in ("gradient", "hessian"):
        lowest = OWN_CHOICE if kind == "gradient" else 0
        if not lowest <= question.label < len(question.centres):
            return "malformed"
    return None


def _samples_fault(policy: SitePolicy, question: Question | Request, site: SiteFacts, history: History) -> str | None:
    """Whether too few samples are behind the answer, or behind what it and earlier answers tell together."""
    if isinstance(question, Question) and question.part is not None:
        index, parts = question.part
        if not 0 <= index < parts:
            return "part"
    ranges = rows_behind(question, site.samples)
    if min(high - low for low, high in ranges) < policy.min_samples:
        return "too_few_samples"
    if site.rows not in history.row_sets and len(history.row_sets) >= policy.row_sets:
        return "rows_changed"
    cuts = sorted({0, site.samples} | history.cuts | {cut for range in ranges for cut in range})
    if min(high - low for low, high in pairwise(cuts)) < policy.min_samples:
        return "overlap"
    return None


def rows_behind(question: Question | Request, samples: int) -> list[tuple[int, int]]:
    """Return the ranges (first, behind the last) of the samples behind an answer.

    The i-th of n parts of the samples is half of it for choosing a cluster, and half for computing the update.

    >>> rows_behind(Question("gradient", 0, np.zeros((1, 1)), part=(1, 2)), 80)
    [(40, 60), (60, 80)]
    """
    if isinstance(question, Request) or question.part is None or question.kind in ("size", "hessian"):
        return [(0, samples)]
    index, parts = question.part
    halves = [1]
    if question.kind == "curvature":
        index = 0
    elif question.kind == "loss":
        halves = [int(question.computing)]
    elif question.kind == "gradient" and question.label == OWN_CHOICE:
        halves = [0, 1]
    pieces = [2 * index + half for half in halves]
    return [(samples * piece // (2 * parts), samples * (piece + 1) // (2 * parts)) for piece in pieces]


def _count_fault(policy: SitePolicy, history: History) -> str | None:
    if history.in_run >= policy.questions_per_run:
        return "questions_per_run"
    if history.in_hour >= policy.questions_per_hour:
        return "questions_per_hour"
    return "questions_in_all" if history.in_all >= policy.questions_in_all else None


def _budget_fault(policy: SitePolicy, question: Question | Request, history: History) -> str | None:
    if policy.noise is None:
        return None
    if isinstance(question, Request):
        return "not_private"  # its numbers have no bounded norm
    cost = policy.cost(question)
    if policy.epsilon is None or not cost:
        return None
    return "budget" if epsilon_of(math.sqrt(history.spent + cost), policy.delta) > policy.epsilon else None
