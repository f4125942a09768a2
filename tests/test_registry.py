"""Records by name: aliases, suggestions, and what other packages bring by entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie._src.experiments import read_config
from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.problems import PROBLEMS
from coterie._src.experiments.starts import STARTS
from coterie._src.registry import Registry
from coterie._src.tasks import TASKS


@dataclass(frozen=True)
class Fruit:
    name: str
    summary: str = "a fruit"
    aliases: tuple[str, ...] = ()


def fruits() -> Registry[Fruit]:
    return Registry("fruit", [Fruit("apple", "red"), Fruit("pear", aliases=("nashi",)), Fruit("quince")])


def test_names_are_kept_in_their_order() -> None:
    registry = fruits()
    assert registry.names == registry.own_names == ("apple", "pear", "quince")
    assert [record.summary for record in registry] == ["red", "a fruit", "a fruit"]
    assert registry["apple"] == Fruit("apple", "red")
    assert "apple" in registry
    assert "plum" not in registry
    assert registry.described() == "apple   red\npear    a fruit\nquince  a fruit"
    registry.add(Fruit("plum"))
    assert registry.names == ("apple", "pear", "quince", "plum")
    with pytest.raises(ValueError, match="fruit: plum is there already; choose another name"):
        registry.add(Fruit("plum"))


def test_an_older_name_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"fruit nashi is now called pear; the old name goes in 0\.2"):
        assert fruits()["nashi"] == Fruit("pear", aliases=("nashi",))
    with pytest.warns(DeprecationWarning, match="nashi"):
        assert fruits().resolve("nashi") == "pear"
    assert "nashi" not in fruits()


def test_an_unknown_name_says_what_there_is_and_what_is_near() -> None:
    with pytest.raises(ValueError, match=r'^must be one of apple, pear, quince, got "appel"; did you mean apple\?$'):
        fruits()["appel"]
    with pytest.raises(ValueError, match=r'^must be one of apple, pear, quince, got "xyz"$'):
        fruits()["xyz"]


@pytest.mark.parametrize(
    ("override", "section", "key", "present"),
    [
        ("attack.kind=none", "attack", "kind", "data-poisoning"),
        ("attack.kind=disguised", "attack", "kind", "noisy-alie"),
        ("attack.target=hop", "attack", "target", "rotating"),
    ],
)
def test_older_names_in_a_configuration(override: str, section: str, key: str, present: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"is now called {present}"):
        config = read_config(None, [override])
    assert getattr(getattr(config, section), key) == present


@pytest.mark.parametrize("registry", [METHODS, ATTACKS, ATTACK_TARGETS, STARTS, PROBLEMS, TASKS])
def test_every_record_has_a_line_and_no_alias_is_a_name(registry: Registry[Fruit]) -> None:
    aliases = [alias for record in registry for alias in getattr(record, "aliases", ())]
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(registry.names)
    for record in registry:
        assert record.summary
        assert "\n" not in record.summary


OUTSIDE = """
import numpy as np
import coterie as ct
from coterie import fit  # a package may use the whole door

class Midrange(ct.Aggregator):
    def aggregate(self, updates):
        return (updates.min(axis=0) + updates.max(axis=0)) / 2

def silly(view, scale=7.0):
    return view.claimed, np.full((view.byzantine_count, view.updates.shape[1]), scale, dtype=view.updates.dtype)

MIDRANGE = ct.Method("midrange", "Algorithm 1 with the midrange", rule=lambda setting: Midrange())
SILLY = ct.Payload("silly", "one number", silly, published_scale=7.0)
TEXT = "not a method"
TWICE = ct.Method("coterie", "a name that is taken")
"""
ENTRY_POINTS = """
[coterie.methods]
midrange = outside:MIDRANGE
missing = nowhere_to_be_found:METHOD
text = outside:TEXT
twice = outside:TWICE
[coterie.attacks]
silly = outside:SILLY
"""
PROGRAM = """
import json, sys, warnings
import coterie
import coterie._src.experiments.config
early = "outside" in sys.modules
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import coterie as ct
    from coterie._src.experiments import parse_config, run_trial
    from coterie._src.simulation import stream
    problem = {"clusters": 2, "clients": 20, "samples": 10, "dim": 3, "byzantine": 0.2}
    config = parse_config({"problem": problem, "algorithm": {"rounds": 3}, "attack": {"kind": "silly", "scale": 7.0},
                           "run": {"methods": ["midrange"]}})
    trial = run_trial(config, 0).methods["midrange"]
    federation = config.problem.draw(stream(0, 0, "data"))
    strong, weak = ct.attack("silly"), ct.attack("silly", scale=1.0)
    fits = [
        ct.fit(federation, clusters=2, method=method, attack=attack, rounds=3).centres.tolist()
        for method, attack in (("midrange", strong), ("midrange", weak), ("ifca", strong))
    ]
print(json.dumps({
    "early": early, "trial": trial.centres.tolist(), "fits": fits, "scale": config.attack.scale,
    "methods": list(ct.registered("methods")), "attacks": ct.registered("attacks")["silly"],
    "compared": parse_config({}).methods,
    "warnings": sorted(str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)),
}))
"""


def test_a_method_and_an_attack_of_another_package(tmp_path: Path) -> None:
    """A throw-away distribution: found when a name is first looked up, run by both doors; what is broken only warns."""
    (tmp_path / "outside.py").write_text(OUTSIDE)
    information = tmp_path / "outside-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["early"]  # importing the package loads nothing of others
    assert found["fits"][0] == found["trial"]
    assert found["fits"][1] != found["trial"]
    assert found["fits"][2] != found["trial"]
    assert found["methods"][:-1] == list(METHODS.own_names)  # what other packages bring comes last
    assert found["methods"][-1] == "midrange"
    assert found["attacks"] == "one number"
    assert found["scale"] == "auto"  # its published strength has one name
    assert "midrange" not in found["compared"]
    missing, text, twice = found["warnings"]
    assert missing.startswith("method missing: cannot be loaded (No module named 'nowhere_to_be_found'")
    assert text.startswith("method text: cannot be loaded (")
    assert twice == "method twice: cannot be loaded (method: coterie is there already; choose another name)"
