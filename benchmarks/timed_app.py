"""The server of `benchmarks.deployment`: the same question to all sites, by Coterie's loop and by Flower's, in turn."""

import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from coterie._src.federation import ClientNumbers, FlowerNetwork, Question
from coterie._src.federation.messages import TYPE

server = ServerApp()
ROLES = {"bin/flower-superlink": "SuperLink", "site serve": "sites"}


def cpu_seconds(deployment: Path) -> Counter[str]:
    """The CPU seconds that the processes of a deployment have used, by what they do (Linux)."""
    used: Counter[str] = Counter()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            times = (place / "stat").read_text().rpartition(")")[2].split()[11:13]
            role = "server app" if int(place.name) == os.getpid() else ""
            if not role and (place / "cwd").resolve().is_relative_to(deployment):
                role = next((name for words, name in ROLES.items() if words in command), "")
            used[role] += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    del used[""]
    return used


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Writes seconds by loop, the first question of all left out, since it starts what stays."""
    sites, dim, repeats = (int(str(context.run_config[name])) for name in ("max_clients", "features", "min_clients"))
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(0.5)
    deployment = Path(str(context.run_config["folder"])).resolve().parents[1]
    network = FlowerNetwork(grid, ClientNumbers(sites), deadline=300.0)
    centres = np.zeros((2, dim), dtype=np.float32)
    record = Question("gradient", 0, centres).record()
    network.gradients(centres, 0)
    seconds: dict[str, list[float]] = {"Coterie's loop": [], "Flower's loop": []}
    used: dict[str, Counter[str]] = {name: Counter() for name in seconds}
    for _ in range(repeats):
        began, before = time.perf_counter(), cpu_seconds(deployment)
        assert len(network.gradients(centres, 0).clients) == sites
        between, then = time.perf_counter(), cpu_seconds(deployment)
        messages = [Message(record, dst_node_id=node, message_type=TYPE) for node in grid.get_node_ids()]
        assert len(list(grid.send_and_receive(messages))) == sites
        seconds["Coterie's loop"].append(between - began)
        seconds["Flower's loop"].append(time.perf_counter() - between)
        for name, first, last in (("Coterie's loop", before, then), ("Flower's loop", then, cpu_seconds(deployment))):
            used[name].update({role: last[role] - first[role] for role in last})
    Path(str(context.run_config["folder"])).with_name("seconds.json").write_text(
        json.dumps({"seconds": seconds, "cpu": used})
    )
