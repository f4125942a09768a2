"""Synthetic problems: the paper's mixture of regressions and its mean-estimation examples."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from numpy.random import Generator
from pydantic import Field, model_validator

from coterie._src.data import Clients, Federation, gaussian_means, mixed_regression, poisson_means
from coterie._src.data.synthetic import Samples, draw_labels
from coterie._src.experiments.problems.base import KIND, Problem
from coterie._src.tasks import Task, linear_regression, mean_estimation

RANGE = r"^\d+\.\.\d+$"


class Synthetic(Problem):
    """The base class of problems with synthetic data."""

    clients: int = Field(200, ge=1, description="m, the number of clients, Byzantine ones included")
    samples: Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=RANGE)] | list[Annotated[int, Field(ge=1)]] = (
        Field(100, description='n_i: one number, a range "20..500" to draw from, or a list with one per client')
    )
    dim: int = Field(100, ge=1, description="d, the dimension of a centre")
    byzantine: float = Field(0.05, ge=0, lt=1, description="alpha, the fraction of Byzantine clients: round(alpha*m)")
    shares: Literal["equal"] | list[Annotated[float, Field(gt=0)]] = Field(
        "equal", description='share of the honest clients per cluster: "equal", or k numbers that add up to 1'
    )

    @model_validator(mode="after")
    def _consistent(self) -> Synthetic:
        draw_labels(self.clients, self.clusters, self.byzantine, self.share_list)
        if isinstance(self.samples, list) and len(self.samples) != self.clients:
            raise ValueError(f"samples must hold one number per client ({self.clients}), got {len(self.samples)}")
        if isinstance(self.samples, str) and not (len(self.sample_counts) and self.sample_counts[0]):
            raise ValueError(f'samples must be a range "low..high" with 1 <= low <= high, got "{self.samples}"')
        return self

    @property
    def share_list(self) -> list[float] | None:
        """`shares` in the form of the generators."""
        return None if self.shares == "equal" else self.shares

    @property
    def sample_counts(self) -> range | list[int]:
        """All values that n_i may take."""
        if isinstance(self.samples, str):
            low, high = (int(end) for end in self.samples.split(".."))
            return range(low, high + 1)
        return [self.samples] if isinstance(self.samples, int) else self.samples

    @property
    def sample_rule(self) -> Samples:
        """`samples` in the form of the generators."""
        return self.sample_counts if isinstance(self.samples, str) else self.samples

    def title(self) -> str:
        return f"{self.kind}: k={self.clusters}, m={self.clients}, n={self.samples}, d={self.dim}, α={self.byzantine}"

    def _drawn(self, generate: partial[Federation]) -> Federation:
        return generate(
            clients=self.clients,
            clusters=self.clusters,
            samples=self.sample_rule,
            dim=self.dim,
            byzantine=self.byzantine,
            shares=self.share_list,
            dtype=self.dtype,
        )


class MixedRegression(Synthetic):
    """The paper's experiments: y = ⟨x, θ*_j⟩ + ε with isotropic features."""

    kind: Literal["mixed-regression"] = Field("mixed-regression", description=KIND)
    noise_variance: float = Field(0.2, ge=0, description="sigma^2, the variance of the additive noise")

    def draw(self, rng: Generator) -> Federation:
        return self._drawn(partial(mixed_regression, rng, noise_variance=self.noise_variance))

    def build_task(self, clients: Clients) -> Task:
        return linear_regression(clients)

    def loss_of(self) -> str | None:
        return "linear"


class GaussianMeans(Synthetic):
    """Mean estimation (Section 3): samples around the centre of their cluster."""

    kind: Literal["gaussian-means"] = Field("gaussian-means", description=KIND)
    noise_variance: float = Field(0.2, ge=0, description="sigma^2 in every coordinate")

    def draw(self, rng: Generator) -> Federation:
        return self._drawn(partial(gaussian_means, rng, noise_variance=self.noise_variance))

    def build_task(self, clients: Clients) -> Task:
        return mean_estimation(clients)


class PoissonMeans(Synthetic):
    """Means of counts (Section 5.3), whose tails are not sub-Gaussian."""

    kind: Literal["poisson-means"] = Field("poisson-means", description=KIND)

    def draw(self, rng: Generator) -> Federation:
        return self._drawn(partial(poisson_means, rng))

    def build_task(self, clients: Clients) -> Task:
        return mean_estimation(clients)
