"""Images that are rotated, or whose classes are permuted, per cluster; the model is a perceptron (`coterie[torch]`)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from coterie._src.data import (
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
from coterie._src.experiments.problems.base import KIND
from coterie._src.experiments.problems.networks import DEFAULTS, Networks

TEST_SHARE = 0.2
"""The share of test samples of the small digits, which have no separate test set."""


class Images(Networks):
    """Images that are rotated, or whose classes are permuted, per cluster; the model is a perceptron."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "algorithm": DEFAULTS,
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

    def title(self) -> str:
        return (
            f"{self.kind}: k={self.clusters}, m={self.clients}, n={self.samples}, {self.hidden} hidden units, "
            f"α={self.byzantine}"
        )
