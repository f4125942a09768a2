"""Docs/extending.md is true: a rule, an attack and a problem from outside the package need one registry line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import Field

import coterie as ct
from coterie._src.attacks import Entry, Forgery, View, payload
from coterie._src.data import Federation
from coterie._src.experiments import as_toml, parse_config, run_trial
from coterie._src.experiments.config import ATTACKS
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.problems import PROBLEMS, ProblemRecord
from coterie._src.experiments.problems.base import KIND
from coterie._src.experiments.problems.synthetic import MixedRegression
from coterie._src.plot.style import method_colour
from coterie._src.studies.arena import attack_name


@dataclass(frozen=True)
class Huber(ct.Aggregator):
    """The coordinate-wise Huber mean, one step from the median."""

    bound: float = 1.345

    def aggregate(self, updates: Any) -> Any:
        centre = np.median(updates, axis=0)
        spread = np.median(np.abs(updates - centre), axis=0) + 1e-12
        return (centre + np.clip(updates - centre, -self.bound * spread, self.bound * spread).mean(axis=0)).astype(
            updates.dtype
        )


@payload("reversed", "the honest mean, reversed", published_scale=2.0, arena=(Entry("reversed"),))
def reversed_mean(view: View, scale: float = 2.0) -> Forgery:
    rows = np.stack([-scale * view.honest_rows(j).mean(axis=0) for j in view.claimed.tolist()])
    return Forgery(view.claimed, rows.astype(view.updates.dtype))


class Noiseless(MixedRegression):
    """The paper's problem without noise."""

    kind: Literal["noiseless"] = Field("noiseless", description=KIND)  # type: ignore[assignment]
    noise_variance: float = Field(0.0, ge=0, description="none")

    def draw(self, rng: np.random.Generator) -> Federation:
        return super().draw(rng)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in each registry, for the time of a test."""
    for registry in (METHODS, ATTACKS, PROBLEMS):
        monkeypatch.setattr(registry, "_records", dict(registry._all()))
    METHODS.add(ct.Method("brifca-huber", "Algorithm 1 with a Huber mean", lambda setting: Huber(), colour="teal"))
    ATTACKS.add(reversed_mean)
    PROBLEMS.add(ProblemRecord("noiseless", "the paper's problem without noise", Noiseless))


@pytest.mark.usefixtures("added")
def test_a_rule_an_attack_and_a_problem_from_outside_run_like_those_that_are_built_in() -> None:
    config = parse_config(
        {
            "problem": {"kind": "noiseless", "clients": 20, "clusters": 2, "samples": 20, "dim": 4, "byzantine": 0.1},
            "algorithm": {"init": "warm", "max_byzantine": 0.1, "rounds": 40},
            "attack": {"kind": "reversed", "scale": 2.0},
            "run": {"methods": ["brifca-huber", "ifca"], "trials": 1},
        }
    )
    assert config.attack.scale == "auto"  # the published strength has one name
    assert 'kind = "noiseless"' in as_toml(config)
    found = run_trial(config, 0).methods
    assert found["brifca-huber"].metrics["matched_dist"] < 0.5 * found["ifca"].metrics["matched_dist"]
    assert found["brifca-huber"].metrics["ari"] == 1
    assert method_colour("brifca-huber") == "teal"
    assert "brifca-huber" in ct.registered("methods")
    result = ct.fit(
        ct.mixed_regression(0, clients=20, clusters=2, samples=20, dim=4, byzantine=0.1),
        clusters=2,
        max_byzantine=0.1,
        method="brifca-huber",
        init="spectral",
        attack=ct.attack("reversed"),
    )
    assert result.metrics["ari"] == 1


def test_an_unknown_name_is_one_line_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"brifca-huber.*did you mean brifca-"):
        parse_config({"run": {"methods": ["brifca-huber"]}})
    with pytest.raises(ValueError, match=r'attack: must be one of paper, .* got "reversed"'):
        ct.attack("reversed")
    with pytest.raises(ValueError, match=r"problem\.kind: must be mixed-regression"):
        parse_config({"problem": {"kind": "noiseless"}})


def test_the_arena_knows_every_attack_by_its_record() -> None:
    row = {"problem.byzantine": 0.1, "attack.kind": "alie", "attack.target": "smallest", "attack.sleep": 0}
    assert attack_name({**row, "attack.scale": "worst"}) == "ALIE, worst"
