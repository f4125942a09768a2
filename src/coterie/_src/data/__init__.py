"""Who the clients are, and the ground truth that travels beside their data."""

from coterie._src.data.clients import Block, Clients, Federation, HeldOut, Truth, hold_out
from coterie._src.data.folder import feature_names, read_folder, rescaled
from coterie._src.data.images import (
    held_out,
    image_federation,
    permuted_labels,
    read_digits,
    read_idx,
    read_images,
    rotated,
    split_dirichlet,
    split_iid,
)
from coterie._src.data.synthetic import gaussian_means, mixed_regression, poisson_means
from coterie._src.data.tabular import tabular

__all__ = [
    "Block",
    "Clients",
    "Federation",
    "HeldOut",
    "Truth",
    "feature_names",
    "gaussian_means",
    "held_out",
    "hold_out",
    "image_federation",
    "mixed_regression",
    "permuted_labels",
    "poisson_means",
    "read_digits",
    "read_folder",
    "read_idx",
    "read_images",
    "rescaled",
    "rotated",
    "split_dirichlet",
    "split_iid",
    "tabular",
]
