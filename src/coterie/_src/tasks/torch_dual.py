"""Local training in dual form, for modules that begin with a linear layer.

With full-batch SGD the change of the first layer's weights W is always in the span of the samples: W_t = W_0 − A_tᵀ X,
with A_t the summed gradients of the loss with respect to the pre-activations Z_t = X W_tᵀ. Hence
Z_{t+1} = Z_t − (X Xᵀ)(A_{t+1} − A_t) needs only the n × n matrix X Xᵀ, computed once for all rounds, instead of two
passes over the features, and W is computed once, at the end. If a client has fewer samples than features this takes
several times less arithmetic, with the same result up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from coterie._src.kernels.perceptron import SparseSamples

Losses = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, …), targets (n,)) -> (n,): the loss of every sample, such as cross_entropy with reduction="none"."""

Slopes = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(later layers (c, p), pre-activations (c, n, h), targets (c, n)) -> gradients of the mean losses by the first two."""


class LocalTraining(NamedTuple):
    """`steps` steps of SGD on a client's own samples; its update is the difference of the parameters.

    step: the step size; the server's step size is then 1. batch: samples per step, in turn; 0: all of them.
    Reference: Ghosh et al., An efficient framework for clustered federated learning, 2020, model averaging.
    """

    steps: int = 10
    step: float = 0.1
    batch: int = 0
    momentum: float = 0.0


class Layout(NamedTuple):
    """The names and shapes of a module's parameters in a flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """(dim,) -> the parameters by name, as views."""
        pieces = torch.split(vector, [math.prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}


def layout_of(model: nn.Module) -> Layout:
    """The layout of a module's parameters, in its own order."""
    parameters = dict(model.named_parameters())
    return Layout(tuple(parameters), tuple(parameter.shape for parameter in parameters.values()))


class Head(NamedTuple):
    """A module that begins with a linear layer of `width` outputs, split into that layer and the later layers."""

    width: int
    inputs: int
    bias: bool
    module: nn.Module
    layout: Layout

    @property
    def size(self) -> int:
        """The number of parameters of the first layer; they come first in a centre."""
        return self.width * (self.inputs + self.bias)

    def _layer(self, centres: Tensor) -> tuple[Tensor, Tensor]:
        """(c, dim) -> weights (c, width, inputs) and biases (c, 1, width)."""
        weights = centres[:, : self.width * self.inputs].reshape(-1, self.width, self.inputs)
        biases = centres[:, self.width * self.inputs : self.size]
        return weights, biases.reshape(-1, 1, self.width) if self.bias else weights[:, :1, :0].sum(-1, keepdim=True)

    def first(self, centres: Tensor, features: Tensor, sparse: SparseSamples | None = None) -> Tensor:
        """(k, dim), (c, n, inputs) -> (k, c, n, width): the pre-activations under every centre, by one matrix product.

        sparse: the same samples in sparse form, if available.
        """
        weights, biases = self._layer(centres)
        clients, samples, _ = features.shape
        if sparse is not None:
            return sparse.first_layer(weights, biases).reshape(len(centres), clients, samples, self.width)
        found = features.reshape(-1, self.inputs) @ weights.reshape(-1, self.inputs).mT
        return found.reshape(clients, samples, len(centres), self.width).permute(2, 0, 1, 3) + biases[:, None]

    def own_first(self, own: Tensor, features: Tensor) -> Tensor:
        """(c, dim), (c, n, inputs) -> (c, n, width): the pre-activations of every client under its own model."""
        weights, biases = self._layer(own)
        return features @ weights.mT + biases

    def rest(self, parameters: Tensor, pre_activations: Tensor) -> Tensor:
        """The outputs of the later layers, with these parameters, for (n, width) pre-activations."""
        found: Tensor = functional_call(self.module, self.layout.unflatten(parameters), (pre_activations,))
        return found


def slopes_of(head: Head, loss: Losses) -> Slopes:
    """The gradients for any head, by autograd."""

    def risk(rest: Tensor, pre_activations: Tensor, targets: Tensor) -> Tensor:
        return loss(head.rest(rest, pre_activations), targets).mean()

    return vmap(grad(risk, argnums=(0, 1)))


def local_updates(
    head: Head,
    initial: Tensor,
    features: Tensor,
    targets: Tensor,
    gram: Tensor,
    training: LocalTraining,
    first: Tensor,
    slopes: Slopes,
    out: Tensor,
    sparse: SparseSamples | None = None,
) -> Tensor:
    """(c, dim), in `out`: initial − final parameters of full-batch training, for each of c clients.

    initial: (c, dim − size), the later layers before training. features, targets: (c, n, inputs) and (c, n).
    gram: (c, n, n), X Xᵀ, plus 1 if there is a bias. first: (c, n, h), the pre-activations before training;
    overwritten. sparse: the features in sparse form, if available.
    """
    rest, pre_activations, total = initial, first, torch.zeros_like(first)
    momenta = torch.zeros_like(rest), torch.zeros_like(pre_activations)
    for step in range(training.steps):
        found = [slope.detach() for slope in slopes(rest, pre_activations, targets)]
        if training.momentum:
            found = [slope.add_(before, alpha=training.momentum) for slope, before in zip(found, momenta, strict=True)]
            momenta = found[0], found[1]
        rest = rest - training.step * found[0]
        total += found[1]
        if step + 1 < training.steps:
            pre_activations.baddbmm_(gram, found[1], alpha=-training.step)
    total *= training.step
    if sparse is None:
        weights = out[:, : head.width * head.inputs].view(-1, head.width, head.inputs)
        torch.bmm(total.mT, features, out=weights)
    else:
        sparse.weigh(total, out)
    out[:, head.width * head.inputs : head.size] = total.sum(dim=1) if head.bias else 0.0
    out[:, head.size :] = initial - rest
    return out


def has_hooks(part: nn.Module) -> bool:
    """Whether a part of a module has forward or backward hooks."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def is_perceptron(model: nn.Module, loss: Any) -> bool:
    """Whether the module is a linear layer, ReLU and a linear layer, and the loss is plain cross-entropy per sample.

    >>> layers = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
    >>> is_perceptron(nn.Sequential(*layers), nn.CrossEntropyLoss(reduction="none"))
    True
    """
    if type(model) is not nn.Sequential or [type(part) for part in model] != [nn.Linear, nn.ReLU, nn.Linear]:
        return False
    if model[2].bias is None or any(has_hooks(part) for part in model.modules()):
        return False
    if isinstance(loss, partial):
        return loss.func is cross_entropy and not loss.args and loss.keywords == {"reduction": "none"}
    plain = nn.CrossEntropyLoss(reduction="none")
    return type(loss) is nn.CrossEntropyLoss and vars(loss) == vars(plain)
