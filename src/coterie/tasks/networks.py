"""Any `torch.nn.Module` as a task (`coterie[torch]`): centres are its parameters, one flat vector for each cluster.

All clients of a block are computed together by `torch.func`: their losses under one centre are one forward pass, their
gradients one vectorised pass with a model for each client, in pieces that fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coterie.arrays import Floats, Ints
from coterie.data import Clients
from coterie.data.clients import Block
from coterie.tasks.task import Choice, Response

PIECE_BYTES = 1 << 28
"""What a piece of a block may take: samples, activations, and some copies of a model for each client."""
MODEL_COPIES = 4
ACTIVATIONS = 4
"""How many times the memory of its samples a pass over them takes, roughly."""

Losses = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, …), targets (n,)) -> (n,): the loss of every sample, such as cross_entropy with reduction="none"."""


class LocalTraining(NamedTuple):
    """τ steps of SGD that a client makes on its own samples; its update is the difference of the parameters.

    batch: samples of a step, in turn; 0: all of them. With `steps` steps of size `step` the server's own step is 1.
    Reference: Ghosh et al., An efficient framework for clustered federated learning, 2020, model averaging.
    """

    steps: int = 10
    step: float = 0.1
    batch: int = 0
    momentum: float = 0.0


class Layout(NamedTuple):
    """Where the parameters of a module stand in a flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """(dim,) -> the parameters by name, as views."""
        pieces = torch.split(vector, [math.prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}


def module(
    build: Callable[[], nn.Module],
    loss: Losses,
    shape: tuple[int, ...] = (),
    training: LocalTraining | None = None,
) -> Callable[[Clients], NetworkTask]:
    """A task for any module: a function from clients to a `NetworkTask`.

    build: makes the module; it is called once here. shape: of one sample as the module wants it, without the number of
    samples; () for flat features. training: None for gradients (IFCA's gradient averaging), or what a client does
    instead (its model averaging). A module with buffers, such as a batch norm's running means, is refused: buffers
    are no parameters, and would mix clusters.

    >>> task = module(lambda: nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"))
    >>> task(Clients(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), np.array([2, 2]))).dim
    8
    """
    model = build()
    if buffers := [name for name, _ in model.named_buffers()]:
        raise ValueError(
            f"module: has buffers ({', '.join(buffers[:3])}), which are no parameters; use a norm without running "
            "statistics (GroupNorm, LayerNorm, track_running_stats=False)"
        )
    if training is not None and (training.steps < 1 or not training.step > 0 or not 0 <= training.momentum < 1):
        raise ValueError(f"training: needs steps >= 1, step > 0 and 0 <= momentum < 1, got {training}")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("module: has no parameters")
    layout = Layout(tuple(parameters), tuple(parameter.shape for parameter in parameters.values()))
    return lambda clients: NetworkTask(clients, model, loss, layout, shape, training)


@dataclass(frozen=True)
class NetworkTask:
    """A module's empirical risk on the clients' samples; see `coterie.tasks.Task` for the methods."""

    clients: Clients
    model: nn.Module = field(repr=False)
    loss: Losses
    layout: Layout = field(repr=False)
    shape: tuple[int, ...] = ()
    training: LocalTraining | None = None

    def __post_init__(self) -> None:
        if self.clients.targets is None:
            raise ValueError("targets are missing: a module needs them")
        if not isinstance(self.clients.features, Tensor):
            raise ValueError("features must be torch tensors for a module")

    @property
    def dim(self) -> int:
        return self.layout.dim

    def on(self, clients: Clients) -> NetworkTask:
        return replace(self, clients=clients)

    def flipped(self) -> NetworkTask:
        targets = self.clients.targets
        assert targets is not None
        return self._with_targets(-targets if targets.is_floating_point() else targets.max() - targets)

    def posing(self, model: Tensor) -> NetworkTask:
        scores = self.outputs(model, self.clients.features)
        assert self.clients.targets is not None
        if self.clients.targets.is_floating_point():
            return self._with_targets(scores.reshape(len(scores)))
        return self._with_targets(scores.argmax(dim=-1))

    def _with_targets(self, targets: Tensor) -> NetworkTask:
        return self.on(replace(self.clients, targets=targets))

    def parameters(self) -> Tensor:
        """(dim,): the parameters that `build` gave, flat, where the samples are."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])
        return flat.to(self.clients.features)

    def fresh(self, generator: np.random.Generator) -> Tensor:
        """(dim,): the parameters of a newly initialised module; every layer that can is reset."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator.integers(2**63)))
            for part in self.model.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
            return self.parameters()

    def state(self, centre: Tensor) -> dict[str, Tensor]:
        """The parameters by name, for `load_state_dict`."""
        return {name: value.detach().clone() for name, value in self.layout.unflatten(centre).items()}

    def outputs(self, centre: Tensor, features: Tensor) -> Tensor:
        """(n, …): what a centre's model says about (n, columns) samples."""
        with torch.no_grad():
            parameters = self.layout.unflatten(centre)
            step = max(1, PIECE_BYTES // (ACTIVATIONS * 4 * max(1, self.clients.dim)))
            parts = [self._apply(parameters, features[i : i + step]) for i in range(0, len(features), step)]
            return torch.cat(parts)

    def _apply(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        shaped = samples.reshape(-1, *self.shape) if self.shape else samples
        found: Tensor = functional_call(self.model, parameters, (shaped,))
        return found

    def _risk(self, vector: Tensor, samples: Tensor, targets: Tensor) -> Tensor:
        """F_i(θ), for one client."""
        return self.loss(self._apply(self.layout.unflatten(vector), samples), targets).mean()

    def losses(self, centres: Tensor) -> Tensor:
        columns = []
        for centre in centres:
            rows = []
            for block in self.clients.blocks(max(1, PIECE_BYTES // (4 * ACTIVATIONS))):
                clients, samples, width = block.features.shape
                outputs = self.outputs(centre, block.features.reshape(clients * samples, width))
                each = self.loss(outputs, _targets(block).reshape(-1))
                rows.append(each.reshape(clients, samples).mean(dim=1))
            columns.append(torch.cat(rows))
        return torch.stack(columns, dim=1)

    def respond(self, centres: Tensor, choose: Choice) -> Response:
        losses = self.losses(centres)
        labels = choose(losses)
        return Response(losses, labels, self.gradients(centres, labels))

    def gradients(self, centres: Tensor, labels: Ints) -> Tensor:
        found = torch.empty((self.clients.count, self.dim), dtype=centres.dtype, device=centres.device)
        for block in self._pieces():
            own = centres[torch.from_numpy(labels[block.start : block.stop]).to(centres.device)]
            found[block.start : block.stop] = self._update(own, block, self.training)
        return found

    def _update(self, own: Tensor, block: Block, training: LocalTraining | None) -> Tensor:
        """(c, dim): the gradients of a block's clients at their (c, dim) models, or how far training takes them."""
        slopes: Callable[..., Tensor] = vmap(grad(self._risk))
        targets = _targets(block)
        if training is None:
            return slopes(own, block.features, targets).detach()
        samples = block.features.shape[1]
        batch = min(training.batch or samples, samples)
        moved, speed = own, torch.zeros_like(own)
        for step in range(training.steps):
            place = torch.arange(step * batch, (step + 1) * batch, device=targets.device) % samples
            slope = slopes(moved, block.features[:, place], targets[:, place]).detach()
            speed = training.momentum * speed + slope
            moved = moved - training.step * speed
        return own - moved

    def _pieces(self) -> list[Block]:
        """Blocks of as many clients as fit into memory with a model each."""
        most = int(self.clients.sizes.max())
        each = 4 * (MODEL_COPIES * self.dim + ACTIVATIONS * most * self.clients.dim)
        together = max(1, PIECE_BYTES // each)
        return list(self.clients.blocks(together * most * self.clients.dim))

    def minimisers(self, ridge: float = 0.0) -> Tensor:
        """A short local fit from the parameters that `build` gave, in place of a minimum that nobody can find."""
        fit = self.training or LocalTraining(steps=30)
        start = self.parameters()
        rows = [
            start - self._update(start.expand(block.stop - block.start, -1), block, fit) for block in self._pieces()
        ]
        return torch.cat(rows) / (1.0 + ridge)

    def curvatures(self) -> Floats:
        raise ValueError("algorithm.step: a module has no curvature to judge a step by; give a number")


def _targets(block: Block) -> Any:
    assert block.targets is not None
    return block.targets
