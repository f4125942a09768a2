"""The server of `benchmarks.deployment`: the same question to all sites, by Coterie's loop and by Flower's, in turn."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from coterie._src.federation import ClientNumbers, FlowerNetwork, Question
from coterie._src.federation.messages import TYPE

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Writes seconds by loop, the first question of all left out, since it starts what stays."""
    sites, dim, repeats = (int(str(context.run_config[name])) for name in ("max_clients", "features", "min_clients"))
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(0.5)
    network = FlowerNetwork(grid, ClientNumbers(sites), deadline=300.0)
    centres = np.zeros((2, dim), dtype=np.float32)
    record = Question("gradient", 0, centres).record()
    network.gradients(centres, 0)
    seconds: dict[str, list[float]] = {"Coterie's loop": [], "Flower's loop": []}
    for _ in range(repeats):
        began = time.perf_counter()
        assert len(network.gradients(centres, 0).clients) == sites
        between = time.perf_counter()
        messages = [Message(record, dst_node_id=node, message_type=TYPE) for node in grid.get_node_ids()]
        assert len(list(grid.send_and_receive(messages))) == sites
        seconds["Coterie's loop"].append(between - began)
        seconds["Flower's loop"].append(time.perf_counter() - between)
    Path(str(context.run_config["folder"])).with_name("seconds.json").write_text(json.dumps(seconds))
