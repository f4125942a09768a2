"""The bound on the number of Byzantine clients: estimated, and noticed where it is too small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from command import coterie, coterie_process
from coterie._src.diagnostics import MATTERS, Diagnostics, _matter, excess, wider_bound
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.run_folder import RunFolder
from coterie._src.experiments.toml import parse_config
from coterie._src.init.asking import CandidateLosses
from coterie._src.init.bound import largest_bound, loses_clusters, rungs

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tables"
ATTACKS = {
    "paper": ct.attack("paper"),
    "alie": ct.attack("alie", target="smallest"),
    "flip": ct.attack("sign-flip", target="smallest"),
    "phantom": ct.attack("phantom"),
}
SMALL = ["problem.clients=40", "problem.clusters=2", "problem.dim=10", "problem.byzantine=0.1"]


def draw(clusters: int, byzantine: float, seed: int = 0, **options: Any) -> ct.Federation:
    return ct.mixed_regression(
        seed, clients=40 * clusters, clusters=clusters, samples=60, dim=10, byzantine=byzantine, **options
    )


def found(result: ct.Result) -> Diagnostics:
    assert result.diagnostics is not None
    return result.diagnostics


@pytest.mark.parametrize("clusters", [2, 3, 5])
@pytest.mark.parametrize("byzantine", [0.0, 0.05, 0.1, 0.15])
def test_an_estimated_bound_is_as_good_as_the_true_one(clusters: int, byzantine: float) -> None:
    name = list(ATTACKS)[round(20 * byzantine) % 4 if byzantine else 0]
    for attack in {name, "phantom"} if byzantine else {"paper"}:
        drawn = draw(clusters, byzantine, seed=clusters)
        told = ct.fit(drawn, clusters=clusters, max_byzantine=byzantine, attack=ATTACKS[attack])
        auto = ct.fit(drawn, clusters=clusters, max_byzantine="auto", attack=ATTACKS[attack])
        assert auto.metrics["oracle_ratio"] < 1.05 * told.metrics["oracle_ratio"]
        assert auto.metrics["ari"] == 1.0
        honest = np.bincount(drawn.truth.labels[~drawn.is_byzantine]).min()  # type: ignore[union-attr]
        assert drawn.is_byzantine.sum() <= found(auto).max_byzantine < honest
        assert found(auto).estimated == 1
        assert "as estimated" in found(auto).lines(drawn.clients.names)[-1]


@pytest.mark.parametrize(("clusters", "byzantine"), [(2, 0.1), (3, 0.0), (4, 0.1)])
def test_both_the_bound_and_the_number_of_clusters_are_estimated(clusters: int, byzantine: float) -> None:
    drawn = draw(clusters, byzantine)
    result = ct.fit(drawn, max_byzantine="auto", attack=ATTACKS["phantom"])
    assert len(result.centres) == clusters
    assert result.metrics["ari"] == 1.0


def test_a_small_cluster_keeps_its_centre() -> None:
    """Its 20 clients are fewer than the largest bound for five clusters would allow."""
    drawn = ct.tabular(
        1, clients=200, clusters=5, samples=60, dim=10, byzantine=0.05, shares=(0.1, 0.15, 0.2, 0.25, 0.3)
    )
    result = ct.fit(drawn, clusters=5, max_byzantine="auto", attack=ATTACKS["paper"])
    assert result.metrics["ari"] == 1.0
    assert 10 <= found(result).max_byzantine < 20


def test_the_rungs_by_hand() -> None:
    assert largest_bound(200, 5) == 31  # 34 - 3
    assert rungs(200, 5) == [31, 30, 20, 10, 4, 0]
    assert rungs(100, None) == [20, 15, 10, 5, 2, 0]
    assert rungs(6, 2) == rungs(8, 3) == [0]
    assert rungs(12, 1)[0] == 3


def test_a_lost_cluster_is_one_of_more_clients_than_may_be_byzantine() -> None:
    """Ten clients have no centre of their own among two; their losses are higher by 1, the others' by noise."""
    noise = 0.01 * np.random.default_rng(0).standard_normal((30, 3))
    losses = np.ones((30, 3)) + noise
    losses[np.arange(30), np.arange(30) // 10] -= 1
    three = CandidateLosses(np.zeros((3, 1)), losses, losses)
    lost = np.column_stack([losses[:, 0], losses[:, 1]])
    two = CandidateLosses(np.zeros((2, 1)), lost, lost + 0.001 * noise[:, :2])
    assert loses_clusters(two, three, 4)
    assert not loses_clusters(two, three, 10)
    assert not loses_clusters(three, two, 4)
    assert not loses_clusters(three, three, 0)


def test_excess_by_hand() -> None:
    assert [excess(out, 4, 200) for out in (4, 9, 10, -1)] == [0, 0, 1, 0]
    assert excess(5, 2, 12) == 1
    assert [wider_bound(bound, 200) for bound in (0, 4, 30, 90)] == [20, 24, 60, 99]
    assert wider_bound(1, 4) == 1


@pytest.mark.parametrize(("factor", "expected"), [(0.9, False), (1.1, True)])
def test_clients_matter_who_have_moved_the_centre(factor: float, expected: bool) -> None:
    """By hand: the rows that are kept are at ±1, so that the standard error of their mean is 1/√8."""
    kept = np.concatenate([np.eye(4), -np.eye(4)])
    away = MATTERS / np.sqrt(8) * factor * 5  # four of twelve at 3/5 of that move the mean by a fifth of it
    rows = np.concatenate([kept, np.tile([3 * away / 5, 0, 0, 0], (4, 1))])
    labels = np.zeros(12, dtype=np.int64)
    fewer = np.where(np.arange(12) < 8, 1 / 8, 0.0)
    assert _matter(rows, labels, np.full(12, 1 / 12), fewer) is expected
    assert not _matter(rows, labels, fewer, fewer)
    both = np.concatenate([rows[:8], 5 * rows[8:10], -5 * rows[10:]])  # from both ends
    assert not _matter(both, labels, np.full(12, 1 / 12), fewer)


def test_replies_that_contradict_the_first_ones_stand_out() -> None:
    """Sign flips near the end look like noise, and do no harm; but no honest client answers so."""
    drawn = draw(3, 0.1)
    result = ct.fit(drawn, clusters=3, max_byzantine=0.02, attack=ct.attack("sign-flip", target="smallest", sleep=1))
    assert found(result).raised_from == 3
    assert result.metrics["oracle_ratio"] < 1.05


@pytest.mark.skipif(not (PUBLISHED / "parkinsons_updrs.tsv").exists(), reason="needs the public tables")
def test_patients_who_differ_from_each_other_are_no_reason_to_raise_the_bound() -> None:
    """Eight of 42 stand out where three may be Byzantine; without them no centre moves by a standard error."""
    options = [
        "problem.kind=parkinsons", f"problem.path={PUBLISHED}", "problem.clusters=3", "problem.holdout=0.25",
        "algorithm.max_byzantine=0.07", "run.trials=1", "run.methods=['coterie']",
    ]  # fmt: skip
    own = run_trial(read_config(None, options), 0).methods["coterie"].diagnostics
    assert own is not None
    assert (own.raised_from, own.max_byzantine, own.excess) == (-1, 3, 0)


@pytest.mark.parametrize("name", ["paper", "phantom"])
def test_a_bound_that_is_too_small_is_noticed_and_replaced(name: str) -> None:
    drawn = draw(3, 0.1)
    told = ct.fit(drawn, clusters=3, max_byzantine=0.1, attack=ATTACKS[name])
    small = ct.fit(drawn, clusters=3, max_byzantine=0.02, attack=ATTACKS[name])
    assert small.metrics["oracle_ratio"] < 1.05 * told.metrics["oracle_ratio"]
    assert found(small).raised_from == 3
    assert found(small).max_byzantine >= 12
    assert "instead of the stated 3" in found(small).lines(drawn.clients.names)[-1]
    assert found(told).raised_from == -1
    with pytest.raises(ValueError, match=r"^max_byzantine: allows for 3 Byzantine clients of 120, and the replies of"):
        ct.fit(drawn, clusters=3, max_byzantine=0.02, attack=ATTACKS[name], strict=True)
    strict = ct.fit(drawn, clusters=3, max_byzantine=0.1, attack=ATTACKS[name], strict=True)
    assert np.array_equal(strict.centres, told.centres)


def test_honest_clients_do_not_stop_a_strict_fit() -> None:
    for seed in range(4):
        result = ct.fit(draw(2, 0.0, seed), clusters=2, max_byzantine=0.0, strict=True)
        assert result.metrics["ari"] == 1.0


def test_a_strict_run_publishes_nothing(tmp_path: Path) -> None:
    options = [f"--set={one}" for one in [*SMALL, "algorithm.max_byzantine=0.02", "attack.target=smallest"]]
    done = coterie_process(
        "run", *options, "--set=algorithm.strict=true", "--method=coterie", "--trials=2", "--out=strict", cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "coterie: algorithm.max_byzantine: allows for 1 Byzantine clients of 40"
    )
    assert not [*tmp_path.rglob("*.safetensors")]
    assert not (tmp_path / "strict" / "membership.json").exists()
    assert json.loads((tmp_path / "strict" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_run_that_fails_later_leaves_no_models_of_earlier_trials(strict: bool, tmp_path: Path) -> None:
    config = parse_config({"algorithm": {"strict": strict}})
    folder = RunFolder(tmp_path / "run", config)
    (tmp_path / "run" / "centres").mkdir(parents=True)
    (tmp_path / "run" / "centres" / "0.safetensors").write_bytes(b"models")
    folder.on_end("failed")
    assert (tmp_path / "run" / "centres").exists() != strict


def test_a_run_reports_the_bound_that_it_used(tmp_path: Path) -> None:
    for bound, line in (("auto", "as estimated"), ("0.02", "instead of the stated 1, since more stood out")):
        options = [f"--set={one}" for one in [*SMALL, f"algorithm.max_byzantine={bound}"]]
        done = coterie("run", *options, "--method=coterie", "--trials=1", f"--out={bound}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert line in done.stdout
        summary = json.loads((tmp_path / bound / "summary.json").read_text())
        own = summary["diagnostics"]["coterie"]["0"]
        assert own["max_byzantine"] == 11
        assert (own["estimated"], own["raised_from"]) == ((1, -1) if bound == "auto" else (0, 1))
        assert any("it allowed for 1 and more stood out" in note for note in summary["notes"]) == (bound != "auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["algorithm.max_byzantine=many"], "algorithm.max_byzantine: must be 'auto' or"),
        (["algorithm.max_byzantine=auto", 'run.methods=["ifca"]'], "algorithm.max_byzantine: auto needs a method"),
        (
            ["algorithm.max_byzantine=auto", 'run.methods=["coterie", "brifca-filter"]'],
            "algorithm.max_byzantine: auto needs a start that asks the clients with brifca-filter; set algorithm.init",
        ),
        (["algorithm.strict=true", 'run.methods=["ifca"]'], "algorithm.strict: needs a method that takes the bound"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    done = coterie("run", *(f"--set={one}" for one in options), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"coterie: {message}")
    assert done.stderr.count("\n") == 1


def test_an_estimator_takes_it_too() -> None:
    pytest.importorskip("sklearn")
    from coterie.sklearn import ClusteredRegressor

    drawn = draw(2, 0.0)
    site = np.repeat(np.arange(drawn.clients.count), drawn.clients.sizes)
    model = ClusteredRegressor(2, max_byzantine="auto", random_state=0).fit(
        drawn.clients.features, drawn.clients.targets, groups=site
    )
    assert model.diagnostics_.max_byzantine == rungs(80, 2)[0] == 24
    with pytest.raises(ValueError, match="max_byzantine: must be 'auto' or"):
        ClusteredRegressor(2, max_byzantine="many").fit(drawn.clients.features, drawn.clients.targets, groups=site)
