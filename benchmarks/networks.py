"""One round of IFCA's experiment on rotated MNIST, beside a plain PyTorch loop over the clients: same numbers, one run.

Every client computes the losses of four perceptrons (784-200-10), picks one, and makes ten full-batch steps on it. The
samples are random: the time depends on them only by their zeros, as many as in MNIST's digits, or none.
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

from coterie._src import tasks
from coterie._src.data import Clients
from coterie._src.tasks.torch_module import LocalTraining, NetworkTask, perceptron

CLIENTS, SAMPLES = 1200, 200
CENTRES = 4
DIGITS = 0.19
"""The share of an MNIST image's pixels that are not zero."""
TRAINING = LocalTraining(10, 0.1)
REPEATS = 3


def draw(clients: int, samples: int, device: str, share: float = DIGITS) -> tuple[NetworkTask, Tensor]:
    """A task with random samples, of which a share is not zero, and centres."""
    torch.manual_seed(0)
    features = torch.rand((clients * samples, 784), device=device)
    features *= torch.rand_like(features) < share
    features *= (DIGITS / share) ** 0.5  # longer ones would make a step of 0.1 unstable
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


def compare(share: float, device: str) -> dict[str, Any]:
    """Interleaved; the best of REPEATS of each side."""
    task, centres = draw(CLIENTS, SAMPLES, device, share)
    ours = task.respond(centres)  # warm: the products of the samples stay for all rounds
    labels, updates = plain_loop(task, centres)
    assert ours.labels.tolist() == labels
    apart = (ours.updates - updates).norm(dim=1) / updates.norm(dim=1)
    del ours, updates
    sides = {"ours": partial(task.respond, centres), "loop": partial(plain_loop, task, centres)}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, work in sides.items():
            times[name].append(seconds(work, device))
    best, loop = (min(times[name]) for name in sides)
    return {
        "pixels that are not 0": share,
        "ours s": best,
        "loop s": loop,
        "x loop": loop / best,
        "median relative difference": float(apart.median()),
        "largest": float(apart.max()),
    }


def run() -> tuple[str, list[dict[str, Any]]]:
    """As sparse as digits, and not sparse."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [compare(share, device) for share in (DIGITS, 1.0)]
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    if device == "cuda":
        rows[-1]["GiB on the device"] = torch.cuda.max_memory_allocated() / 2**30
    what = f"{CLIENTS} clients, {SAMPLES} samples each, float32, best of {REPEATS}"
    return f"{name}, torch {torch.__version__}, {what}", rows
