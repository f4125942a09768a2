"""What a client computes on its own data: losses, gradients, its local minimiser."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie._src.data import Clients
from coterie._src.registry import Registry
from coterie._src.tasks.base import Response, Task, assign
from coterie._src.tasks.linear import (
    LinearModel,
    Loss,
    least_squares,
    logistic_loss,
    logistic_regression,
    softmax_loss,
    softmax_regression,
    squared_loss,
)
from coterie._src.tasks.quadratic import Quadratic, linear_regression, mean_estimation

__all__ = [
    "TASKS",
    "LinearModel",
    "Loss",
    "Quadratic",
    "Response",
    "Task",
    "TaskRecord",
    "assign",
    "linear_regression",
    "logistic_loss",
    "logistic_regression",
    "mean_estimation",
    "module",
    "softmax_loss",
    "softmax_regression",
    "squared_loss",
]


@dataclass(frozen=True)
class TaskRecord:
    """A task by its name.

    build: from clients and a number of classes to the task. loss: of a linear model that predicts; None for another.
    """

    name: str
    summary: str
    build: Callable[[Clients, int], Task]
    loss: Callable[[int], Loss] | None = None
    classifies: bool = False

    @property
    def needs_targets(self) -> bool:
        return self.loss is not None

    def model(self, clients: Clients, classes: int) -> LinearModel:
        """The linear model with this loss on the clients, which predicts."""
        assert self.loss is not None
        return LinearModel(clients, self.loss(classes), least_squares)


TASKS: Registry[TaskRecord] = Registry(
    "task",
    [
        TaskRecord(
            "linear", "linear regression", lambda clients, _: linear_regression(clients), lambda _: squared_loss()
        ),
        TaskRecord(
            "logistic",
            "logistic regression; targets are 0 or 1",
            lambda clients, _: logistic_regression(clients),
            lambda _: logistic_loss(),
            classifies=True,
        ),
        TaskRecord(
            "softmax", "softmax regression; targets are 0, 1, …", softmax_regression, softmax_loss, classifies=True
        ),
        TaskRecord("mean", "the mean of samples without targets", lambda clients, _: mean_estimation(clients)),
    ],
)


def __getattr__(name: str) -> Any:
    """`module` needs PyTorch, which is an extra and is imported on first use."""
    if name == "module":
        from coterie._src.tasks.torch_module import module

        return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
