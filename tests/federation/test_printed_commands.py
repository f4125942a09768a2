"""The commands that docs/federation.md prints, on data as they come: no column is scaled."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from coterie import load
from coterie._src.experiments import read_config
from coterie._src.federation.apps import RunSettings, apps, run_server
from coterie._src.federation.audit import audit_clients, site_names
from coterie._src.federation.checkpoint import Checkpoint
from in_process import InProcessGrid
from real_processes import coterie

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
MODELS = np.array([[0.02, -0.3, 0.1, 5.0], [-0.01, 0.5, -0.2, 40.0]])  # of dose, age, weight, and 1


def commands() -> list[list[str]]:
    """The commands of the section "Run it" that write a configuration and a deployment."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(r"\n(    coterie config --set.*?)\n\n", text, re.DOTALL)
    assert block is not None
    joined = re.sub(r"\\\n\s*", " ", block[1])
    return [shlex.split(line) for line in joined.splitlines()]


def test_the_printed_commands_find_the_clusters_of_unscaled_columns(tmp_path: Path) -> None:
    """Doses are up to 900 mg, ages in years, weights in kg; one of the sites sends nonsense."""
    config, up = commands()
    assert config[-2] == ">"
    written = coterie(*config[1:-2], cwd=tmp_path)
    (tmp_path / config[-1]).write_text(written.stdout)
    done = coterie(*up[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Can stand 1 Byzantine site of 7" in done.stdout
    names = [word for before, word in pairwise(up) if before == "--site"]
    server = tmp_path / "deployment" / "server"
    configs = {}
    for node, name in enumerate(names):
        rng = np.random.default_rng(node)
        x = np.column_stack([rng.uniform(50, 900, 80), rng.uniform(20, 90, 80), rng.normal(75, 12, 80), np.ones(80)])
        y = x @ MODELS[node % 2] + rng.normal(0, 1, 80)
        if node == 6:
            y = 1e4 * rng.normal(size=80)
        rows = "".join(",".join(f"{v:.2f}" for v in (*row[:3], value)) + "\n" for row, value in zip(x, y, strict=True))
        (tmp_path / f"{name}.csv").write_text("dose,age,weight,response\n" + rows)
        configs[node] = {"data": str(tmp_path / f"{name}.csv")}
        (server / "nodes").mkdir(exist_ok=True)
        (server / "nodes" / f"{name}.json").write_text(f'{{"node-id": {node}}}')
    file = tmp_path / "deployment" / "app" / "federation_app" / "config.toml"
    folder = server / "federation"
    settings = RunSettings(max_clients=7, min_clients=7, deadline=20.0, patience=5.0, folder=str(folder))
    run_server(read_config(file), settings, InProcessGrid(apps(file)[1], range(7), configs=configs))
    found = {site_names(folder)[one.node]: one.cluster for one in audit_clients(Checkpoint(folder).rows())}
    even, odd = ({found[name] for name in names[:6][i::2]} for i in (0, 1))
    assert (len(even), len(odd)) == (1, 1)
    assert even != odd
    [centres] = load_file(folder / "centres.safetensors").values()
    x = np.array([[400.0, 50.0, 70.0], [100.0, 30.0, 90.0], [800.0, 70.0, 60.0]])
    for cluster, model in ((even.pop(), 0), (odd.pop(), 1)):
        assert centres.shape == (2, 4)
        told = np.column_stack([x, np.ones(3)]) @ MODELS[model]
        np.testing.assert_allclose(load(folder).predict(x, cluster), told, atol=1.0)
