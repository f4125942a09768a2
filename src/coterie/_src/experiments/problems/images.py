"""Images that are rotated, or whose classes are permuted, per cluster; the model is a perceptron (`coterie[torch]`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from coterie._src.arrays import namespace
from coterie._src.data import (
    Clients,
    Federation,
    held_out,
    image_federation,
    permuted_labels,
    read_digits,
    read_images,
    rotated,
)
from coterie._src.data.images import Labelled
from coterie._src.data.synthetic import draw_labels
from coterie._src.experiments.problems.base import KIND, Problem, Setup

if TYPE_CHECKING:
    from coterie._src.tasks.torch_module import NetworkTask

TEST_SHARE = 0.2
"""The share of test samples of the small digits, which have no separate test set."""


class Images(Problem):
    """Images that are rotated, or whose classes are permuted, per cluster; the model is a perceptron."""

    has_parameters: ClassVar[bool] = False
    keeps_draws: ClassVar[bool] = False
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "algorithm": {"step": 1.0, "rounds": 50, "init": "fresh", "max_byzantine": 0.1, "trim": 0.1},
        "attack": {"kind": "sign-flip"},
        "run": {
            "methods": ["coterie", "brifca-median", "brifca-trimmed", "ifca", "global", "local", "oracle"],
            "trials": 3,
        },
    }

    kind: Literal["rotated-digits", "permuted-digits"] = Field("rotated-digits", description=KIND)
    clusters: int = Field(4, ge=1, description="k, the number of clusters: of rotations or permutations")
    path: str = Field(
        "", description="folder with IDX files as MNIST's (train-images-idx3-ubyte[.gz], ...); empty: small digits"
    )
    clients: int = Field(40, ge=1, description="m, the number of clients, Byzantine ones included")
    samples: int = Field(100, ge=0, description="n_i, images per client; 0: all images, split as evenly as possible")
    concentration: float = Field(
        0.0,
        ge=0,
        description="of a Dirichlet split of all images (ignores samples); small: few classes each; 0: none",
    )
    byzantine: float = Field(0.1, ge=0, lt=1, description="alpha, the fraction of Byzantine clients: round(alpha*m)")
    classes: int = Field(10, ge=2, description="number of classes")
    hidden: int = Field(200, ge=0, description="hidden units of the perceptron; 0: softmax regression")
    shared_layers: int = Field(0, ge=0, description="number of first layers that all clusters share")
    local_steps: int = Field(
        10, ge=0, description="tau, local steps of SGD in a round; 0: clients send gradients instead"
    )
    local_step: float = Field(0.1, gt=0, description="step size of the local steps")
    local_batch: int = Field(0, ge=0, description="images per local step; 0: all of the client's")
    local_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the local steps")

    @model_validator(mode="after")
    def _consistent(self) -> Images:
        draw_labels(self.clients, self.clusters, self.byzantine, None)
        if self.shared_layers > (self.hidden > 0):
            raise ValueError(f"shared_layers must be at most {int(self.hidden > 0)} for this perceptron")
        return self

    def draw(self, rng: Generator) -> Federation:
        if self.path:
            train, test = read_images(self.path), read_images(self.path, "t10k")
            if train.images.shape[1:] != test.images.shape[1:]:
                raise ValueError(f"{self.path}: train and t10k images must be of one size")
        else:
            train, test = held_out(read_digits(), TEST_SHARE, rng)
        images, labels = (np.concatenate(both) for both in zip(train, test, strict=True))
        if self.kind == "rotated-digits":
            variants = rotated(images, labels, self.clusters)
        else:
            variants = permuted_labels(images, labels, self.clusters, rng)
        cut = len(train.labels)
        return image_federation(
            rng,
            [Labelled(variant.images[:cut], variant.labels[:cut]) for variant in variants],
            [Labelled(variant.images[cut:], variant.labels[cut:]) for variant in variants],
            clients=self.clients,
            byzantine=self.byzantine,
            samples=self.samples or None,
            concentration=self.concentration or None,
            dtype=self.dtype,
        )

    def build_task(self, clients: Clients) -> NetworkTask:
        from torch.nn.functional import cross_entropy

        from coterie._src.tasks.torch_module import LocalTraining, module, perceptron

        training = None
        if self.local_steps:
            training = LocalTraining(self.local_steps, self.local_step, self.local_batch, self.local_momentum)
        assert clients.targets is not None
        if int(clients.targets.max()) >= self.classes:
            raise ValueError(f"problem.classes: must be more than {int(clients.targets.max())}, the largest label")
        build = partial(perceptron, clients.dim, self.hidden, self.classes)
        made: NetworkTask = module(build, partial(cross_entropy, reduction="none"), training=training)(clients)
        return made

    def setup(self, drawn: Federation, device: str, rng: Generator) -> Setup:
        """The samples on the device, and newly initialised networks with equal shared layers."""
        assert drawn.truth is not None
        assert drawn.truth.test is not None
        clients = on_device(drawn.clients, device)
        truth = replace(drawn.truth, test=on_device(drawn.truth.test, device))
        task = self.build_task(clients)
        shared = task.leading(self.shared_layers) if self.shared_layers else 0
        networks = [task.fresh(rng) for _ in range(self.clusters)]
        example = namespace(networks[0]).stack(networks)
        example[:, :shared] = example[:1, :shared]
        return Setup(replace(task, origin=example[0]), Federation(clients, truth), example, example[:1], shared)

    def computing(self) -> AbstractContextManager[None]:
        """A context with TF32 matrix products on a GPU, which are accurate enough for training."""
        matmul = load_torch().backends.cuda.matmul

        @contextmanager
        def held() -> Iterator[None]:
            before, matmul.allow_tf32 = matmul.allow_tf32, True
            try:
                yield
            finally:
                matmul.allow_tf32 = before

        return held()

    def files(self) -> tuple[str, ...]:
        return (self.path,) if self.path else ()

    def reads_data(self) -> bool:
        return True

    def anchored(self) -> Self:
        return self.model_copy(update={"path": str(Path(self.path).resolve())}) if self.path else self

    def check(self, clients: Clients, device: str) -> None:
        on_device(clients.take([0]), device)

    def title(self) -> str:
        return (
            f"{self.kind}: k={self.clusters}, m={self.clients}, n={self.samples}, {self.hidden} hidden units, "
            f"α={self.byzantine}"
        )


def load_torch() -> Any:
    """The module torch, or a ValueError that says how to install it."""
    try:
        import torch
    except ImportError:
        raise ValueError("problem.kind: images need PyTorch (pip install 'coterie[torch]')") from None
    return torch


def on_device(clients: Clients, device: str) -> Clients:
    """The samples as tensors on a device (`coterie[torch]`)."""
    torch = load_torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("run.device: cuda, but torch finds no CUDA device here")
    features, targets = (torch.from_numpy(array).to(device) for array in (clients.features, clients.targets))
    return replace(clients, features=features, targets=targets)
