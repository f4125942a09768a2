"""Attacks rewrite Byzantine rows only; target and payload compose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import norm

from coterie._src import attacks
from coterie._src.aggregators import mean, trimmed_mean
from coterie._src.attacks import Attack, View
from coterie._src.data import Clients, mixed_regression
from coterie._src.intake import Verdict, admit
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression

PAYLOADS = [
    attacks.none, attacks.paper, attacks.sign_flip, attacks.gaussian, attacks.constant, attacks.garbage,
    attacks.disguised,
    attacks.inner_product, attacks.alie, attacks.min_max, attacks.min_sum, attacks.mimic, attacks.trimmed_mean_attack,
    attacks.label_flip, attacks.merge, attacks.cross_mimic, attacks.seed_capture, attacks.phantom,
]  # fmt: skip
TARGETS = [attacks.own, attacks.smallest, attacks.emptiest, attacks.random, attacks.hop]


@pytest.fixture
def view(rng: np.random.Generator) -> View:
    drawn = mixed_regression(rng, clients=20, clusters=3, samples=8, dim=4, byzantine=0.2)
    assert drawn.truth is not None
    task = linear_regression(drawn.clients, "direct")
    centres = drawn.truth.centres
    labels = task.losses(centres).argmin(axis=1)
    byzantine = drawn.truth.byzantine
    liars = task.on(drawn.clients.take(np.flatnonzero(byzantine)))
    return View(5, centres, labels, task.gradients(centres, labels), byzantine, liars, mean, rng)


def test_the_paper_s_gradient_is_taken_at_three_times_the_centre(view: View) -> None:
    forged = Attack(attacks.paper, attacks.smallest)(view)
    for row, (client, label) in enumerate(zip(np.flatnonzero(view.byzantine), forged.labels, strict=True)):
        x, y = view.liars.clients.samples(row)
        by_hand = 2 * x.T @ (x @ (3 * view.centres[label]) - y) / len(x)
        np.testing.assert_allclose(forged.updates[row], by_hand, rtol=1e-4)
        assert view.byzantine[client]


def test_sign_flip_gaussian_and_constant(view: View) -> None:
    honest = ~view.byzantine
    forged = Attack(attacks.sign_flip, attacks.smallest, scale=2.0)(view)
    members = honest & (view.labels == forged.labels[0])
    np.testing.assert_allclose(forged.updates, np.tile(-2 * view.updates[members].mean(axis=0), (4, 1)), rtol=1e-5)
    assert np.all(Attack(attacks.constant, scale=7.0)(view).updates == 7.0)
    noise = Attack(attacks.gaussian, scale=5.0)(replace(view, updates=np.zeros((20, 10_000), np.float32))).updates
    # standard error of the standard deviation of 40 000 normals: 5/√80 000 = 0.018
    assert noise.std() == pytest.approx(5.0, abs=5 * 0.018)


def test_targets(view: View) -> None:
    own_at_three = view.liars.losses(3 * view.centres).argmin(axis=1)
    labels = Attack(attacks.paper)(view).labels  # the paper's clients work on 3·θ throughout
    assert np.array_equal(labels, own_at_three)
    crowded = replace(view, labels=np.array([0] * 6 + [1] * 3 + [2] * 7 + [0] * 4))
    assert attacks.smallest(crowded).tolist() == [1] * 4
    assert np.array_equal(attacks.own(view), view.labels[view.byzantine])
    assert [attacks.hop(replace(view, round=t))[0] for t in range(4)] == [0, 1, 2, 0]
    drawn = [tuple(attacks.random(view)) for _ in range(20)]
    assert len(set(drawn)) > 5
    assert np.all((np.array(drawn) >= 0) & (np.array(drawn) < 3))


def test_a_claim_means_nothing_where_the_server_fixed_the_labels(view: View) -> None:
    fixed = replace(view, fixed=True)
    for target in TARGETS:
        assert np.array_equal(Attack(attacks.paper, target)(fixed).labels, view.labels[view.byzantine])


def test_the_smallest_cluster_is_one_that_honest_clients_are_in(view: View) -> None:
    labels = np.where(view.labels == 2, 0, view.labels)  # nobody is in cluster 2
    assert 2 not in attacks.smallest(replace(view, labels=labels))


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_only_byzantine_rows_are_rewritten(payload: attacks.Payload, target: attacks.Target, kind: str) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=20, clusters=3, samples=8, dim=4, byzantine=0.4)
    assert drawn.truth is not None
    clients, centres = drawn.clients, drawn.truth.centres
    if kind == "torch":
        assert clients.targets is not None
        clients = Clients(torch.from_numpy(clients.features), torch.from_numpy(clients.targets), clients.sizes)
        centres = torch.from_numpy(centres)
    task = linear_regression(clients, "direct")
    byzantine = drawn.truth.byzantine
    honest = SimulatedNetwork(task, byzantine, None, np.random.default_rng(2)).gradients(centres, 3)
    attacked = SimulatedNetwork(task, byzantine, Attack(payload, target), np.random.default_rng(2)).gradients(
        centres, 3
    )
    for i in np.flatnonzero(~byzantine):
        assert attacked.labels[i] == honest.labels[i]
        assert np.array_equal(np.asarray(attacked.updates[i]), np.asarray(honest.updates[i]))
    accepted = admit(attacked, clients=20, clusters=3, round=3, like=centres)
    refused = accepted.verdicts[byzantine] != Verdict.ACCEPTED
    assert refused.all() if payload is attacks.garbage else not refused.any()
    assert np.array_equal(np.flatnonzero(accepted.verdicts != Verdict.ACCEPTED)[refused.sum() :], [])


def crafted(view: View, payload: attacks.Payload, **options: float) -> tuple[np.ndarray, np.ndarray]:
    """The lie of all on cluster 0, and the honest rows there, in float64."""
    honest = ~view.byzantine & (view.labels == 0)
    labels = np.where(view.byzantine, 0, view.labels)
    forged = payload(replace(view, labels=labels), **options)
    assert np.array_equal(forged.labels, np.zeros(view.count))
    return np.asarray(forged.updates, dtype=np.float64), view.updates[honest].astype(np.float64)


def test_a_little_is_enough(view: View) -> None:
    lies, rows = crafted(view, attacks.alie, scale=1.5)
    np.testing.assert_allclose(lies[0], rows.mean(axis=0) - 1.5 * rows.std(axis=0), rtol=1e-5, atol=1e-6)
    # by default: liars and the honest rows beyond z standard deviations are together a majority
    default, _ = crafted(view, attacks.alie)
    z = ((rows.mean(axis=0) - default[0]) / rows.std(axis=0)).mean()
    needed = (len(rows) + view.count) // 2 + 1 - view.count
    assert norm.sf(z) * len(rows) == pytest.approx(max(needed, 0.001 * len(rows)), rel=1e-3)


def test_a_disguise_has_the_honest_noise_around_the_shift(view: View) -> None:
    many = replace(view, updates=np.random.default_rng(0).standard_normal((20, 4000)).astype(np.float32))
    lies, rows = crafted(many, attacks.disguised, scale=2.0)
    shift = (lies - rows.mean(axis=0)) / rows.std(axis=0)
    assert len({lie.tobytes() for lie in lies}) == len(lies)
    # 16 000 standard normals: standard errors 0.008 of the mean and 0.006 of the deviation
    assert shift.mean() == pytest.approx(-2.0, abs=0.04)
    assert shift.std() == pytest.approx(1.0, abs=0.03)


def test_min_max_and_min_sum_stay_as_near_as_the_honest_do(view: View) -> None:
    lies, rows = crafted(view, attacks.min_max)
    farthest = max(np.linalg.norm(a - b) for a in rows for b in rows)
    assert np.linalg.norm(rows - lies[0], axis=1).max() == pytest.approx(farthest, rel=1e-4)
    lies, rows = crafted(view, attacks.min_sum)
    most = max(sum(np.sum((a - b) ** 2) for b in rows) for a in rows)
    assert np.sum((rows - lies[0]) ** 2) == pytest.approx(most, rel=1e-4)


def test_mimic_and_cross_mimic_send_what_somebody_sends(view: View) -> None:
    lies, rows = crafted(view, attacks.mimic)
    assert np.isclose(rows, lies[0], rtol=1e-5, atol=1e-6).all(axis=1).any()
    assert np.all(lies == lies[0])
    lies, _ = crafted(view, attacks.cross_mimic)
    elsewhere = view.updates[~view.byzantine & (view.labels != 0)]
    assert all((elsewhere == lie.astype(np.float32)).all(axis=1).any() for lie in lies)


def test_the_trimmed_mean_attack_stands_just_outside(view: View) -> None:
    lies, rows = crafted(view, attacks.trimmed_mean_attack)
    up = rows.mean(axis=0) > 0
    assert np.all(lies[:, up] <= rows.min(axis=0)[up] + 1e-6)
    assert np.all(lies[:, ~up] >= rows.max(axis=0)[~up] - 1e-6)


def test_the_trimmed_mean_attack_on_one_sign_stays_within_the_published_interval(view: View) -> None:
    away = replace(view, updates=view.updates * 0.01 + 5.0)
    lies, rows = crafted(away, attacks.trimmed_mean_attack)
    assert np.all(lies >= rows.min(axis=0) / 2 - 1e-6)
    assert np.all(lies <= rows.min(axis=0) + 1e-6)


def test_merging_one_centre_drives_it_away_from_zero(view: View) -> None:
    alone = replace(view, centres=view.centres[:1] + 1.0, labels=np.zeros(20, dtype=np.int64))
    lies, rows = crafted(alone, attacks.merge)
    assert (lies[0] - rows.mean(axis=0)) @ np.asarray(alone.centres[0], dtype=np.float64) < 0


def test_a_search_sends_what_it_measured_and_other_rounds_other_noise(view: View) -> None:
    worst = Attack(attacks.disguised, attacks.smallest, scale="worst")
    first, second = worst(view), worst(view)
    assert not np.array_equal(first.updates, second.updates)


def test_flipped_labels_and_phantoms_answer_for_a_minimiser_too(view: View) -> None:
    asked = replace(view, round=-1, centres=None, labels=np.zeros(20, dtype=np.int64), asked="minimiser")
    np.testing.assert_allclose(
        attacks.label_flip(asked).updates, view.liars.flipped().minimisers(), rtol=1e-4, atol=1e-5
    )
    model = np.full(4, -0.5)
    np.testing.assert_allclose(attacks.phantom(asked).updates, np.tile(model, (4, 1)), rtol=1e-3, atol=1e-3)
    losses = replace(asked, asked="loss")
    assert np.array_equal(attacks.phantom(losses).updates, view.updates[view.byzantine])


def test_merging_drags_a_centre_towards_its_neighbour(view: View) -> None:
    lies, rows = crafted(view, attacks.merge, scale=2.0)
    centres = np.asarray(view.centres, dtype=np.float64)
    gaps = [gap for gap in centres[0] - centres if gap.any()]
    nearest = min(gaps, key=np.linalg.norm)
    pushed = lies[0] - rows.mean(axis=0)
    assert pushed @ nearest == pytest.approx(np.linalg.norm(pushed) * np.linalg.norm(nearest), rel=1e-5)
    spread = np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert np.linalg.norm(pushed) == pytest.approx(2 * spread, rel=1e-5)


def test_flipped_labels_and_a_phantom_compute_honestly_on_other_data(view: View) -> None:
    flipped = attacks.label_flip(view).updates
    phantom = attacks.phantom(view, scale=2.0)
    for row, (label, posed) in enumerate(zip(view.labels[view.byzantine], phantom.labels, strict=True)):
        x, y = view.liars.clients.samples(row)
        np.testing.assert_allclose(flipped[row], 2 * x.T @ (x @ view.centres[label] + y) / len(x), rtol=1e-3, atol=1e-4)
        target = x @ np.full(4, -1.0)  # 2/√4 in every coordinate
        np.testing.assert_allclose(
            phantom.updates[row], 2 * x.T @ (x @ view.centres[posed] - target) / len(x), rtol=1e-3, atol=1e-4
        )
        best = [np.mean((x @ centre - target) ** 2) for centre in view.centres]
        assert posed == np.argmin(best)


def test_seed_capture_is_one_point_before_the_first_round(view: View) -> None:
    asked = replace(view, round=-1, centres=np.zeros((1, 4), np.float32), labels=np.zeros(20, dtype=np.int64))
    start = attacks.seed_capture(asked).updates
    assert np.all(start == start[0])
    later = attacks.seed_capture(view).updates
    assert np.array_equal(later, attacks.paper(view).updates)


def test_a_sleeper_answers_by_its_own_data_first(view: View) -> None:
    sleeper = Attack(attacks.constant, scale=9.0, sleep=6)
    own = Attack(attacks.none)(view)
    assert np.array_equal(sleeper(view).updates, own.updates)
    assert np.all(sleeper(replace(view, round=6)).updates == 9.0)


def test_emptiest_captures_a_cluster_that_nobody_chose(view: View) -> None:
    labels = np.where(view.labels == 2, 0, view.labels)
    assert set(attacks.emptiest(replace(view, labels=labels))) == {2}


def test_the_worst_strength_needs_the_rule(view: View) -> None:
    with pytest.raises(ValueError, match=r"SimulatedNetwork\(aggregate=...\)"):
        Attack(attacks.alie, attacks.own, scale="worst")(replace(view, aggregate=None))


@pytest.mark.parametrize(
    "name",
    ["alie", "disguised", "inner_product", "min_max", "min_sum", "mimic", "cross_mimic", "trimmed_mean_attack", "merge",
     "sign_flip", "seed_capture", "phantom", "constant", "gaussian", "label_flip"],
)  # fmt: skip
def test_where_only_liars_are_asked_they_lie_about_themselves(view: View, name: str) -> None:
    liars = np.flatnonzero(view.byzantine)
    alone = replace(view, labels=view.labels[liars], updates=view.updates[liars], byzantine=np.ones(len(liars), bool))
    forged = Attack(getattr(attacks, name))(alone)
    assert np.shape(forged.updates) == view.updates[liars].shape
    assert np.isfinite(np.asarray(forged.updates)).all()


def test_the_worst_strength_beats_every_other_one(view: View) -> None:
    """Against a trimmed mean the largest lie is not the worst."""
    rule = partial(trimmed_mean, trim=0.2)
    seen = replace(view, aggregate=rule, labels=np.zeros(20, dtype=np.int64))
    honest = view.updates[~view.byzantine]

    def damage(attack: Attack) -> float:
        forged = attack(seen)
        return float(np.linalg.norm(rule(np.concatenate([honest, forged.updates])) - honest.mean(axis=0)))

    worst = damage(Attack(attacks.alie, attacks.own, scale="worst"))
    for scale in (0.03, 0.1, 0.5, 1.0, 2.0, 8.0, 30.0):
        assert worst >= damage(Attack(attacks.alie, attacks.own, scale=scale)) * (1 - 1e-6)
    assert Attack(attacks.garbage, scale="worst")(view).repeated
