"""What a client computes on its own data: losses, gradients, its local minimiser."""

from coterie.tasks.linear_model import (
    LinearModel,
    Loss,
    logistic_loss,
    logistic_regression,
    softmax_loss,
    softmax_regression,
    squared_loss,
)
from coterie.tasks.quadratic import Quadratic, linear_regression, mean_estimation
from coterie.tasks.task import Choice, Response, Task

__all__ = [
    "Choice",
    "LinearModel",
    "Loss",
    "Quadratic",
    "Response",
    "Task",
    "linear_regression",
    "logistic_loss",
    "logistic_regression",
    "mean_estimation",
    "softmax_loss",
    "softmax_regression",
    "squared_loss",
]
