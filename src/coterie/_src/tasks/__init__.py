"""What a client computes on its own data: losses, gradients, its local minimiser."""

from typing import Any

from coterie._src.tasks.base import Choice, Response, Revisited, Task
from coterie._src.tasks.linear import (
    LinearModel,
    Loss,
    logistic_loss,
    logistic_regression,
    softmax_loss,
    softmax_regression,
    squared_loss,
)
from coterie._src.tasks.quadratic import Quadratic, linear_regression, mean_estimation

__all__ = [
    "Choice",
    "LinearModel",
    "Loss",
    "Quadratic",
    "Response",
    "Revisited",
    "Task",
    "linear_regression",
    "logistic_loss",
    "logistic_regression",
    "mean_estimation",
    "module",
    "softmax_loss",
    "softmax_regression",
    "squared_loss",
]


def __getattr__(name: str) -> Any:
    """`module` needs PyTorch, which is an extra and is loaded when somebody asks for it."""
    if name == "module":
        from coterie._src.tasks.torch_module import module

        return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
