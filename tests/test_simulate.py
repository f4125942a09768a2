"""Seeds, first centres, and runs under malformed replies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coterie._src import attacks
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.client import Memory
from coterie._src.data import mixed_regression
from coterie._src.init import bernoulli, from_file, gaussian, warm
from coterie._src.intake import Verdict
from coterie._src.metrics import matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play, stream
from coterie._src.tasks import linear_regression


def test_streams_are_repeatable_and_apart() -> None:
    keys = [(seed, trial, purpose) for seed in (0, 1) for trial in (0, 1) for purpose in ("data", "start", "attack")]
    first = {key: stream(*key).integers(2**63) for key in keys}
    assert first == {key: stream(*key).integers(2**63) for key in reversed(keys)}
    assert len(set(first.values())) == len(keys)


@pytest.mark.parametrize("byzantine", [0.05, 0.25, 0.5])
def test_garbage_from_up_to_half_of_the_clients(byzantine: float) -> None:
    """The run ends, every malformed reply is refused, and the answer is that of the honest clients alone."""
    drawn = mixed_regression(np.random.default_rng(1), clients=60, clusters=2, samples=40, dim=6, byzantine=byzantine)
    assert drawn.truth is not None
    liars = drawn.truth.byzantine
    task = linear_regression(drawn.clients)
    start = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median), rounds=60)
    network = SimulatedNetwork(task, liars, attacks.Attack(attacks.garbage), np.random.default_rng(3))
    played = list(play(algorithm, network, start, np.random.default_rng(4)))
    seen: set[int] = set()
    for _, exchange in played[1:]:
        assert exchange is not None
        assert np.all(exchange.verdicts[liars] != Verdict.ACCEPTED)
        assert np.all(exchange.verdicts[~liars] == Verdict.ACCEPTED)
        seen |= set(exchange.verdicts[liars].tolist())
    faults = {Verdict.WRONG_LABEL, Verdict.WRONG_TYPE, Verdict.WRONG_SHAPE, Verdict.NOT_FINITE, Verdict.WRONG_ROUND}
    assert faults <= seen
    alone = drawn.clients.take(np.flatnonzero(~liars))
    honest = SimulatedNetwork(linear_regression(alone), np.zeros(alone.count, np.bool_), None, np.random.default_rng(5))
    *_, expected = play(algorithm, honest, start, np.random.default_rng(4))
    np.testing.assert_allclose(played[-1].state.centres, expected.state.centres, rtol=1e-5, atol=1e-6)
    assert matched_distance(played[-1].state.centres, drawn.truth.centres) < 0.1


@pytest.mark.parametrize("dim", [12, 40])  # by statistics, and by samples
def test_liars_who_remember_send_what_others_would(dim: int) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=40, clusters=3, samples=30, dim=dim, byzantine=0.3)
    assert drawn.truth is not None
    task, attack = linear_regression(drawn.clients), attacks.Attack(attacks.paper)
    remembering, forgetful = (
        SimulatedNetwork(task, drawn.truth.byzantine, attack, np.random.default_rng(2), memory=memory)
        for memory in (Memory(), None)
    )
    centres = bernoulli(3, dim, np.random.default_rng(3)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median, audit=False), rounds=30, size=0.05)
    labels = set()
    for state, _ in play(algorithm, remembering, centres, np.random.default_rng(4)):
        ours, theirs = (network.gradients(state.centres, state.round) for network in (remembering, forgetful))
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.updates, theirs.updates)
        labels.add(tuple(ours.labels[drawn.truth.byzantine]))
    assert remembering._liars_memory is not None
    assert remembering._liars_memory.planes is not None
    assert len(labels) > 1  # they moved


# --- where the first centres come from --------------------------------------------------------------------


def test_random_and_warm_starts(rng: np.random.Generator) -> None:
    np.testing.assert_allclose(np.linalg.norm(bernoulli(4, 50, rng), axis=1), 1.0)
    # ‖N(0, I/d)‖ has standard error about 1/√(2d) = 0.05 at d = 200
    assert np.all(np.abs(np.linalg.norm(gaussian(6, 200, rng), axis=1) - 1) < 5 * 0.05)
    for clusters in (1, 3):
        drawn = mixed_regression(rng, clients=6, clusters=clusters, samples=2, dim=9, byzantine=0.0, dtype=np.float64)
        assert drawn.truth is not None
        away = np.linalg.norm(warm(drawn.truth, 0.25, rng) - drawn.truth.centres, axis=1)
        gap = drawn.truth.separation if clusters > 1 else 1.0
        np.testing.assert_allclose(away, 0.25 * gap, rtol=1e-9)


def test_centres_from_a_file(tmp_path: Path, rng: np.random.Generator) -> None:
    centres = rng.standard_normal((2, 3))
    np.save(tmp_path / "c.npy", centres)
    np.savetxt(tmp_path / "c.csv", centres, delimiter=",")
    save_file({"centres": centres, "other": np.zeros(1)}, tmp_path / "c.safetensors")
    save_file({"brifca-median": centres.astype(np.float32)}, tmp_path / "one.safetensors")
    save_file({"ifca": centres, "brifca-median": np.zeros((2, 3))}, tmp_path / "run.safetensors")
    for name in ("run.safetensors#ifca", "c.npy", "c.csv", "c.safetensors", "one.safetensors"):
        np.testing.assert_allclose(from_file(tmp_path / name, 2, 3), centres, rtol=1e-6)


def test_bad_files_of_centres(tmp_path: Path) -> None:
    np.save(tmp_path / "shape.npy", np.zeros((3, 3)))
    np.save(tmp_path / "nan.npy", np.full((2, 3), np.nan))
    np.save(tmp_path / "text.npy", np.full((2, 3), "a"))
    np.save(tmp_path / "pickle.npy", np.full((2, 3), None), allow_pickle=True)
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "words.csv").write_text("a,b,c\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "centres.txt").write_text("1 2 3")
    save_file({"a": np.zeros(1), "b": np.zeros(1)}, tmp_path / "two.safetensors")
    for name in ("shape.npy", "nan.npy", "text.npy", "pickle.npy", "noise.safetensors", "words.csv",
                 "empty.csv", "centres.txt", "two.safetensors", "missing.npy"):  # fmt: skip
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            from_file(tmp_path / name, 2, 3)


@pytest.mark.parametrize("attack", [attacks.Attack(attacks.paper), attacks.Attack(attacks.garbage)])
def test_a_round_asks_a_share_of_the_clients(attack: attacks.Attack) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=40, clusters=2, samples=40, dim=6, byzantine=0.1)
    assert drawn.truth is not None
    start = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median), rounds=40, participation=0.3)
    network = SimulatedNetwork(
        linear_regression(drawn.clients), drawn.truth.byzantine, attack, np.random.default_rng(3)
    )
    played = list(play(algorithm, network, start, np.random.default_rng(4)))
    heard = np.zeros(40)
    for _, exchange in played[1:]:
        assert exchange is not None
        asked = exchange.verdicts != Verdict.SILENT
        assert asked.sum() == 12
        assert (exchange.labels[~asked] == -1).all()
        heard += asked
    assert (heard > 0).all()
    assert matched_distance(played[-1].state.centres, drawn.truth.centres) < 0.2
    again = list(play(algorithm, network, start, np.random.default_rng(4)))
    assert [r.exchange.verdicts.tolist() for r in again[1:3] if r.exchange] == [
        r.exchange.verdicts.tolist() for r in played[1:3] if r.exchange
    ]


def test_who_is_asked_answers_as_always() -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=20, clusters=2, samples=30, dim=5, byzantine=0.2)
    assert drawn.truth is not None
    network = SimulatedNetwork(
        linear_regression(drawn.clients), drawn.truth.byzantine, attacks.Attack(attacks.paper), np.random.default_rng(3)
    )
    centres = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    whole, some = network.gradients(centres, 0), network.gradients(centres, 0, asked=np.array([2, 7, 19]))
    assert some.clients.tolist() == [2, 7, 19]  # type: ignore[union-attr]
    np.testing.assert_allclose(some.updates, whole.updates[[2, 7, 19]], rtol=1e-6)
    assert some.labels.tolist() == whole.labels[[2, 7, 19]].tolist()  # type: ignore[union-attr, call-overload]


def test_a_loss_that_is_infinite_is_the_largest_number_whoever_has_it() -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=4, clusters=1, samples=5, dim=3)
    network = SimulatedNetwork(linear_regression(drawn.clients), np.zeros(4, bool), None, np.random.default_rng(0))
    centres = np.array([[1e30] * 3, [0.0] * 3], dtype=np.float32)
    with np.errstate(over="ignore"):
        found = np.asarray(network.losses(centres).updates)
    assert np.all(found[:, 0] == np.finfo(np.float32).max)
    assert np.all(found[:, 1] < 100)
