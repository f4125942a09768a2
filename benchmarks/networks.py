"""One round of IFCA's experiment on rotated MNIST, beside a plain PyTorch loop over the clients: same numbers, one run.

Every client computes the losses of four perceptrons (784-200-10), picks one, and makes ten full-batch steps on it. The
time does not depend on the samples, so they are random.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie import tasks
from coterie.assignment import assign
from coterie.data import Clients
from coterie.tasks.networks import LocalTraining, NetworkTask, perceptron

CLIENTS, SAMPLES = 1200, 200
CENTRES = 4
TRAINING = LocalTraining(10, 0.1)
REPEATS = 2


def draw(clients: int, samples: int, device: str) -> tuple[NetworkTask, Tensor]:
    """A task with random samples, and centres."""
    torch.manual_seed(0)
    features = torch.rand((clients * samples, 784), device=device)
    features *= torch.rand_like(features) < 0.19  # as sparse as MNIST's digits: denser ones make a step of 0.1 unstable
    targets = torch.randint(10, (clients * samples,), device=device)
    made = tasks.module(lambda: perceptron(784, 200, 10), partial(cross_entropy, reduction="none"), training=TRAINING)
    task = made(Clients(features, targets, np.full(clients, samples)))
    return task, torch.stack([task.fresh(np.random.default_rng(j)) for j in range(CENTRES)])


def plain_loop(task: NetworkTask, centres: Tensor) -> tuple[list[int], Tensor]:
    """Client by client: the losses of all centres, and SGD by autograd from the best."""
    models = []
    for centre in centres:
        model = copy.deepcopy(task.model).to(centres.device)
        model.load_state_dict(task.state(centre))
        models.append(model)
    own = copy.deepcopy(models[0])
    labels, updates = [], torch.empty((task.clients.count, task.dim), device=centres.device)
    for client in range(task.clients.count):
        x, y = task.clients.samples(client)
        with torch.no_grad():
            losses = torch.stack([cross_entropy(model(x), y) for model in models])
        label = int(losses.argmin())
        own.load_state_dict(models[label].state_dict())
        optimiser = torch.optim.SGD(own.parameters(), lr=TRAINING.step)
        for _ in range(TRAINING.steps):
            optimiser.zero_grad()
            cross_entropy(own(x), y).backward()
            optimiser.step()
        labels.append(label)
        updates[client] = centres[label] - nn.utils.parameters_to_vector(own.parameters()).detach()
    return labels, updates


def seconds(work: Callable[[], Any], device: str) -> float:
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def run() -> tuple[str, list[dict[str, Any]]]:
    """Interleaved; the best of REPEATS of each side."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task, centres = draw(CLIENTS, SAMPLES, device)
    ours = task.respond(centres, assign)  # warm: the products of the samples stay for all rounds
    labels, updates = plain_loop(task, centres)
    assert ours.labels.tolist() == labels
    apart = float((ours.updates - updates).norm(dim=1).div(updates.norm(dim=1)).max())
    del ours, updates
    sides = {"ours": partial(task.respond, centres, assign), "loop": partial(plain_loop, task, centres)}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, work in sides.items():
            times[name].append(seconds(work, device))
    best, loop = (min(times[name]) for name in sides)
    row = {
        "clients": CLIENTS,
        "samples": SAMPLES,
        "ours s": best,
        "loop s": loop,
        "x loop": loop / best,
        "largest relative difference": apart,
    }
    if device == "cuda":
        row["GiB on the device"] = torch.cuda.max_memory_allocated() / 2**30
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, float32, best of {REPEATS}", [row]
