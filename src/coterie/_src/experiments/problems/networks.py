"""Problems whose model is a network (`coterie[torch]`), and the network on the user's own samples, images or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from coterie._src.arrays import Array, namespace
from coterie._src.data import Clients, Federation, HeldOut, hold_out, read_samples
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.problems.base import KIND, Problem, Setup

if TYPE_CHECKING:
    from coterie._src.tasks.torch_module import NetworkTask

DEFAULTS: dict[str, Any] = {"step": 1.0, "rounds": 50, "init": "fresh", "max_byzantine": 0.1, "trim": 0.1}
"""Of the algorithm, for networks."""


class Networks(Problem):
    """The base class of problems whose model is a network."""

    has_parameters: ClassVar[bool] = False
    keeps_draws: ClassVar[bool] = False

    classes: int = Field(10, ge=2, description="number of classes")
    hidden: int = Field(200, ge=0, description="hidden units of the perceptron; 0: softmax regression")
    shared_layers: int = Field(0, ge=0, description="number of first layers that all clusters share")
    local_steps: int = Field(
        10, ge=0, description="tau, local steps of SGD in a round; 0: clients send gradients instead"
    )
    local_step: float = Field(0.1, gt=0, description="step size of the local steps")
    local_batch: int = Field(0, ge=0, description="images per local step; 0: all of the client's")
    local_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the local steps")

    @property
    def has_classes(self) -> bool:
        """Whether the targets are classes, and not numbers."""
        return True

    def network(self, columns: int) -> Callable[[], Any]:
        """Return what builds the module for samples of so many numbers."""
        from coterie._src.tasks.torch_module import perceptron

        return partial(perceptron, columns, self.hidden, self.classes)

    def losses(self) -> Callable[..., Any]:
        """Return the loss of every sample, from outputs and targets."""
        from torch.nn.functional import cross_entropy

        return partial(cross_entropy, reduction="none")

    def build_task(self, clients: Clients) -> NetworkTask:
        from coterie._src.tasks.torch_module import LocalTraining, module

        training = None
        if self.local_steps:
            training = LocalTraining(self.local_steps, self.local_step, self.local_batch, self.local_momentum)
        if clients.targets is not None and not clients.targets.is_floating_point():
            largest = int(clients.targets.max())
            if largest >= self.classes:
                raise ValueError(f"problem.classes: must be more than {largest}, the largest label")
        make = module(self.network(clients.dim), self.losses(), self.sample_shape(), training)
        made: NetworkTask = make(clients)
        return made

    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as the module expects it; () for flat ones."""
        return ()

    def fresh(self, task: NetworkTask, rng: Generator) -> Array:
        """Return (k, dim), newly initialised networks with equal shared layers."""
        shared = self.shared_size(task)
        networks = [task.fresh(rng) for _ in range(self.clusters)]
        found = namespace(networks[0]).stack(networks)
        found[:, :shared] = found[:1, :shared]
        return found

    def shared_size(self, task: NetworkTask) -> int:
        """Return the number of leading coordinates that all clusters share."""
        return task.leading(self.shared_layers) if self.shared_layers else 0

    def setup(self, drawn: Federation, device: str, rng: Generator) -> Setup:
        """The samples on the device, and newly initialised networks with equal shared layers."""
        placed = replace(drawn, clients=on_device(drawn.clients, device))
        if drawn.truth is not None and drawn.truth.test is not None:
            placed = replace(placed, truth=replace(drawn.truth, test=on_device(drawn.truth.test, device)))
        if drawn.held_out is not None:
            held_out = HeldOut(on_device(drawn.held_out.clients, device), drawn.held_out.owners)
            placed = replace(placed, held_out=held_out)
        task = self.build_task(placed.clients)
        example = self.fresh(task, rng)
        return Setup(replace(task, origin=example[0]), placed, example, example[:1], self.shared_size(task))

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
        path = str(getattr(self, "path", ""))
        return (path,) if path else ()

    def reads_data(self) -> bool:
        return True

    def anchored(self) -> Self:
        return self.model_copy(update={"path": str(Path(*self.files()).resolve())}) if self.files() else self

    def check(self, clients: Clients, device: str) -> None:
        on_device(clients.take([0]), device)


