"""The data of the clients, how it is read and drawn, and the ground truth beside it."""

from coterie._src.data.clients import Block, Clients, Federation, HeldOut, Truth, hold_out
from coterie._src.data.encoding import Encoding, Number
from coterie._src.data.folder import (
    OwnData,
    encode_tables,
    encoded,
    feature_names,
    read_folder,
    read_tables,
    rescaled,
    wanted_columns,
)
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
from coterie._src.data.learn_encoding import learn_encoding
from coterie._src.data.raw_table import RawTable
from coterie._src.data.synthetic import gaussian_means, mixed_regression, poisson_means
from coterie._src.data.tables import client_tables, frame_table, is_frame, stamp, without_names
from coterie._src.data.tabular import tabular

__all__ = [
    "Block",
    "Clients",
    "Encoding",
    "Federation",
    "HeldOut",
    "Number",
    "OwnData",
    "RawTable",
    "Truth",
    "client_tables",
    "encode_tables",
    "encoded",
    "feature_names",
    "frame_table",
    "gaussian_means",
    "held_out",
    "hold_out",
    "image_federation",
    "is_frame",
    "learn_encoding",
    "mixed_regression",
    "permuted_labels",
    "poisson_means",
    "read_digits",
    "read_folder",
    "read_idx",
    "read_images",
    "read_tables",
    "rescaled",
    "rotated",
    "split_dirichlet",
    "split_iid",
    "stamp",
    "tabular",
    "wanted_columns",
    "without_names",
]
