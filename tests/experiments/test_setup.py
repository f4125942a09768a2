"""The draw that all methods of a trial share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie._src.data import Federation
from coterie._src.experiments import check, read_config, run_trial
from coterie._src.experiments.problems import MixedRegression
from coterie._src.experiments.setup import DataCache, draw_trial
from small_trials import small, without_clock


def test_trials_on_the_same_data_draw_it_once_and_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[MixedRegression] = []
    draw = MixedRegression.draw

    def counted(problem: MixedRegression, rng: np.random.Generator) -> Federation:
        drawn.append(problem)
        return draw(problem, rng)

    monkeypatch.setattr(MixedRegression, "draw", counted)
    each = [
        small(f"attack.kind={attack}", f"algorithm.init={init}", "run.methods=['coterie', 'ifca', 'local']")
        for attack in ("paper", "sign-flip", "label-flip")
        for init in ("bernoulli", "spectral")
    ]
    cache = DataCache()
    for trial in (0, 1):
        shared = [run_trial(config, trial, cache=cache) for config in each]
        assert len(drawn) == 1 + trial * (1 + len(each))
        alone = [run_trial(config, trial) for config in each]
        assert [without_clock(result) for result in shared] == [without_clock(result) for result in alone]
    other = run_trial(small("problem.dim=7"), 1, cache=cache)
    assert other.methods["coterie"].centres.shape == (2, 7)


def test_the_start_depends_on_seed_and_trial_alone() -> None:
    first, same = (draw_trial(small(f"attack.kind={kind}"), 1) for kind in ("paper", "sign-flip"))
    other, elsewhere = draw_trial(small(), 2), draw_trial(small("run.seed=5"), 1)
    assert np.array_equal(first.start, same.start)
    assert np.array_equal(first.task.clients.features, same.task.clients.features)
    for another in (other, elsewhere):
        assert not np.array_equal(first.start, another.start)
        assert not np.array_equal(first.task.clients.features, another.task.clients.features)
    assert first.stream("attack").integers(2**62) == same.stream("attack").integers(2**62)
    assert first.stream("attack").integers(2**62) != first.stream("server").integers(2**62)


def test_what_only_the_files_can_say_is_found_before_any_work(tmp_path: Path) -> None:
    for client in range(3):
        (tmp_path / f"{client}.csv").write_text("x,y\n1,0\n2,1\n")
    own = ["problem.kind=folder", f"problem.path={tmp_path}"]
    check(read_config(None, [*own, "problem.clusters=3"]))
    with pytest.raises(ValueError, match=r"problem\.clusters: must be at most the number of clients \(3\), got 4"):
        check(read_config(None, [*own, "problem.clusters=4"]))
    with pytest.raises(ValueError, match=r"algorithm\.resample: needs at least 2\*rounds = 8 samples .*, 0 has 2"):
        check(read_config(None, [*own, "problem.clusters=2", "algorithm.resample=true", "algorithm.rounds=4"]))
    np.save(tmp_path / "centres.npy", np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"algorithm\.init: .*must hold 2 x 2 finite numbers"):
        check(read_config(None, [*own, "problem.clusters=2", f"algorithm.init={tmp_path / 'centres.npy'}"]))
    with pytest.raises(ValueError, match="no such folder"):
        check(read_config(None, ["problem.kind=folder", f"problem.path={tmp_path / 'nowhere'}"]))
