"""Batches of trials of a configuration: the CPU stands in for the device, a GPU is used where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.algorithms.three_stage import trimmed_kmeans
from coterie._src.batch import Batch
from coterie._src.batch.engine import check_device, device_engine
from coterie._src.batch.least_squares import minimisers, oracle
from coterie._src.batch.three_stage import trimmed_kmeans as batched_kmeans
from coterie._src.batch.trials import draw, run_batch
from coterie._src.data import Clients
from coterie._src.experiments.config import Config
from coterie._src.experiments.engines import Job
from coterie._src.experiments.toml import read_config
from coterie._src.experiments.trial import draw_trial, run_trial
from coterie._src.tasks import linear_regression
from coterie._src.tasks.linear import least_squares

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
METHODS = ["brifca-median", "brifca-trimmed", "ifca", "three-stage", "oracle"]


def config(*changes: str) -> Config:
    small = [
        "problem.clients=40", "problem.clusters=2", "problem.samples=60", "problem.dim=6", "problem.byzantine=0.1",
        "algorithm.rounds=60", "algorithm.trim=0.1", "algorithm.init=warm", "three_stage.first=truth",
        f"run.methods={METHODS}", "run.trials=4",
    ]  # fmt: skip
    return read_config(None, [*small, *changes])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step", ["auto", "0.05"])
def test_a_batch_gives_what_the_single_path_gives_on_the_same_data(
    device: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw on the device, hand the samples to the CPU path, and compare every metric."""
    chosen = config(f"algorithm.step={step}")
    trials = range(3)
    drawn = draw(chosen, trials, device)
    results = run_batch(chosen, trials, device)
    for place, trial in enumerate(trials):
        x, y = (part[place].flatten(0, 1).cpu().numpy() for part in drawn.batch[:2])
        federation = draw_trial(chosen, trial)
        sizes = np.full(40, 60)
        task = linear_regression(Clients(x, y, sizes), form="direct")
        same = federation.__class__(chosen, trial, task, drawn.truths[place], drawn.start[place].cpu().numpy())
        monkeypatch.setattr("coterie._src.experiments.trial.draw_trial", lambda *_, same=same: same)
        expected = run_trial(chosen, trial, record=False)
        assert list(results[place].methods) == METHODS
        for name, method in expected.methods.items():
            found = results[place].methods[name].metrics
            for metric in ("dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "rounds"):
                assert found[metric] == pytest.approx(method.metrics[metric], abs=1e-4, rel=1e-3), (name, metric)
            if name != "oracle":
                assert found["loss"] == pytest.approx(method.metrics["loss"], rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_trial_does_not_depend_on_its_batch(device: str) -> None:
    chosen = config()
    together = run_batch(chosen, [0, 1, 2], device)
    alone = run_batch(chosen, [2], device)[0]
    for name, method in alone.methods.items():
        np.testing.assert_allclose(together[2].methods[name].centres, method.centres, atol=1e-6)
    assert alone.trial == 2


def test_truth_and_start_are_those_of_the_cpu() -> None:
    chosen = config()
    drawn, single = draw(chosen, [3], "cpu"), draw_trial(chosen, 3)
    assert single.truth is not None
    assert np.array_equal(drawn.truths[0].centres, single.truth.centres)
    assert np.array_equal(drawn.truths[0].labels, single.truth.labels)
    assert np.array_equal(drawn.start[0].numpy(), single.start)
    noise = drawn.batch.targets[0] - (drawn.batch.features[0] @ torch.from_numpy(single.truth.centres).T).select(2, 0)
    own = noise[single.truth.labels == 0]
    assert float(own.var()) == pytest.approx(0.2, abs=6 * 0.2 * np.sqrt(2 / own.numel()))
    assert drawn.batch.scales[0].tolist() == [3.0 if is_byzantine else 1.0 for is_byzantine in single.truth.byzantine]


def test_minimisers_and_the_oracle_are_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    for n, d, ridge in [(9, 4, 0.0), (4, 9, 0.0), (5, 5, 0.0), (9, 4, 0.3), (4, 9, 0.3)]:
        x = torch.randn((2, 3, n, d), generator=generator)
        y = torch.randn((2, 3, n), generator=generator)
        batch = Batch(x, y, torch.ones((2, 3)))
        for trial, client in np.ndindex(2, 3):
            expected = least_squares(x[trial, client].double().numpy(), y[trial, client].double().numpy(), ridge)
            np.testing.assert_allclose(minimisers(batch, ridge)[trial, client], expected, rtol=1e-6, atol=1e-6)
            if d < n:
                found = minimisers(batch, ridge, float32=True)[trial, client]
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        pooled = oracle(batch, np.array([0, 0, -1]))
        both = least_squares(x[1, :2].flatten(0, 1).double().numpy(), y[1, :2].flatten().double().numpy(), 0.0)
        np.testing.assert_allclose(pooled[1, 0], both, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_clustering_in_a_batch_is_clustering_one_by_one(device: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 20)
    points = np.stack([rng.standard_normal((60, 4)) + 3 * rng.standard_normal((3, 4))[truth] for _ in range(3)])
    points[:, 0] = 1e6  # an outlier
    first = np.where(rng.random((3, 60)) < 0.3, rng.integers(3, size=(3, 60)), truth)
    first[:, 5] = -1
    centres, labels = batched_kmeans(
        torch.from_numpy(points).to(device), torch.from_numpy(first).to(device), 3, trim=0.1, iterations=50
    )
    for trial in range(3):
        expected = trimmed_kmeans(points[trial], 3, trim=0.1, iterations=50, starts=1, rng=rng, first=first[trial])
        assert np.array_equal(labels[trial].cpu(), expected[1])
        np.testing.assert_allclose(centres[trial].cpu(), expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_yields_every_job_in_any_batches_and_stops_when_asked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(chosen, trial, False) for chosen in (config(), config("problem.dim=3")) for trial in range(3)]

    def results() -> dict[int, float]:
        found = device_engine(device)(jobs, lambda _: None, lambda: False)
        return {place: result.methods["ifca"].metrics["dist"] for place, result in found}

    together = results()
    assert sorted(together) == list(range(6))
    monkeypatch.setattr("coterie._src.batch.engine.MEMORY_SHARE", 1e-12)  # one trial at a time
    assert results() == pytest.approx(together, rel=1e-5)
    assert not list(device_engine(device)(jobs, lambda _: None, lambda: True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("samples", "dim"), [(60, 6), (1, 2), (2, 3)])
def test_everything_as_published_stays_finite(device: str, samples: int, dim: int) -> None:
    """With fewer samples than columns the published inverse is singular: such a client counts nowhere."""
    chosen = config(
        "algorithm.step=0.01", "algorithm.empty=random-client", "algorithm.ifca_divisor=all",
        "algorithm.init=bernoulli", "three_stage.erm=float32-inverse", "three_stage.project=unit-sphere",
        f"problem.samples={samples}", f"problem.dim={dim}",
    )  # fmt: skip
    for result in run_batch(chosen, range(4), device):
        for name, method in result.methods.items():
            assert np.isfinite(method.metrics["dist"]), name
            assert np.isfinite(method.centres).all()


def test_what_a_device_cannot_do_is_one_line() -> None:
    reason = "no CUDA device" if not torch.cuda.is_available() else "attack.kind: on run.device = cuda must be paper"
    with pytest.raises(ValueError, match=reason):
        check_device(config("attack.kind=sign-flip"))
