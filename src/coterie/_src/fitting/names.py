"""`ct.attack` and `ct.registered`: what is known by name."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import numpy as np

from coterie._src.attacks import Attack
from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.starts import STARTS
from coterie._src.fitting.inputs import named, whole_number
from coterie._src.tasks import TASKS


def attack(
    kind: str,
    *,
    target: str = "own",
    scale: float | Literal["auto", "worst"] = "auto",
    sleep: int = 0,
    objective: str = "auto",
) -> Attack:
    """An attack by the names of its payload and its target.

    Parameters
    ----------
    kind : str
        What Byzantine clients send, such as "alie" or "sign-flip"; `ct.registered("attacks")` lists the names.
    target : str, default "own"
        Which cluster they claim; `ct.registered("targets")` lists the names.
    scale : float, "auto" or "worst", default "auto"
        The strength: a number, the published one, or the one that moves the server's rule farthest in every round.
    sleep : int, default 0
        Rounds in which the Byzantine clients first answer by their own data.
    objective : str, default "auto"
        What the adversary maximises, for an attack with several objectives, such as "error" for "tilt"; "auto" for the
        first.

    Returns
    -------
    Attack
        For the parameter `attack` of `ct.fit`.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.attack("alie", target="smallest", scale="worst")
    Attack(payload=<payload alie>, target=<target smallest>, scale='worst', sleep=0, objective='auto')
    """
    if scale not in ("auto", "worst") and (
        isinstance(scale, bool) or not (isinstance(scale, Real) and np.isfinite(scale))
    ):
        raise ValueError(f'scale must be a finite number, "auto" or "worst", got {scale!r}')
    sleep = whole_number("sleep", sleep, 0)
    payload, claimed = (named(registry, name) for registry, name in ((ATTACKS, kind), (ATTACK_TARGETS, target)))
    return Attack(payload, claimed, None if scale == "auto" else scale, sleep, objective)


def registered(kind: Literal["methods", "attacks", "targets", "starts", "tasks"]) -> dict[str, str]:
    """The registered names of a kind, each with a line that says what it is.

    Parameters
    ----------
    kind : "methods", "attacks", "targets", "starts" or "tasks"
        For the parameters `method`, `attack`, `init` and `task` of `ct.fit`; "targets" is for `ct.attack`.

    Returns
    -------
    dict
        From names to lines; what other packages bring comes last.

    Examples
    --------
    >>> import coterie as ct
    >>> sorted(ct.registered("tasks"))
    ['linear', 'logistic', 'mean', 'softmax']
    """
    registries: dict[str, Any] = {
        "methods": METHODS,
        "attacks": ATTACKS,
        "targets": ATTACK_TARGETS,
        "starts": STARTS,
        "tasks": TASKS,
    }
    if kind not in registries:
        raise ValueError(f'kind must be one of {", ".join(registries)}, got "{kind}"')
    return {record.name: record.summary for record in registries[kind]}
