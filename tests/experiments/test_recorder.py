"""What is kept of a method: the audit per client, and the final metrics."""

from __future__ import annotations

import numpy as np

from coterie._src.algorithms import RoundInfo, State
from coterie._src.experiments.recorder import Recorder
from coterie._src.experiments.setup import draw_trial
from coterie._src.simulation import Round
from small_trials import small, trials


def test_the_audit_separates_byzantine_from_honest_clients() -> None:
    config = small(
        "algorithm.init=warm", "algorithm.trim=0.2", "attack.kind=constant", "attack.scale=1e6", "run.trials=1"
    )
    audit = trials(config)[0].methods["brifca-trimmed"].audit
    byzantine = [row for row in audit if row["byzantine"]]
    assert len(byzantine) == 2
    assert all(row["trimmed"] == 1.0 and row["true_cluster"] == -1 for row in byzantine)
    assert all(row["trimmed"] < 0.7 and row["refused"] == 0 for row in audit if not row["byzantine"])
    assert all(row["changed"] == 0 for row in audit if not row["byzantine"])  # a first choice is no change
    garbage = trials(small("attack.kind=garbage", "run.trials=1"))[0].methods["ifca"].audit
    assert {row["refused"] for row in garbage} == {0.0, 1.0}
    assert all(bool(row["reasons"]) == bool(row["byzantine"]) for row in garbage)
    reasons = {reason for row in garbage for reason in row["reasons"].split()}
    assert reasons == {"wrong-label", "wrong-type", "wrong-shape", "not-finite"}


def test_as_many_clusters_as_clients_is_not_one_model_per_client() -> None:
    (trial,) = trials(small("problem.clients=2", "problem.byzantine=0.0", "run.trials=1"))
    assert np.isnan(trial.methods["local"].metrics["ari"])
    assert np.isfinite(trial.methods["ifca"].metrics["loss"])


def test_a_change_of_cluster_is_counted_and_silence_is_none() -> None:
    setup = draw_trial(small(), 0)
    recorder = Recorder(setup.task, setup.truth, setup.is_byzantine)
    verdicts = np.zeros(24, dtype=np.int64)
    for round, label in enumerate((0, 0, -1, 1, -1, 1, 0), 1):
        labels = np.where(np.arange(24) == 3, label, 0)
        info = RoundInfo(labels, verdicts, None, np.array([23, 1]), 0.1, 0)
        recorder.add(Round(State(round, setup.start), info))
    changed = [row["changed"] for row in recorder.finish(0.0).audit]
    assert changed[3] == 2
    assert sum(changed) == 2
