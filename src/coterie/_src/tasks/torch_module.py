"""Any `torch.nn.Module` as a task (`coterie[torch]`); a centre is the flat vector of its parameters.

All clients of a block are computed together by `torch.func`: their losses under one centre by one forward pass, their
gradients by one vectorised pass with one model per client, in pieces that fit into memory. Full-batch training of a
module that begins with a linear layer runs in dual form (`torch_dual`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coterie._src.arrays import Array, Floats, Ints, as_numpy
from coterie._src.data import Clients
from coterie._src.data.clients import Block
from coterie._src.kernels.elkan import AssignmentCache
from coterie._src.kernels.perceptron import SparseSamples, perceptron_outputs, perceptron_slopes, sparse_samples
from coterie._src.tasks import proximal
from coterie._src.tasks import torch_pieces as pieces
from coterie._src.tasks.base import Response, assign
from coterie._src.tasks.shrinkage import Anchor
from coterie._src.tasks.torch_dual import (
    Head,
    Layout,
    LocalTraining,
    Losses,
    Slopes,
    has_hooks,
    is_perceptron,
    layout_of,
    local_updates,
    slopes_of,
)
from coterie._src.tasks.torch_pieces import BlockCache, Found

__all__ = ["LocalTraining", "Losses", "NetworkTask", "module", "perceptron"]

CACHED_BYTES = 1 << 25
"""The size of a piece where kernels do most of the work, so that it stays in the cache."""
WIDE = 32
"""If the first layer has at least this many outputs, products with zeros of the samples are skipped."""
MODEL_COPIES = 4
"""The memory of a client's pass, in copies of the model."""
ACTIVATIONS = 4
"""The memory of the activations, in copies of the samples, roughly."""


