"""Image data: damaged files are named, rotations are rotations, splits lose nothing."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from coterie._src.data.images import (
    Labelled,
    held_out,
    image_federation,
    permuted_labels,
    read_idx,
    read_images,
    rotated,
    split_dirichlet,
    split_iid,
)


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    with gzip.open(tmp_path / "train-labels-idx1-ubyte.gz", "wb") as stream:
        stream.write(idx(np.array([3, 1, 4, 1, 5], dtype=np.uint8)))
    return tmp_path


def test_images_and_labels_plain_and_gzipped(folder: Path) -> None:
    images, labels = read_images(folder)
    assert images.shape == (5, 4, 3)
    assert images[1, 0, 0] == 12
    assert labels.tolist() == [3, 1, 4, 1, 5]
    big = np.array([[1.5, -2.0]], dtype=">f4")
    (folder / "floats").write_bytes(idx(big, 13))
    assert read_idx(folder / "floats").tolist() == [[1.5, -2.0]]
    assert read_idx(folder / "floats").dtype == np.float32


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw: b"PK\x03\x04" + raw[4:], "is not an IDX file"),
        (lambda raw: b"", "first bytes are missing"),
        (lambda raw: raw[:6], "ends within its header"),
        (lambda raw: raw[:-1], "must hold 60 bytes"),
        (lambda raw: raw + b"x", "has more"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "promises"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, spoil: Callable[[bytes], bytes], said: str) -> None:
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"train-images-idx3-ubyte: .*{said}"):
        read_images(folder)


def test_a_cut_off_archive_and_files_that_do_not_belong_together(folder: Path) -> None:
    packed = folder / "train-labels-idx1-ubyte.gz"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"labels-idx1-ubyte.gz: is cut off or damaged"):
        read_images(folder)
    packed.write_bytes(b"not gzip")
    with pytest.raises(ValueError, match=r"labels-idx1-ubyte.gz: cannot be read"):
        read_images(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(ValueError, match="must hold one label for each image"):
        read_images(folder)
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte: no such file"):
        read_images(folder, "t10k")


def test_rotations() -> None:
    digits = load_digits()
    copies = rotated(digits.images, digits.target, 4)
    assert len(copies) == 4
    for turns, copy in enumerate(copies):
        assert np.array_equal(copy.images[7], np.rot90(digits.images[7], turns))
        assert np.array_equal(copy.labels, digits.target)
    third = rotated(digits.images, digits.target, 3)[1]
    assert third.images.shape == digits.images.shape
    # an eighth turn of an image that looks the same from everywhere changes nothing inside it
    round_one = np.add.outer((np.arange(9) - 4.0) ** 2, (np.arange(9) - 4.0) ** 2)[None]
    turned = rotated(round_one, np.zeros(1, np.int64), 8)[1].images[0]
    np.testing.assert_allclose(turned[3:6, 3:6], round_one[0, 3:6, 3:6], atol=1.0)
    with pytest.raises(ValueError, match="three axes"):
        rotated(np.zeros((3, 4)), np.zeros(3, np.int64))


def test_renamed_classes() -> None:
    labels = np.array([0, 1, 2, 2])
    copies = permuted_labels(np.zeros((4, 2, 2)), labels, 3, np.random.default_rng(0))
    assert np.array_equal(copies[0].labels, labels)
    for copy in copies:
        assert sorted(set(copy.labels)) == [0, 1, 2]
        assert copy.labels[2] == copy.labels[3]


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 99))
def test_splits_lose_nothing(clients: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = clients + extra
    even = split_iid(count, clients, rng)
    assert np.array_equal(np.sort(np.concatenate(even)), np.arange(count))
    assert max(map(len, even)) - min(map(len, even)) <= 1
    labels = rng.integers(0, 5, size=count)
    uneven = split_dirichlet(labels, clients, 0.3, rng)
    assert np.array_equal(np.sort(np.concatenate(uneven)), np.arange(count))
    assert min(map(len, uneven)) >= 1


def test_the_concentration_says_how_alike_the_clients_are() -> None:
    labels = np.arange(10_000) % 10
    few, many = (split_dirichlet(labels, 20, alpha, np.random.default_rng(0)) for alpha in (0.05, 1000.0))
    largest = [np.mean([np.bincount(labels[part]).max() / len(part) for part in split]) for split in (few, many)]
    assert largest[0] > 0.5
    assert largest[1] < 0.15


def test_a_federation_of_images() -> None:
    digits = load_digits()
    labels = digits.target.astype(np.int64)
    copies = rotated(digits.images, labels, 2)
    tests = [Labelled(copy.images[:7], copy.labels[:7]) for copy in copies]
    made = image_federation(np.random.default_rng(0), copies, tests, clients=10, byzantine=0.2, samples=20)
    assert made.truth is not None
    assert made.truth.labels.tolist() == [0] * 4 + [1] * 4 + [-1, -1]
    assert made.clients.sizes.tolist() == [20] * 10
    assert made.clients.features.dtype == np.float32
    assert made.clients.features.max() == 1.0
    upright, turned = (
        {image.tobytes() for image in (copy.images.reshape(-1, 64) / 16).astype("f4")} for copy in copies
    )
    for client, home in enumerate(
        [*made.truth.labels[:8], 0, 1]
    ):  # Byzantine clients have data of the clusters in turn
        rows = made.clients.samples(client)[0]
        assert {row.tobytes() for row in rows} <= (turned if home else upright)
    own = np.concatenate([made.clients.samples(client)[0] for client in (0, 1, 2, 3, 8)])
    assert len(np.unique(own, axis=0)) == len(own)  # no image is in two clients
    assert made.truth.test is not None
    assert made.truth.test.sizes.tolist() == [7, 7]
    assert np.array_equal(made.truth.test.samples(1)[0], (copies[1].images[:7].reshape(7, 64) / 16).astype("f4"))
    uneven = image_federation(np.random.default_rng(0), copies, tests, clients=10, concentration=0.5)
    assert uneven.clients.sizes.sum() == 2 * len(labels)
    assert len(set(uneven.clients.sizes.tolist())) > 5


def test_a_part_is_held_out() -> None:
    train, test = held_out(Labelled(np.arange(10.0), np.arange(10)), 0.2, np.random.default_rng(0))
    assert len(test.labels) == 2
    assert sorted([*train.labels, *test.labels]) == list(range(10))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: split_iid(5, 3, np.random.default_rng(0), samples=2), "samples"),
        (lambda: split_dirichlet(np.zeros(3, np.int64), 4, 1.0, np.random.default_rng(0)), "clients"),
        (lambda: split_dirichlet(np.zeros(3, np.int64), 2, 0.0, np.random.default_rng(0)), "concentration"),
        (lambda: rotated(np.zeros((1, 2, 2)), np.zeros(1, np.int64), 0), "clusters"),
    ],
)
def test_settings_out_of_range_are_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()
