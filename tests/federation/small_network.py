"""A module that sites have installed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """A convolution and a linear layer, for images of 6 x 6 and three classes."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.look = nn.Conv2d(1, 2, 3)
            self.decide = nn.Linear(2 * 4 * 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.decide(torch.relu(self.look(images)).flatten(1))
        return found


class WithBuffers(nn.Module):
    """A module that Coterie refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.decide = nn.BatchNorm1d(36), nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.decide(self.norm(images.flatten(1)))
        return found


def one_number() -> nn.Module:
    """A linear model of 36 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 1))
