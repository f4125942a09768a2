"""Trials of a small problem, for tests."""

from __future__ import annotations

from coterie._src.experiments import Config, TrialResult, read_config, run_trials

SMALL = [
    "problem.clusters=2", "problem.clients=24", "problem.samples=15", "problem.dim=6", "problem.byzantine=0.1",
    "algorithm.rounds=12", "run.trials=3", "run.workers=1",
]  # fmt: skip


def small(*overrides: str) -> Config:
    return read_config(None, [*SMALL, *overrides])


def trials(config: Config) -> list[TrialResult]:
    return sorted(run_trials(config), key=lambda trial: trial.trial)


def without_clock(trial: TrialResult) -> dict[str, object]:
    return {
        name: ({m: repr(v) for m, v in found.metrics.items() if m != "seconds"}, repr(found.rounds), found.audit)
        for name, found in trial.methods.items()
    }
