"""Replies on a Ray cluster of two nodes: the same bits as in one process, also where actors and a node die.

In a process of its own, since Ray leaves some of its own behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BEGIN = """
import logging, os, signal, sys
from pathlib import Path
import numpy as np
import ray
from ray.cluster_utils import Cluster
from threadpoolctl import threadpool_limits

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
second = cluster.add_node(**NODE)
ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
assert len({node["NodeID"] for node in ray.nodes() if node["Alive"]}) == 2

def call(actor, function):
    return ray.get(actor.__ray_call__.remote(function))

def kill(actor):
    os.kill(call(actor, lambda self: os.getpid()), signal.SIGKILL)
"""

RULES = (
    BEGIN
    + """
from coterie._src.aggregators import CentredClipping, Krum, Median, NearestNeighbourMixing, SpectralFilter, per_cluster
from coterie._src.aggregators.columns import SHARD, shards_of
from coterie._src.intake import Kept
from coterie._src.sharding.ray_store import RayStore

rows, columns = 14, 5 * SHARD + 100
updates = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
updates[-2:] += 1.0
labels = np.arange(rows) % 2
folder = Path(sys.argv[1]) / "replies"
store = RayStore(ray, folder, rows, actors=3)
store.begin(np.zeros((2, columns), dtype=np.float32))
nodes = {call(actor, lambda self: ray.get_runtime_context().get_node_id()) for actor in store.actors}
assert len(nodes) == 2, nodes

kept = []
for i, update in enumerate(updates):
    kept.append(store.keep(update))
    if i == 6:
        kill(store.actors[1])  # while replies arrive
    nothing = [store.keep(wrong) for wrong in (update[:-1], update.astype(np.float64), update * np.nan, "x")]
    assert [one.row for one in nothing] == [-1] * 4
assert [one.row for one in kept] == list(range(rows))
assert np.array_equal(kept[3].load(), updates[3])
assert store._deaths == 1

shards = store.rows(np.arange(rows))
assert shards.shape == updates.shape
RULES = Median(), Krum(0.2), SpectralFilter(3), CentredClipping(), NearestNeighbourMixing(SpectralFilter(3), 0.2)
for i, rule in enumerate(RULES):
    with threadpool_limits(1):
        expected = per_cluster(rule, updates, labels, 2).updates
    assert per_cluster(rule, shards, labels, 2).updates.tobytes() == expected.tobytes(), rule
    assert rule(shards).tobytes() == rule(shards_of(updates)).tobytes(), rule
    kill(store.actors[i % 3])  # before the next rule
assert store._deaths == 5, store._deaths

cluster.remove_node(second, allow_graceful=False)  # the whole machine
assert SpectralFilter(3)(shards).tobytes() == SpectralFilter(3)(shards_of(updates)).tobytes()
assert store._deaths > 5

store.begin(np.zeros((2, columns), dtype=np.float32))
assert [store.keep(update).row for update in updates[:3]] == [0, 1, 2]  # the next round
assert Median()(store.rows(np.array([0, 2]))).tobytes() == Median()(updates[[0, 2]]).tobytes()
store.end()
assert not folder.exists()
print("all the same bits")
"""
)

FEDERATION = (
    BEGIN
    + """
from functools import partial
from flwr.supercore.task_identity import TaskIdentity
from coterie._src.aggregators import Median, SpectralFilter, TrimmedMean
from coterie._src.algorithms import ClusteredDescent
from coterie._src.data import mixed_regression
from coterie._src.federation import ClusteredStrategy, strategy
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.server import Server
from in_process import FAULTS, InProcessGrid
from small_federation import CLIENTS, app, centres_of

for name in ("run_id", "node_id", "task_id"):
    setattr(TaskIdentity, name, 1)
strategy.RayStore = partial(strategy.RayStore, actors=2, shard=16)  # small models have few columns
drawn = mixed_regression(3, clients=CLIENTS, clusters=2, samples=40, dim=40, byzantine=2 / CLIENTS)
start = (drawn.truth.centres + 0.3).astype(np.float32)

def run(engine, rule):
    folder = Path(sys.argv[1]) / f"{engine}-{type(rule).__name__}"
    descent = ClusteredDescent(Server(rule), rounds=4, step_size=0.1)
    made = ClusteredStrategy(descent, max_clients=CLIENTS, deadline=5.0, folder=folder, engine=engine)
    grid = InProcessGrid(app(drawn), range(CLIENTS), {3: FAULTS["nan"][0], 5: FAULTS["shape"][0]})
    centres = centres_of(grid, start, made)
    assert not (folder / "replies").exists()
    names = "round", "client", "verdict", "label", "trimmed", "distance"
    return centres, [tuple(row[name] for name in names) for row in Checkpoint(folder).rows()]

for rule in Median(), TrimmedMean(0.2), SpectralFilter(0.2):
    (local, audit), (found, rows) = (run(engine, rule) for engine in ("local", "ray"))
    assert not np.array_equal(found, start)
    assert rows == audit or isinstance(rule, SpectralFilter)
    assert {row[2] for row in rows} == {"accepted", "not_finite", "wrong_shape"}
    if isinstance(rule, SpectralFilter):  # of which the shards of 16 columns change totals by rounding
        np.testing.assert_allclose(found, local, atol=1e-5)
    else:
        assert found.tobytes() == local.tobytes(), rule
print("all the same bits")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("program", [RULES, FEDERATION], ids=["rules", "federation"])
def test_two_nodes_give_the_same_bits(program: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as ray_folder:  # a short path, of this cluster alone
        _run(program, tmp_path, ray_folder)


def _run(program: str, tmp_path: Path, ray_folder: str) -> None:
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent.parent / "federation")])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": ray_folder},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("all the same bits")
