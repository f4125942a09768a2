"""Batches of trials of a configuration give what single trials give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie._src.batch.trials import draw, run_batch
from coterie._src.data import Clients
from coterie._src.experiments.setup import draw_trial
from coterie._src.experiments.trial import run_trial
from coterie._src.tasks import linear_regression
from devices import DEVICES, METHODS, small_batch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step", ["auto", "0.05"])
def test_a_batch_gives_what_the_single_path_gives_on_the_same_data(
    device: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw on the device, hand the samples to the CPU path, and compare every metric."""
    chosen = small_batch(f"algorithm.step={step}")
    trials = range(3)
    drawn = draw(chosen, trials, device)
    results = run_batch(chosen, trials, device)
    for place, trial in enumerate(trials):
        x, y = (part[place].flatten(0, 1).cpu().numpy() for part in drawn.batch[:2])
        single = draw_trial(chosen, trial)
        sizes = np.full(40, 60)
        task = linear_regression(Clients(x, y, sizes), form="direct")
        same = replace(single, task=task, truth=drawn.truths[place], start=drawn.start[place].cpu().numpy())
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
    chosen = small_batch()
    together = run_batch(chosen, [0, 1, 2], device)
    alone = run_batch(chosen, [2], device)[0]
    for name, method in alone.methods.items():
        np.testing.assert_allclose(together[2].methods[name].centres, method.centres, atol=1e-6)
    assert alone.trial == 2


def test_truth_and_start_are_those_of_the_cpu() -> None:
    chosen = small_batch()
    drawn, single = draw(chosen, [3], "cpu"), draw_trial(chosen, 3)
    assert single.truth is not None
    assert np.array_equal(drawn.truths[0].centres, single.truth.centres)
    assert np.array_equal(drawn.truths[0].labels, single.truth.labels)
    assert np.array_equal(drawn.start[0].numpy(), single.start)
    noise = drawn.batch.targets[0] - (drawn.batch.features[0] @ torch.from_numpy(single.truth.centres).T).select(2, 0)
    own = noise[single.truth.labels == 0]
    assert float(own.var()) == pytest.approx(0.2, abs=6 * 0.2 * np.sqrt(2 / own.numel()))
    assert drawn.batch.scales[0].tolist() == [
        3.0 if is_byzantine else 1.0 for is_byzantine in single.truth.is_byzantine
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("samples", "dim"), [(60, 6), (1, 2), (2, 3)])
def test_everything_as_published_stays_finite(device: str, samples: int, dim: int) -> None:
    """With fewer samples than columns the published inverse is singular: such a client counts nowhere."""
    chosen = small_batch(
        "algorithm.step=0.01", "algorithm.empty=random-client", "algorithm.ifca_divisor=all",
        "algorithm.init=bernoulli", "three_stage.erm=float32-inverse", "three_stage.project=unit-sphere",
        f"problem.samples={samples}", f"problem.dim={dim}",
    )  # fmt: skip
    for result in run_batch(chosen, range(4), device):
        for name, method in result.methods.items():
            assert np.isfinite(method.metrics["dist"]), name
            assert np.isfinite(method.centres).all()