class OwnNetwork(Networks):
    """A network on the user's own samples, such as images: one .npz file per client."""

    has_truth: ClassVar[bool] = False
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "algorithm": DEFAULTS,
        "run": {"methods": ["coterie", "global", "local"], "trials": 1},
    }

    kind: Literal["network"] = Field("network", description=KIND)
    clusters: int = Field(2, ge=1, description="k, the number of clusters and of networks")
    path: str = Field("clients", min_length=1, description="folder with one .npz file per client, or one file")
    module: str = Field(
        "",
        description="the import path, package.module:name, of what makes the torch.nn.Module, without arguments; it "
        "must be installed wherever the configuration is used; empty: a perceptron of `hidden` units",
    )
    shape: list[Annotated[int, Field(ge=1)]] = Field(
        [1, 28, 28], min_length=1, description="the shape of one sample as the module expects it"
    )
    predicts: Literal["classes", "numbers"] = Field(
        "classes", description="classes (targets 0, 1, …; cross-entropy) or numbers (squared error, one output)"
    )
    samples: str = Field("x", description="name of the array of samples, (n, …); bytes are divided by 255")
    target: str = Field("y", description="name of the array of targets, (n,)")
    holdout: float = Field(
        0.25, ge=0, lt=1, description="fraction of each client's samples that no method sees, for evaluation; 0: none"
    )
    byzantine: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="for a rehearsal: fraction of the clients, drawn at random, that send what [attack] says",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.module:
            split_path("module", self.module)
        return self

    def draw(self, rng: Generator) -> Federation:
        clients, held_out = hold_out(self._read(self.path), self.holdout, rng)
        byzantine = np.zeros(clients.count, dtype=np.bool_)
        byzantine[rng.permutation(clients.count)[: byzantine_count(clients.count, self.byzantine)]] = True
        return Federation(clients, held_out=held_out, byzantine=byzantine)

    def site_clients(self, path: str) -> Clients:
        """The one client in the file of a site of a real federation."""
        return self._read(path)

    def _read(self, path: str) -> Clients:
        targets = "int64" if self.has_classes else self.dtype
        return read_samples(path, self.samples, self.target, tuple(self.shape), self.dtype, targets)

    @property
    def has_classes(self) -> bool:
        return self.predicts == "classes"

    @property
    def width(self) -> int:
        """The numbers of one sample."""
        return math.prod(self.shape)

    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.shape) if self.module else ()

    def network(self, columns: int) -> Callable[[], Any]:
        outputs = self.classes if self.has_classes else 1
        if not self.module:
            from coterie._src.tasks.torch_module import perceptron

            return partial(perceptron, columns, self.hidden, outputs)
        return partial(self._built, outputs)

    def _built(self, outputs: int) -> Any:
        """The module that the configuration names, which gives `outputs` numbers for a sample."""
        torch = load_torch()
        made = imported("problem.module", self.module)()
        if not isinstance(made, torch.nn.Module):
            raise ValueError(f"problem.module: {self.module} makes a {type(made).__name__}, no torch.nn.Module")
        try:
            with torch.no_grad():
                found = tuple(made(torch.zeros(2, *self.shape)).shape)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"problem.shape: {self.module} does not take {self.shape} ({_first_line(error)})"
            ) from None
        if found not in ((2, outputs), *(((2,),) if outputs == 1 else ())):
            raise ValueError(f"problem.module: {self.module} must give {outputs} numbers for a sample, got {found[1:]}")
        return made

    def losses(self) -> Callable[..., Any]:
        return super().losses() if self.has_classes else squared_errors

    def title(self) -> str:
        return f"{self.path}: k={self.clusters}, {self.module or f'{self.hidden} hidden units'}"


def squared_errors(outputs: Any, targets: Any) -> Any:
    """Return the squared error of every sample, whose output is one number."""
    return (outputs.reshape(targets.shape) - targets) ** 2


def _first_line(error: Exception) -> str:
    """Return the first line of an error."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def split_path(key: str, path: str) -> tuple[str, str]:
    """Return the module and the name of an import path such as `package.module:name`."""
    module, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{key}: must be an import path such as package.module:name, got {path!r}")
    return module, name


def imported(key: str, path: str) -> Any:
    """Return what an import path such as `package.module:name` names; it must be installed here."""
    module, name = split_path(key, path)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key}: {path} is not installed here ({error})") from None
    if not callable(found):
        raise ValueError(f"{key}: {path} must be a function, a class or an app, got a {type(found).__name__}")
    return found


def load_torch() -> Any:
    """The module torch, or a ValueError that says how to install it."""
    try:
        import torch
    except ImportError:
        raise ValueError("problem.kind: networks need PyTorch (pip install 'coterie[torch]')") from None
    return torch


def on_device(clients: Clients, device: str) -> Clients:
    """The samples as tensors on a device (`coterie[torch]`)."""
    torch = load_torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("run.device: cuda, but torch finds no CUDA device here")
    features, targets = (torch.from_numpy(array).to(device) for array in (clients.features, clients.targets))
    return replace(clients, features=features, targets=targets)
