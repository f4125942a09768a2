"""What is kept of a method: the audit per client, and the final metrics."""

from __future__ import annotations

import numpy as np

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
    garbage = trials(small("attack.kind=garbage", "run.trials=1"))[0].methods["ifca"].audit
    assert {row["refused"] for row in garbage} == {0.0, 1.0}
    assert all(bool(row["reasons"]) == bool(row["byzantine"]) for row in garbage)
    reasons = {reason for row in garbage for reason in row["reasons"].split()}
    assert reasons == {"wrong-label", "wrong-type", "wrong-shape", "not-finite"}


def test_as_many_clusters_as_clients_is_not_one_model_per_client() -> None:
    (trial,) = trials(small("problem.clients=2", "problem.byzantine=0.0", "run.trials=1"))
    assert np.isnan(trial.methods["local"].metrics["ari"])
    assert np.isfinite(trial.methods["ifca"].metrics["loss"])
