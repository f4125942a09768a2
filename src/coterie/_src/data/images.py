"""Federations of image data: IDX files, clusters by rotation or by permuted classes, and splits over clients."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import DTypeLike, NDArray

from coterie._src.arrays import Ints
from coterie._src.data.clients import Clients, Federation, Truth
from coterie._src.data.synthetic import draw_labels

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
MAX_BYTES = 1 << 32
"""The largest IDX file that is read; the header of a damaged file may announce any size."""

Images = NDArray[Any]
"""(N, height, width), or any (N, …)."""


class Labelled(NamedTuple):
    """Images and the class of each."""

    images: Images
    labels: Ints


def read_idx(path: str | Path) -> NDArray[Any]:
    """The array of an IDX file, gzipped or not (the format of MNIST).

    A file with a wrong magic number, too few or too many bytes raises a ValueError that names it.
    """
    file = Path(path)
    opener: Any = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES or not magic[3]:
                raise ValueError(f"{file}: is not an IDX file (its first bytes are {magic.hex(' ') or 'missing'})")
            header = stream.read(4 * magic[3])
            if len(header) < 4 * magic[3]:
                raise ValueError(f"{file}: ends within its header")
            shape = struct.unpack(f">{magic[3]}I", header)
            dtype = np.dtype(IDX_TYPES[magic[2]])
            size = math.prod(shape) * dtype.itemsize
            if size > MAX_BYTES:
                raise ValueError(f"{file}: promises {size} bytes, more than the {MAX_BYTES} that are read")
            content = stream.read(size + 1)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{file}: is cut off or damaged ({error})") from None
    if len(content) != size:
        length = "more" if len(content) > size else f"{len(content)}"
        raise ValueError(f"{file}: must hold {size} bytes of data for shape {shape}, has {length}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_images(folder: str | Path, part: str = "train") -> Labelled:
    """Images and labels `PART-images-idx3-ubyte[.gz]` and `PART-labels-idx1-ubyte[.gz]` of a folder; part: train, t10k.

    Pixels are not rescaled: 0 to 255.
    """
    path = Path(folder)
    found = []
    for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        files = [file for file in (path / name, path / f"{name}.gz") if file.is_file()]
        if not files:
            raise ValueError(f"{path / name}: no such file (nor with .gz)")
        found.append((files[0], read_idx(files[0])))
    (first, images), (second, labels) = found
    if images.ndim < 2 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{second}: must hold one label for each image of {first.name}; shapes are {labels.shape}, {images.shape}"
        )
    return Labelled(images, labels.astype(np.int64))


def rotated(images: Images, labels: Ints, clusters: int = 4) -> list[Labelled]:
    """One copy of all images per cluster, rotated by j·360°/clusters, so that a 6 becomes a 9 in another cluster.

    Multiples of 90° are exact; other angles are interpolated. Reference: Ghosh et al., An efficient framework for
    clustered federated learning, 2020, Section 6.

    >>> [copy.images[0].tolist() for copy in rotated(np.array([[[1, 2], [3, 4]]]), np.array([0]), clusters=2)]
    [[[1, 2], [3, 4]], [[4, 3], [2, 1]]]
    """
    if images.ndim != 3:
        raise ValueError(f"images must have three axes (N, height, width), got shape {images.shape}")
    _check_clusters(clusters)
    copies = []
    for j in range(clusters):
        if 4 * j % clusters == 0:
            rotated_images = np.rot90(images, 4 * j // clusters, axes=(1, 2))
        else:
            from scipy.ndimage import rotate

            rotated_images = rotate(images, 360.0 * j / clusters, axes=(2, 1), reshape=False, order=1)
        copies.append(Labelled(np.ascontiguousarray(rotated_images), labels))
    return copies


def permuted_labels(images: Images, labels: Ints, clusters: int, rng: Generator) -> list[Labelled]:
    """The same images for every cluster with randomly permuted classes; the first cluster keeps the classes."""
    _check_clusters(clusters)
    classes = int(labels.max()) + 1
    names = [np.arange(classes), *(rng.permutation(classes) for _ in range(clusters - 1))]
    return [Labelled(images, name[labels]) for name in names]


def _check_clusters(clusters: int) -> None:
    if clusters < 1:
        raise ValueError(f"clusters must be at least 1, got {clusters}")


def split_iid(count: int, clients: int, rng: Generator, samples: int | None = None) -> list[Ints]:
    """The sample indices of every client, drawn at random: all samples as evenly as possible, or `samples` each."""
    needed = clients * (samples or 1)
    if clients < 1 or needed > count:
        raise ValueError(f"samples: {count} are too few for {clients} clients with {samples or 1} each")
    order = rng.permutation(count)
    if samples is not None:
        return list(order[:needed].reshape(clients, samples))
    return np.array_split(order, clients)


def split_dirichlet(labels: Ints, clients: int, concentration: float, rng: Generator) -> list[Ints]:
    """The sample indices of every client; the samples of each class are split by Dirichlet(concentration) shares.

    With a small concentration a client has few classes; with a large one the split tends to `split_iid`. A client
    without samples gets one from the largest client.
    Reference: Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019.
    """
    if not concentration > 0:
        raise ValueError(f"concentration must be positive, got {concentration}")
    if not 1 <= clients <= len(labels):
        raise ValueError(f"clients must be from 1 to the number of samples ({len(labels)}), got {clients}")
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    whole = [np.concatenate(part) for part in parts]
    for empty in [i for i, part in enumerate(whole) if len(part) == 0]:
        largest = max(range(clients), key=lambda i: len(whole[i]))
        whole[empty], whole[largest] = whole[largest][-1:], whole[largest][:-1]
    return whole


def image_federation(
    rng: Generator,
    train: Sequence[Labelled],
    test: Sequence[Labelled],
    *,
    clients: int,
    byzantine: float = 0.0,
    samples: int | None = None,
    concentration: float | None = None,
    dtype: DTypeLike = np.float32,
) -> Federation:
    """A federation of images: the clients of cluster j hold disjoint samples of train[j].

    The Byzantine clients come last, with data of the clusters in turn. Pixels become features in [0, 1], targets are
    the classes, and `truth.test` holds test[j] for cluster j.

    samples: per client; None: all, split as evenly as possible. concentration: a Dirichlet split of all samples
    instead.
    """
    labels = draw_labels(clients, len(train), byzantine, None)
    byzantine_count = int((labels < 0).sum())
    sources = np.concatenate([labels[: clients - byzantine_count], np.arange(byzantine_count) % len(train)])
    parts: list[Ints] = [np.empty(0, np.int64)] * clients
    for j, variant in enumerate(train):
        members = np.flatnonzero(sources == j)
        if concentration is None:
            split = split_iid(len(variant.labels), len(members), rng, samples)
        else:
            split = split_dirichlet(variant.labels, len(members), concentration, rng)
        for client, part in zip(members.tolist(), split, strict=True):
            parts[client] = part
    largest = max(1.0, float(max(variant.images.max() for variant in train)))

    def flat(pieces: list[Labelled]) -> Clients:
        images = np.concatenate([piece.images.reshape(len(piece.images), -1) for piece in pieces]).astype(dtype)
        images /= largest
        sizes = np.array([len(piece.labels) for piece in pieces])
        return Clients(images, np.concatenate([piece.labels for piece in pieces]), sizes)

    own = [
        Labelled(train[j].images[part], train[j].labels[part]) for j, part in zip(sources.tolist(), parts, strict=True)
    ]
    return Federation(flat(own), Truth(np.zeros((len(train), 0)), labels, flat(list(test))))


def read_digits() -> Labelled:
    """The 1797 handwritten digits of 8 × 8 pixels that come with scikit-learn (`coterie[torch]`), pixels from 0 to 16.

    Reference: Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI machine learning repository, 1998.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("problem.path: the bundled digits need scikit-learn (pip install 'coterie[torch]')") from None
    digits = load_digits()
    return Labelled(digits.images, digits.target.astype(np.int64))


def held_out(data: Labelled, share: float, rng: Generator) -> tuple[Labelled, Labelled]:
    """The training samples and the test samples, a random `share` of all."""
    order = rng.permutation(len(data.labels))
    cut = round(share * len(order))
    test, train = order[:cut], order[cut:]
    return Labelled(data.images[train], data.labels[train]), Labelled(data.images[test], data.labels[test])