def module(
    build: Callable[[], nn.Module],
    loss: Losses,
    shape: tuple[int, ...] = (),
    training: LocalTraining | None = None,
) -> Callable[[Clients], NetworkTask]:
    """A task for any module: a function from clients to a `NetworkTask`.

    A module with buffers, such as the running means of batch norm, is refused: buffers are no parameters, and all
    clusters would share them.

    Parameters
    ----------
    build : function
        Makes the `torch.nn.Module`; called once.
    loss : function
        From the outputs of the module and the targets to one loss per sample, such as
        `nn.CrossEntropyLoss(reduction="none")`.
    shape : tuple of int, optional
        The shape of one sample as the module expects it; () for flat features.
    training : LocalTraining, optional
        None if clients send gradients (IFCA's gradient averaging), or their local training (its model averaging).

    Returns
    -------
    function
        From clients to the task, for the parameter `task` of `ct.fit`.

    Examples
    --------
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
    return lambda clients: NetworkTask(clients, model, loss, layout_of(model), shape, training)


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """A linear layer, ReLU and a linear layer; with hidden = 0 one linear layer (softmax regression)."""
    if hidden == 0:
        return nn.Sequential(nn.Linear(inputs, outputs))
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@dataclass(frozen=True)
class NetworkTask:
    """A module's empirical risk on the clients' samples; see `coterie.tasks.Task` for the methods.

    origin: (dim,), the start of local fits; None for the parameters of the built module. fit: the training by which a
    client computes its own minimiser; None for its training in a round.
    """

    clients: Clients
    model: nn.Module = field(repr=False)
    loss: Losses
    layout: Layout = field(repr=False)
    shape: tuple[int, ...] = ()
    training: LocalTraining | None = None
    origin: Tensor | None = field(default=None, repr=False)
    fit: LocalTraining | None = None
    _kept: BlockCache = field(init=False, default_factory=BlockCache, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.clients.targets is None:
            raise ValueError("targets are missing: a module needs them")
        if not isinstance(self.clients.features, Tensor):
            raise ValueError("features must be torch tensors for a module")

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def curvature_bound(self) -> float:
        return 1.0  # an update is a difference of parameters, to be applied as it is

    @property
    def has_curvatures(self) -> bool:
        return False

    @property
    def hessians_known(self) -> Literal["never"]:
        return "never"

    def on(self, clients: Clients) -> NetworkTask:
        return replace(self, clients=clients)

    def poisoned(self, change: Callable[[Tensor, int], Tensor]) -> NetworkTask:
        targets = self.clients.targets
        assert targets is not None
        numbers = targets.is_floating_point()
        classes = 0 if numbers else self.outputs(self.parameters(), self.clients.features[:1]).shape[-1]
        return self._with_targets(change(targets, classes))

    def with_targets_from(self, model: Tensor) -> NetworkTask:
        scores = self.outputs(model, self.clients.features)
        assert self.clients.targets is not None
        if self.clients.targets.is_floating_point():
            return self._with_targets(scores.reshape(len(scores)))
        return self._with_targets(scores.argmax(dim=-1))

    def _with_targets(self, targets: Tensor) -> NetworkTask:
        return self.on(replace(self.clients, targets=targets))

    def parameters(self) -> Tensor:
        """(dim,): the flat parameters of the built module, on the device of the samples."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])
        return flat.to(self.clients.features)

    def fresh(self, generator: np.random.Generator) -> Tensor:
        """(dim,): the parameters of a newly initialised module; every layer with `reset_parameters` is reset."""
        model = copy.deepcopy(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator.integers(2**63)))
            for part in model.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return replace(self, model=model).parameters()

    def fitting(self, rounds: int, step: float) -> NetworkTask:
        """The same task with local fits of as many steps as `rounds` rounds have; step: the server's step size."""
        if self.training is None:
            return replace(self, fit=LocalTraining(max(1, rounds), step))
        return replace(self, fit=self.training._replace(steps=max(1, rounds * self.training.steps)))

    def leading(self, layers: int) -> int:
        """The number of coordinates of a centre that belong to the first `layers` layers with parameters."""
        owners = [name.rpartition(".")[0] for name in self.layout.names]
        order = list(dict.fromkeys(owners))
        if not 0 <= layers < len(order):
            raise ValueError(f"shared_layers must be from 0 to {len(order) - 1}, one less than the module's layers")
        sizes = [math.prod(shape) for shape in self.layout.shapes]
        return sum(size for owner, size in zip(owners, sizes, strict=True) if owner in order[:layers])

    def state(self, centre: Tensor) -> dict[str, Tensor]:
        """The parameters by name, for `load_state_dict`."""
        return {name: value.detach().clone() for name, value in self.layout.unflatten(centre).items()}

    def outputs(self, centre: Tensor, features: Tensor) -> Tensor:
        """(n, …): the outputs of a centre's model for (n, columns) samples."""
        with torch.no_grad():
            parameters = self.layout.unflatten(centre)
            step = max(1, pieces.piece_bytes(features.device) // (ACTIVATIONS * 4 * max(1, self.clients.dim)))
            parts = [self._apply(parameters, features[i : i + step]) for i in range(0, len(features), step)]
            return torch.cat(parts)

    def predict(self, centre: Tensor, features: Tensor) -> Tensor:
        """(n,): the predicted class of each sample, or the output itself where targets are real numbers."""
        found = self.outputs(centre, features)
        assert self.clients.targets is not None
        return found.reshape(len(found)) if self.clients.targets.is_floating_point() else found.argmax(dim=-1)

    def accuracies(self, centres: Tensor) -> Floats:
        """(k, dim) -> (m, k): the accuracy of every centre's model on every client's samples."""
        found = np.empty((self.clients.count, len(centres)))
        for j, centre in enumerate(centres):
            right = as_numpy(self.predict(centre, self.clients.features) == self.clients.targets).astype(np.float64)
            found[:, j] = np.add.reduceat(right, self.clients.offsets[:-1]) / self.clients.sizes
        return found

    def _apply(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        shaped = samples.reshape(-1, *self.shape) if self.shape else samples
        found: Tensor = functional_call(self.model, parameters, (shaped,))
        return found

    def _risk(self, vector: Tensor, samples: Tensor, targets: Tensor) -> Tensor:
        """F_i(θ), for one client."""
        return self.loss(self._apply(self.layout.unflatten(vector), samples), targets).mean()

    def losses(self, centres: Tensor) -> Tensor:
        head, centres = self._head, centres.detach()

        def of(block: Block) -> Tensor:
            with torch.no_grad():
                first = None if head is None else head.first(centres, block.features, self._sparse(block))
                return self._losses(centres, block, first)

        return torch.cat(self._each_piece(of))

    def _losses(self, centres: Tensor, block: Block, first: Tensor | None) -> Tensor:
        """(c, k): the losses; first: (k, c, n, h), the pre-activations of the first layer, if available."""
        clients, samples, width = block.features.shape
        targets = _targets(block).reshape(-1)
        columns = []
        for j, centre in enumerate(centres):
            if first is None or self._head is None:
                outputs = self.outputs(centre, block.features.reshape(clients * samples, width))
            else:
                pre_activations = first[j].reshape(clients * samples, -1)
                rest = centre[self._head.size :]
                outputs = (
                    perceptron_outputs(rest, pre_activations)
                    if self._by_kernel
                    else self._head.rest(rest, pre_activations)
                )
            columns.append(self.loss(outputs, targets).reshape(clients, samples).mean(dim=1))
        return torch.stack(columns, dim=1)

    def respond(self, centres: Tensor, cache: AssignmentCache | None = None) -> Response:
        centres = centres.detach()
        head = self._head if self.training is not None else None
        if head is None or not self._in_dual(int(self.clients.sizes.max()), self.training):
            labels = assign(self.losses(centres))
            return Response(labels, self.gradients(centres, labels))
        training, slopes = self.training, self._slopes
        assert training is not None
        updates = torch.empty((self.clients.count, self.dim), dtype=centres.dtype, device=centres.device)

        def answer(block: Block) -> Ints:
            sparse = self._sparse(block)
            with torch.no_grad():
                first = head.first(centres, block.features, sparse)
                labels = assign(self._losses(centres, block, first))
            index = torch.from_numpy(labels).to(centres.device)
            chosen = first[index, torch.arange(len(index), device=centres.device)]
            initial = centres[:, head.size :][index]
            gram, out = self._gram(head, block), updates[block.start : block.stop]
            local_updates(head, initial, block.features, _targets(block), gram, training, chosen, slopes, out, sparse)
            return labels

        return Response(np.concatenate(self._each_piece(answer)), updates)

    def gradients(self, centres: Tensor, labels: Ints) -> Tensor:
        centres = centres.detach()
        found = torch.empty((self.clients.count, self.dim), dtype=centres.dtype, device=centres.device)

        def answer(block: Block) -> None:
            own = centres[torch.from_numpy(labels[block.start : block.stop]).to(centres.device)]
            found[block.start : block.stop] = self._update(own, block, self.training)

        self._each_piece(answer)
        return found

    def _update(
        self, own: Tensor, block: Block, training: LocalTraining | None, penalties: Tensor | None = None
    ) -> Tensor:
        """(c, dim): the gradients of a block's clients at their (c, dim) models, or the updates of their training.

        penalties: (c, 1), λ of a penalty λ/2·‖θ − own‖², by proximal steps.
        """
        slopes: Callable[..., Tensor] = vmap(grad(self._risk))
        targets = _targets(block)
        if training is None:
            return slopes(own, block.features, targets).detach()
        if penalties is None and self._head is not None and self._in_dual(block.features.shape[1], training):
            first = self._head.own_first(own, block.features)
            initial = own[:, self._head.size :]
            gram = self._gram(self._head, block)
            return local_updates(
                self._head, initial, block.features, targets, gram, training, first, self._slopes, torch.empty_like(own)
            )
        samples = block.features.shape[1]
        batch = min(training.batch or samples, samples)
        current, momentum = own, torch.zeros_like(own)
        for step in range(training.steps):
            rows = torch.arange(step * batch, (step + 1) * batch, device=targets.device) % samples
            slope = slopes(current, block.features[:, rows], targets[:, rows]).detach()
            momentum = training.momentum * momentum + slope
            current = current - training.step * momentum
            if penalties is not None:
                current = own + (current - own) / (1.0 + training.step * penalties)
        return own - current

    @cached_property
    def _head(self) -> Head | None:
        """The module split after its first layer; None if that is not a linear layer on the flat features."""
        if self.shape or type(self.model) is not nn.Sequential or len(self.model) < 2:
            return None
        if type(self.model[0]) is not nn.Linear or self.model[0].in_features != self.clients.dim:
            return None
        if has_hooks(self.model) or has_hooks(self.model[0]):
            return None
        rest = nn.Sequential(*list(self.model)[1:])
        if not any(True for _ in rest.parameters()):
            return None
        return Head(self.model[0].out_features, self.clients.dim, self.model[0].bias is not None, rest, layout_of(rest))

    @cached_property
    def _by_kernel(self) -> bool:
        """Whether kernels compute a whole round: the local training of a perceptron, on a CPU."""
        if self._head is None or not self._in_dual(int(self.clients.sizes.max()), self.training):
            return False
        targets = self.clients.targets
        assert targets is not None
        if targets.device.type != "cpu" or targets.is_floating_point() or not is_perceptron(self.model, self.loss):
            return False
        outputs = self.layout.shapes[-1][0]
        return bool(((targets >= 0) & (targets < outputs)).all())  # torch decides about other values

    @property
    def _slopes(self) -> Slopes:
        """The gradients of the later layers."""
        assert self._head is not None
        return perceptron_slopes if self._by_kernel else slopes_of(self._head, self.loss)

    def _sparse(self, block: Block) -> SparseSamples | None:
        """The samples in sparse form, where that is faster; cached for the next round."""
        if not self._by_kernel or self._head is None or self._head.width < WIDE:
            return None
        return self._kept.get("sparse", self.clients.features, block, lambda: sparse_samples(block.features))

    def _in_dual(self, samples: int, training: LocalTraining | None) -> bool:
        """Whether a client with this many samples, or fewer, trains in dual form."""
        return training is not None and samples < self.clients.dim and not 0 < training.batch < samples

    def _gram(self, head: Head, block: Block) -> Tensor:
        """(c, n, n): X Xᵀ of every client, plus 1 for the bias; cached for the next round."""
        samples: Tensor = block.features
        return self._kept.get("products", self.clients.features, block, lambda: samples @ samples.mT + float(head.bias))

    def _each_piece(self, work: Callable[[Block], Found]) -> list[Found]:
        return pieces.map_pieces(work, self._pieces(), self._by_kernel)

    def _pieces(self) -> list[Block]:
        """Blocks of as many clients, with a model each, as fit into memory or, for kernels, into the cache."""
        largest = int(self.clients.sizes.max())
        per_client = 4 * (MODEL_COPIES * self.dim + ACTIVATIONS * largest * self.clients.dim)
        limit = CACHED_BYTES if self._by_kernel else pieces.piece_bytes(self.clients.features.device)
        together = max(1, limit // per_client)
        return list(self.clients.blocks(together * largest * self.clients.dim))

    def minimisers(self, ridge: float = 0.0) -> Tensor:
        """(m, dim): a short local fit from `origin`, since the minimiser of a network cannot be computed."""
        fit = self._own_training
        start = self.parameters() if self.origin is None else self.origin
        rows = [
            start - self._update(start.expand(block.stop - block.start, -1), block, fit) for block in self._pieces()
        ]
        return torch.cat(rows) / (1.0 + ridge)

    @property
    def _own_training(self) -> LocalTraining:
        """The training by which a client computes its own model."""
        return self.fit or self.training or LocalTraining(steps=30)

    def personalised(self, centres: Tensor | None, labels: Ints | None) -> tuple[Tensor, Floats, tuple[Anchor, ...]]:
        """As `coterie._src.client.personalise`, by proximal training; see `proximal`.

        Every candidate is trained on three quarters of a client's samples and judged on the others. That of the
        client's choice is then trained on all of them. A client with too few samples keeps the model of its cluster.
        """
        count = self.clients.count
        choices = np.full(count, proximal.OWN)
        anchors = torch.zeros((count, self.dim), dtype=self.clients.features.dtype, device=self.clients.features.device)
        if centres is not None and labels is not None:
            near = proximal.in_a_cluster(centres, labels)
            choices[near] = proximal.KEEP
            anchors[torch.from_numpy(near)] = centres.detach()[torch.from_numpy(labels[near])].to(anchors)
            split = proximal.validation_split(self.clients)
            if split.validation is not None and near.any():
                judged = np.flatnonzero(near[split.validation.owners])
                if len(judged):
                    choices[split.validation.owners[judged]] = self._choices(split, judged, anchors)
        models = anchors.clone()
        trained = np.flatnonzero((choices >= 0) & (choices != proximal.OWN))
        if len(trained):
            penalties = np.array(proximal.PENALTIES)[choices[trained]]
            some = self.on(self.clients.take(trained))
            models[torch.from_numpy(trained)] = some.trained_near(anchors[torch.from_numpy(trained)], penalties)
        alone = np.flatnonzero(choices == proximal.OWN)
        if len(alone):
            models[torch.from_numpy(alone)] = self.on(self.clients.take(alone)).minimisers().to(models)
        return models, proximal.shrinkage_of(choices), proximal.anchors_of(choices)

    def _choices(self, split: proximal.Split, judged: Ints, anchors: Tensor) -> Ints:
        """The choices of some clients, by their validation samples. judged: their numbers among those."""
        assert split.validation is not None
        owners = split.validation.owners[judged]
        learning, near = self.on(split.rest.take(owners)), anchors[torch.from_numpy(owners)]
        validation = self.on(split.validation.clients.take(judged))
        losses = [validation.sample_losses(near)]  # one candidate after the other: a model for every client is large
        for penalty in proximal.PENALTIES:
            losses.append(validation.sample_losses(learning.trained_near(near, np.full(len(near), penalty))))
        losses.append(validation.sample_losses(learning.minimisers()))
        return np.array([proximal.chosen([each[client] for each in losses]) for client in range(len(judged))])

    def trained_near(self, anchors: Tensor, penalties: Floats) -> Tensor:
        """(m, dim), (m,) -> (m, dim): the models after proximal training from each client's anchor."""
        training, strength = self._own_training, torch.from_numpy(penalties)[:, None].to(anchors)
        found = torch.empty_like(anchors)
        for block in self._pieces():
            rows, samples = slice(block.start, block.stop), block.features.shape[1]
            passes = proximal.EPOCHS * math.ceil(samples / min(training.batch or samples, samples))
            near = anchors[rows]
            found[rows] = near - self._update(near, block, training._replace(steps=passes), strength[rows])
        return found

    def sample_losses(self, models: Tensor) -> list[Floats]:
        """(m, dim) -> for each client the losses of its own samples under its own model."""
        found: list[Floats] = []

        def each(model: Tensor, samples: Tensor, targets: Tensor) -> Tensor:
            return self.loss(self._apply(self.layout.unflatten(model), samples), targets)

        for block in self._pieces():
            with torch.no_grad():
                losses = vmap(each)(models[block.start : block.stop], block.features, _targets(block))
            found.extend(as_numpy(losses).astype(np.float64))
        return found

    def curvatures(self) -> Floats:
        raise ValueError("algorithm.step: auto needs a curvature, which a module does not have; give a number")

    def hessians(self, centres: Array, labels: Ints) -> Floats:
        raise ValueError("hessians: a module has too many parameters for its Hessian")


def _targets(block: Block) -> Any:
    assert block.targets is not None
    return block.targets
