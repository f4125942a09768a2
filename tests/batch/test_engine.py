"""The engine that runs jobs in batches, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from coterie._src.batch.engine import check_device, device_engine
from coterie._src.experiments.callbacks import NOTHING
from coterie._src.experiments.engines import Job
from devices import DEVICES, small_batch


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_yields_every_job_in_any_batches_and_stops_when_asked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = (small_batch("algorithm.rounds=15"), small_batch("algorithm.rounds=15", "problem.dim=3"))
    jobs = [Job(chosen, trial, False) for chosen in configs for trial in range(3)]

    def results() -> dict[int, float]:
        found = device_engine(device)(jobs, NOTHING, lambda: False)
        return {place: result.methods["ifca"].metrics["dist"] for place, result in found}

    together = results()
    assert sorted(together) == list(range(6))
    monkeypatch.setattr("coterie._src.batch.engine.MEMORY_SHARE", 1e-12)  # one trial at a time
    assert results() == pytest.approx(together, rel=1e-5)
    assert not list(device_engine(device)(jobs, NOTHING, lambda: True))


def test_what_a_device_cannot_do_is_one_line() -> None:
    reason = "no CUDA device" if not torch.cuda.is_available() else "attack.kind: on run.device = cuda must be paper"
    with pytest.raises(ValueError, match=reason):
        check_device(small_batch("attack.kind=sign-flip"))
