"""From the `problem` of a configuration to clients, and to what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from coterie._src import tasks
from coterie._src.data import (
    Clients,
    Federation,
    feature_names,
    gaussian_means,
    held_out,
    image_federation,
    mixed_regression,
    permuted_labels,
    poisson_means,
    read_digits,
    read_folder,
    read_images,
    rotated,
)
from coterie._src.data.images import Labelled
from coterie._src.experiments.config import Folder, GaussianMeans, Images, MixedRegression, Problem
from coterie._src.tasks import Task

if TYPE_CHECKING:
    from coterie._src.tasks.torch_module import NetworkTask

TEST_SHARE = 0.2
"""Of the small digits, which come as one set."""

TASKS: dict[str, Callable[[Clients, int], Task]] = {
    "linear": lambda clients, classes: tasks.linear_regression(clients),
    "logistic": lambda clients, classes: tasks.logistic_regression(clients),
    "softmax": tasks.softmax_regression,
    "mean": lambda clients, classes: tasks.mean_estimation(clients),
}


def federation(problem: Problem, rng: Generator) -> Federation:
    """The clients of one trial."""
    if isinstance(problem, Images):
        return _images(problem, rng)
    if isinstance(problem, Folder):
        return Federation(own_clients(problem, problem.path))
    make: Callable[..., Federation]
    if isinstance(problem, MixedRegression):
        make = partial(mixed_regression, noise_variance=problem.noise_variance)
    elif isinstance(problem, GaussianMeans):
        make = partial(gaussian_means, noise_variance=problem.noise_variance)
    else:
        make = poisson_means
    return make(
        rng,
        clients=problem.clients,
        clusters=problem.clusters,
        samples=problem.sample_rule,
        dim=problem.dim,
        byzantine=problem.byzantine,
        shares=None if problem.shares == "equal" else problem.shares,
        dtype=problem.dtype,
    )


def own_clients(problem: Folder, place: str) -> Clients:
    """The user's clients, from a folder or one file."""
    return read_folder(
        place,
        _target(problem),
        columns=problem.columns,
        offset=problem.offset,
        scale=problem.scale,
        intercept=problem.intercept,
        dtype=problem.dtype,
    )


def weight_names(problem: Folder) -> list[str]:
    """What a centre's coordinates are the weights of."""
    return [
        *feature_names(problem.path, _target(problem), problem.columns),
        *(["intercept"] if problem.intercept else []),
    ]


def _target(problem: Folder) -> str | None:
    return None if problem.task == "mean" else problem.target


def _images(problem: Images, rng: Generator) -> Federation:
    if problem.path:
        train, test = read_images(problem.path), read_images(problem.path, "t10k")
        if train.images.shape[1:] != test.images.shape[1:]:
            raise ValueError(f"{problem.path}: train and t10k images must be of one size")
    else:
        train, test = held_out(read_digits(), TEST_SHARE, rng)
    images, labels = (np.concatenate(both) for both in zip(train, test, strict=True))
    if problem.kind == "rotated-digits":
        variants = rotated(images, labels, problem.clusters)
    else:
        variants = permuted_labels(images, labels, problem.clusters, rng)
    cut = len(train.labels)
    return image_federation(
        rng,
        [Labelled(variant.images[:cut], variant.labels[:cut]) for variant in variants],
        [Labelled(variant.images[cut:], variant.labels[cut:]) for variant in variants],
        clients=problem.clients,
        byzantine=problem.byzantine,
        samples=problem.samples or None,
        concentration=problem.concentration or None,
        dtype=problem.dtype,
    )


def task(problem: Problem, clients: Clients) -> Task:
    """What the clients compute."""
    if isinstance(problem, Images):
        return _network(problem, clients)
    if isinstance(problem, Folder):
        return TASKS[problem.task](clients, problem.classes)
    return TASKS["linear" if isinstance(problem, MixedRegression) else "mean"](clients, 0)


def _network(problem: Images, clients: Clients) -> NetworkTask:
    from torch.nn.functional import cross_entropy

    from coterie._src.tasks.torch_module import LocalTraining, perceptron

    training = None
    if problem.local_steps:
        training = LocalTraining(problem.local_steps, problem.local_step, problem.local_batch, problem.local_momentum)
    assert clients.targets is not None
    if int(clients.targets.max()) >= problem.classes:
        raise ValueError(f"problem.classes: must be more than {int(clients.targets.max())}, the largest label")
    build = partial(perceptron, clients.dim, problem.hidden, problem.classes)
    made: NetworkTask = tasks.module(build, partial(cross_entropy, reduction="none"), training=training)(clients)
    return made


def load_torch() -> Any:
    """PyTorch, or the reason why it is missing."""
    try:
        import torch
    except ImportError:
        raise ValueError("problem.kind: images need PyTorch (pip install 'coterie[torch]')") from None
    return torch


def fast_products() -> AbstractContextManager[None]:
    """While it holds, matrix products on a GPU are in TF32, which training does not notice."""
    matmul = load_torch().backends.cuda.matmul

    @contextmanager
    def held() -> Iterator[None]:
        before, matmul.allow_tf32 = matmul.allow_tf32, True
        try:
            yield
        finally:
            matmul.allow_tf32 = before

    return held()


def on_device(clients: Clients, device: str) -> Clients:
    """The samples as tensors on a device (`coterie[torch]`)."""
    torch = load_torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("run.device: cuda, but torch finds no CUDA device here")
    features, targets = (torch.from_numpy(array).to(device) for array in (clients.features, clients.targets))
    return replace(clients, features=features, targets=targets)
