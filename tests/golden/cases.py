"""What is pinned: small runs of everything, as plain numbers.

`python tests/golden/cases.py` writes them anew; do that only where a change of the numbers is meant, and say why.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.supercore.task_identity import TaskIdentity
from threadpoolctl import threadpool_limits

from coterie._src import tasks
from coterie._src.arrays import as_numpy
from coterie._src.data import Clients
from coterie._src.experiments import parse_config, run_trial
from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import draw_trial
from coterie._src.experiments.sweep import jobs_left, parse_grid, sweep
from coterie._src.experiments.trial import run_method
from coterie._src.federation import ClusteredStrategy, client_app
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.simulation import stream

sys.path.insert(0, str(Path(__file__).parent.parent / "federation"))
from in_process import InProcessGrid

FILE = Path(__file__).with_name("results.json")
Result = dict[str, Any]
"""centres: floats as JSON writes them, which keeps every bit, and the hash of their bytes; labels, rounds and audit."""

EVIDENCE = ("loss", "suspicion", "evidence")
"""Columns of the audit that follow from the centres and the labels, which are pinned."""

SMALL = {"clients": 20, "clusters": 2, "samples": 20, "dim": 24, "byzantine": 0.15}
BOUNDS = {"max_byzantine": 0.15, "trim": 0.3, "rounds": 12}
ATTACKS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper"},
    "alie": {"kind": "alie", "target": "smallest", "scale": "worst"},
    "garbage": {"kind": "garbage"},
}
FORMS: dict[str, dict[str, Any]] = {
    "gram": {"problem": {**SMALL, "dim": 6}},
    "float64": {"problem": {**SMALL, "dtype": "float64"}},
    "ragged": {"problem": {**SMALL, "samples": "8..40", "dim": 12}},
    "gaussian-means": {"problem": {**SMALL, "kind": "gaussian-means"}},
    "poisson-means": {"problem": {**SMALL, "kind": "poisson-means", "dim": 5}},
    "unknown-k": {"problem": {**SMALL, "dim": 5}, "algorithm": {**BOUNDS, "clusters": "auto", "max_clusters": 4}},
    "spectral": {"algorithm": {**BOUNDS, "init": "spectral"}},
    "mixing": {"algorithm": {**BOUNDS, "before": "mixing"}},
    "bucketing": {"algorithm": {**BOUNDS, "before": "bucketing"}},
    "momentum": {"algorithm": {**BOUNDS, "optimiser": "momentum"}},
    "adam": {"algorithm": {**BOUNDS, "optimiser": "adam", "step": 0.05}},
    "box": {"algorithm": {**BOUNDS, "project": "box", "radius": 0.3}},
    "as-published": {
        "algorithm": {**BOUNDS, "ifca_divisor": "all", "step": 0.05, "empty": "random-client"},
        "three_stage": {"first": "truth", "erm": "float32-inverse", "project": "unit-sphere"},
    },
    "participation": {"algorithm": {**BOUNDS, "participation": 0.6, "quorum": 2}},
    "resample": {"problem": {**SMALL, "samples": 40, "dim": 5}, "algorithm": {**BOUNDS, "resample": True}},
    "disguised": {"attack": {"kind": "noisy-alie", "target": "smallest", "scale": "worst"}},
    "phantom": {"attack": {"kind": "phantom"}},
    "hop": {"attack": {"kind": "sign-flip", "target": "rotating"}},
    "label-flip": {"attack": {"kind": "label-flip", "target": "random"}},
    "paper-on-emptiest": {"attack": {"kind": "paper", "target": "emptiest", "scale": 2.0, "sleep": 3}},
}
PINNED_NAMES = {
    "algorithm.max_byzantine": "algorithm.most_byzantine",
    "algorithm.max_clusters": "algorithm.most_clusters",
}
"""Columns that were renamed since the results were pinned."""
FEW = ("coterie", "brifca-median", "ifca", "three-stage")


def config_of(methods: list[str], **sections: Any) -> Any:
    raw = {"problem": SMALL, "algorithm": BOUNDS, **sections}
    return parse_config({**raw, "run": {"methods": methods, "trials": 1, "seed": 5}})


def pinned(centres: np.ndarray) -> Result:
    """All numbers of small centres, some of large ones, and the hash of all of them."""
    some = centres.ravel()[:: 1 + centres.size // 600]
    return {"centres": some.tolist(), "bytes": hashlib.sha256(centres.tobytes()).hexdigest()}


def summary_of(found: Any) -> Result:
    labels = [row["cluster"] for row in found.audit]
    metrics = {name: value for name, value in found.metrics.items() if name != "seconds"}
    rounds = [{name: value for name, value in row.items() if name != "movement"} for row in found.rounds]
    return {
        **pinned(as_numpy(found.centres)),
        "labels": labels,
        "rounds": len(found.rounds),
        "audit": ["/".join(str(value) for name, value in row.items() if name not in EVIDENCE) for row in found.audit],
        "sizes": [row["sizes"] for row in rounds],
        "refused": [row["refused"] for row in rounds],
        "metrics": {name: None if value != value else value for name, value in metrics.items()},
    }


def trial(config: Any) -> dict[str, Result]:
    return {name: summary_of(found) for name, found in run_trial(config, 0).methods.items()}


def tensors(config: Any) -> dict[str, Result]:
    """The same trial with the samples and the start as PyTorch tensors."""
    setup = draw_trial(config, 0)
    clients = setup.task.clients
    there = Clients(torch.from_numpy(clients.features), torch.from_numpy(clients.targets), clients.sizes)
    start = torch.from_numpy(np.asarray(setup.start))
    setup = replace(setup, task=tasks.linear_regression(there), start=start)
    with threadpool_limits(limits=1), np.errstate(all="ignore"):
        found = {name: run_method(METHODS[name], setup) for name in config.methods}
    return {name: summary_of(result) for name, result in found.items()}


def federation(folder: Path) -> Result:
    """A federation over Flower's messages, in one process."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    config = config_of(["coterie"], problem={**SMALL, "dim": 6})
    setup = draw_trial(config, 0)
    task, truth = setup.task, setup.truth
    assert truth is not None
    attack = config.attack.attack()

    def load(context: Context) -> Any:
        return task.on(task.clients.take([int(context.node_config["partition-id"])]))

    lying = truth.is_byzantine
    app = client_app(load, lambda context: attack if lying[int(context.node_config["partition-id"])] else None)
    count = task.clients.count
    algorithm = METHODS["coterie"].algorithm(replace(setup, truth=None).setting(stream(5, 0, "buckets")))
    strategy = ClusteredStrategy(algorithm, max_clients=count, deadline=5.0, folder=folder, seed=5)
    start = np.zeros((2, task.dim), np.float32)
    found = strategy.start(InProcessGrid(app, range(count)), ArrayRecord({"centres": Array(start)}))
    assert found.arrays is not None
    rows = [
        "/".join(str(row[name]) for name in ("round", "client", "verdict", "label"))
        for row in Checkpoint(folder).rows()
    ]
    return {**pinned(found.arrays["centres"].numpy()), "audit": rows}


