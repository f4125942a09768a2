"""Payloads that need nothing of the honest clients but their mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.attacks import Attack, View, paper, sign_flip, smallest
from coterie._src.attacks.crafted import phantom
from coterie._src.attacks.payloads import (
    constant,
    curvature_lies,
    gaussian,
    label_flip,
    noisy_targets,
    scaled_targets,
)
from coterie._src.data import Clients, Federation, mixed_regression, tabular
from coterie._src.experiments import read_config, run_trial
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import Task, linear_regression, logistic_regression, mean_estimation, softmax_regression


def test_the_paper_s_gradient_is_taken_at_three_times_the_centre(view: View) -> None:
    forged = Attack(paper, smallest)(view)
    for row, (client, label) in enumerate(zip(np.flatnonzero(view.is_byzantine), forged.labels, strict=True)):
        x, y = view.task.clients.samples(row)
        by_hand = 2 * x.T @ (x @ (3 * view.centres[label]) - y) / len(x)
        np.testing.assert_allclose(forged.updates[row], by_hand, rtol=1e-4)
        assert view.is_byzantine[client]


def test_sign_flip_gaussian_and_constant(view: View) -> None:
    honest = ~view.is_byzantine
    forged = Attack(sign_flip, smallest, scale=2.0)(view)
    members = honest & (view.labels == forged.labels[0])
    np.testing.assert_allclose(forged.updates, np.tile(-2 * view.updates[members].mean(axis=0), (4, 1)), rtol=1e-5)
    assert np.all(Attack(constant, scale=7.0)(view).updates == 7.0)
    noise = Attack(gaussian, scale=5.0)(view._replace(updates=np.zeros((20, 10_000), np.float32))).updates
    # standard error of the standard deviation of 40 000 normals: 5/√80 000 = 0.018
    assert noise.std() == pytest.approx(5.0, abs=5 * 0.018)


def test_curvature_lies_are_opposite_in_both_numbers_and_the_rest_is_honest(view: View) -> None:
    rows = np.tile([4.0, 0.5], (len(view.is_byzantine), 1))
    asked = view._replace(question="curvature", updates=rows, centres=None)
    sent = np.asarray(curvature_lies(asked, 10.0).updates)
    assert sent == pytest.approx(np.tile([0.4, 5.0], (view.byzantine_count, 1)))
    task, labels = view.task, view.claimed
    assert np.asarray(curvature_lies(view).updates) == pytest.approx(task.gradients(view.centres, labels))


def test_curvature_lies_do_not_make_the_descent_diverge() -> None:
    """With very different numbers of samples; two medians taken apart gave 1e18 times the oracle's error here."""
    sizes = ["problem.clusters=5", "problem.clients=200", "problem.dim=100", "problem.samples='20..500'"]
    bounds = ["problem.byzantine=0.15", "algorithm.max_byzantine=0.15", "algorithm.coordinates='raw'"]
    lies = ["attack.kind='curvature-lies'", "attack.target='smallest'", "run.methods=['coterie']"]
    found = run_trial(read_config(None, [*sizes, *bounds, *lies]), 1, record=False).methods["coterie"].metrics
    assert found["oracle_ratio"] < 1.1
    assert found["ari"] == 1.0


def test_flipped_labels_and_phantoms_answer_for_a_minimiser_too(view: View) -> None:
    asked = view._replace(round=-1, centres=None, labels=np.zeros(20, dtype=np.int64), question="minimiser")
    flipped = view.task.poisoned(lambda y, _: -y).minimisers()
    np.testing.assert_allclose(label_flip(asked).updates, flipped, rtol=1e-4, atol=1e-5)
    model = np.full(4, -0.5)
    np.testing.assert_allclose(phantom(asked).updates, np.tile(model, (4, 1)), rtol=1e-3, atol=1e-3)
    losses = asked._replace(question="loss")
    assert np.array_equal(phantom(losses).updates, view.updates[view.is_byzantine])


def test_flipped_labels_and_a_phantom_compute_honestly_on_other_data(view: View) -> None:
    flipped = label_flip(view).updates
    pretended = phantom(view, scale=2.0)
    for row, (label, chosen) in enumerate(zip(view.labels[view.is_byzantine], pretended.labels, strict=True)):
        x, y = view.task.clients.samples(row)
        np.testing.assert_allclose(flipped[row], 2 * x.T @ (x @ view.centres[label] + y) / len(x), rtol=1e-3, atol=1e-4)
        target = x @ np.full(4, -1.0)  # 2/√4 in every coordinate
        np.testing.assert_allclose(
            pretended.updates[row], 2 * x.T @ (x @ view.centres[chosen] - target) / len(x), rtol=1e-3, atol=1e-4
        )
        best = [np.mean((x @ centre - target) ** 2) for centre in view.centres]
        assert chosen == np.argmin(best)


# --- poisoned targets -------------------------------------------------------------------------------------


def drawn() -> Federation:
    return mixed_regression(
        np.random.default_rng(4), clients=12, clusters=2, samples=range(8, 20), dim=3, byzantine=0.3
    )


