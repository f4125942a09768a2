"""Where batches of trials run in tests: the CPU, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from coterie._src.experiments import Config, read_config

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
METHODS = ["brifca-median", "brifca-trimmed", "ifca", "three-stage", "oracle"]


def small_batch(*changes: str) -> Config:
    small = [
        "problem.clients=40", "problem.clusters=2", "problem.samples=60", "problem.dim=6", "problem.byzantine=0.1",
        "algorithm.rounds=60", "algorithm.trim=0.1", "algorithm.init=warm", "three_stage.first=truth",
        f"run.methods={METHODS}", "run.trials=4",
    ]  # fmt: skip
    return read_config(None, [*small, *changes])