def small_sweep(folder: Path) -> Result:
    grid = parse_grid(
        {
            "problem": {**SMALL, "dim": [4, 30]},
            "algorithm": {**BOUNDS, "rounds": 5},
            "attack": {"kind": ["paper", "alie"]},
            "run": {"methods": ["brifca-trimmed", "coterie"], "trials": 2},
        }
    )
    database = Database(folder, create=True)
    sweep(jobs_left(grid, database), database, local_engine(1))
    rows = [
        # held-out scores, personal models and strict bounds came after these numbers were pinned
        {
            k: v
            for k, v in row.items()
            if k not in ("seconds", "algorithm.personalise", "algorithm.strict") and not k.startswith("test_")
        }
        for row in database.rows(grid.keys)
    ]
    database.close()
    rows = [{PINNED_NAMES.get(k, k): None if v != v else v for k, v in row.items()} for row in rows]
    return {"rows": sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)), "keys": grid.keys}


def digits() -> Any:
    problem = {"kind": "rotated-digits", "clients": 8, "clusters": 2, "samples": 20, "hidden": 40, "byzantine": 0.125}
    methods = ["coterie", "brifca-median", "ifca", "local", "oracle"]
    return parse_config({"problem": problem, "algorithm": {"rounds": 4}, "run": {"methods": methods, "trials": 1}})


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and computation of every group of results."""
    for name, attack in ATTACKS.items():
        config = config_of(list(METHODS.names), attack=attack)
        yield f"numpy {name}", lambda config=config: trial(config)
        yield f"torch {name}", lambda config=config: tensors(config)
    for name, sections in FORMS.items():
        config = config_of(list(FEW), **sections)
        yield name, lambda config=config: trial(config)
    yield "sweep", lambda: _in_folder(small_sweep)
    yield "federation", lambda: _in_folder(federation)
    yield "rotated digits", lambda: trial(digits())


def _in_folder(work: Callable[[Path], Result]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder))


def machine() -> str:
    """Bits depend on the processor (the order of a sum follows its vectors) and on the libraries."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    # a virtual machine may hide the model's name, so its number and its instructions count as well
    wanted = ("model name", "cpu family", "model\t", "flags")
    described = [next((line for line in lines if line.startswith(name)), "").split(":")[-1].strip() for name in wanted]
    name, family, model, flags = described
    processor = f"{name or platform.machine()} {family}.{model} {hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    return f"{processor}, NumPy {np.__version__}, SciPy {scipy.__version__}, torch {torch.__version__}"


def digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    computed = {name: json.loads(json.dumps(work())) for name, work in cases()}
    hashes = {name: digest(found) for name, found in computed.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in computed.items()]
    head = f'"machine": {json.dumps(machine())},\n"sha256": {json.dumps(hashes, indent=0)}'
    FILE.write_text(f'{{{head},\n"results": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    print(f"{len(computed)} groups, {FILE.stat().st_size} bytes")