def poisoned_by_hand(federation: Federation, scale: float) -> Clients:
    """The clients with scale·y in place of y of the Byzantine ones."""
    clients = federation.clients
    assert clients.targets is not None
    rows = np.repeat(federation.is_byzantine, clients.sizes)
    return Clients(
        clients.features, np.where(rows, np.float32(scale) * clients.targets, clients.targets), clients.sizes
    )


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("scale", [None, 5.0])
def test_every_answer_is_the_honest_one_on_scaled_targets(form: str, scale: float | None) -> None:
    federation = drawn()
    is_byzantine, centres = federation.is_byzantine, federation.truth.centres  # type: ignore[union-attr]
    attack = Attack(scaled_targets, scale=scale)
    attacked = SimulatedNetwork(
        linear_regression(federation.clients, form),
        is_byzantine,
        attack,
        np.random.default_rng(0),  # type: ignore[arg-type]
    )
    by_hand = linear_regression(poisoned_by_hand(federation, -3.0 if scale is None else scale), form)  # type: ignore[arg-type]
    honest = SimulatedNetwork(by_hand, is_byzantine, None, np.random.default_rng(0))
    labels, some = np.arange(12) % 2, np.array([1, 9, 11])
    for ask in (
        lambda network: network.gradients(centres, 0),
        lambda network: network.gradients(centres, 4, labels=labels),
        lambda network: network.gradients(centres, 1, part=(1, 3)),
        lambda network: network.gradients(centres, 2, asked=some),
        lambda network: network.losses(centres),
        lambda network: network.losses(centres, part=(0, 2)),
        lambda network: network.minimisers(centres, 0.1),
        lambda network: network.curvatures(),
        lambda network: network.hessians(centres, labels),
        lambda network: network.sizes(),
    ):
        found, expected = ask(attacked), ask(honest)
        assert np.array_equal(found.clients, expected.clients)
        assert np.array_equal(found.labels, expected.labels)
        np.testing.assert_allclose(found.updates, expected.updates, rtol=1e-4, atol=1e-5)
    changed = SimulatedNetwork(attacked.task, is_byzantine, None, np.random.default_rng(0)).losses(centres).updates
    assert np.all(np.any(changed != attacked.losses(centres).updates, axis=1) == is_byzantine)


def test_noisy_targets_have_ten_standard_deviations_more_and_stay_as_they_are() -> None:
    federation = mixed_regression(np.random.default_rng(4), clients=6, clusters=2, samples=4000, dim=3, byzantine=0.5)
    task, is_byzantine = linear_regression(federation.clients), federation.is_byzantine
    found = Attack(noisy_targets).poisoned(task, is_byzantine).clients
    noise = []
    for client in range(6):
        x, y = federation.clients.samples(client)
        same, targets = found.samples(client)
        assert np.array_equal(x, same)
        assert targets is not None
        if is_byzantine[client]:
            noise.append((targets - y) / np.std(y))
        else:
            assert np.array_equal(targets, y)
    # standard errors over 4000 normals: 10/√8000 = 0.11 of the standard deviation, 1/√4000 = 0.016 of a correlation
    np.testing.assert_allclose(np.std(noise, axis=1), 10.0, atol=5 * 0.11)
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 5 * 0.016
    # the same noise for a client that is asked alone, whatever random generator its network has
    alone = Attack(noisy_targets).poisoned(task.on(federation.clients.take([4])), np.array([True])).clients
    assert np.array_equal(alone.targets, found.samples(4)[1])
    half = Attack(noisy_targets, scale=5.0).poisoned(task, is_byzantine).clients.samples(4)[1]
    np.testing.assert_allclose((half - federation.clients.samples(4)[1]) / np.std(federation.clients.samples(4)[1]),
                               noise[1] / 2, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_poisoned_classes_are_opposite_or_random(classes: int) -> None:
    name, samples = ("logistic" if classes == 2 else "softmax"), 900
    federation = tabular(1, clients=4, clusters=2, samples=samples, dim=3, byzantine=0.5, task=name, classes=classes)  # type: ignore[arg-type]
    clients, is_byzantine = federation.clients, federation.is_byzantine
    task: Task = logistic_regression(clients) if classes == 2 else softmax_regression(clients, classes)
    opposite = Attack(scaled_targets).poisoned(task, is_byzantine).clients
    random = Attack(noisy_targets).poisoned(task, is_byzantine).clients
    for client in range(4):
        y = clients.samples(client)[1]
        expected = classes - 1 - y if is_byzantine[client] else y
        assert np.array_equal(opposite.samples(client)[1], expected)
        counts = np.bincount(random.samples(client)[1].astype(int), minlength=classes)
        if is_byzantine[client]:  # counts of a binomial distribution, within five standard deviations
            p = 1 / classes
            assert np.abs(counts - samples * p).max() < 5 * np.sqrt(samples * p * (1 - p))
        else:
            assert np.array_equal(random.samples(client)[1], y)


def test_without_targets_the_samples_are_poisoned() -> None:
    samples = np.arange(24.0).reshape(8, 3)
    task = mean_estimation(Clients(samples, None, np.array([4, 4])))
    found = Attack(scaled_targets).poisoned(task, np.array([False, True]))
    np.testing.assert_allclose(found.minimisers(), [samples[:4].mean(axis=0), -3 * samples[4:].mean(axis=0)])
    noisy = Attack(noisy_targets).poisoned(task, np.array([False, True])).clients.features
    assert np.array_equal(noisy[:4], samples[:4])
    assert np.all(noisy[4:] != samples[4:])


def test_an_attack_that_does_not_poison_leaves_the_task(view: View) -> None:
    assert Attack(label_flip).poisoned(view.task, np.ones(4, bool)) is view.task
    assert Attack(scaled_targets).poisoned(view.task, np.zeros(4, bool)) is view.task


def test_data_that_are_poisoned_once_have_one_strength_and_no_sleep() -> None:
    with pytest.raises(ValueError, match=r"^sleep must be 0, got 4: the data of scaled-targets are poisoned once"):
        Attack(scaled_targets, sleep=4)
    with pytest.raises(ValueError, match=r"^scale must be a number, got worst: the data of noisy-targets are"):
        Attack(noisy_targets, scale="worst")
