"""The starts by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie._src.data import Truth
from coterie._src.experiments.starts import STARTS, asks, file_of, first_centres, is_file

TRUTH = Truth(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([0, 1]))


@pytest.mark.parametrize("name", ["bernoulli", "gaussian", "warm"])
def test_named_starts_are_of_the_right_shape_and_repeatable(name: str) -> None:
    first, again, other = (
        first_centres(name, 2, 2, TRUTH, 0.1, "float32", np.random.default_rng(seed)) for seed in (0, 0, 9)
    )
    assert first.shape == (2, 2)
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert name == "bernoulli" or not np.array_equal(first, other)
    if name == "warm":
        np.testing.assert_allclose(np.linalg.norm(first - TRUTH.centres, axis=1), 0.5, rtol=1e-5)


def test_which_starts_ask_the_clients() -> None:
    assert [start.name for start in STARTS if start.asks] == ["spectral", "balls", "erm"]
    assert STARTS["erm"].question == "minimiser"
    assert asks("spectral")
    assert not asks("bernoulli")
    assert not asks("my.npy")
    assert is_file("my.npy")
    assert not is_file("warm")
    assert file_of("a/run.safetensors#ifca") == "a/run.safetensors"
    assert file_of("a/centres.npy") == "a/centres.npy"


def test_a_file_is_a_start_and_its_mistakes_name_the_key(tmp_path: Path) -> None:
    centres, file = np.array([[1.0, 2.0], [3.0, 4.0]]), tmp_path / "centres.npy"
    np.save(file, centres)
    assert np.array_equal(first_centres(str(file), 2, 2, None, 0.0, "float64", np.random.default_rng(0)), centres)
    with pytest.raises(ValueError, match=r"^algorithm\.init: .*must hold 3 x 2 finite numbers"):
        first_centres(str(file), 3, 2, None, 0.0, "float64", np.random.default_rng(0))
    np.save(file, 1e300 * centres)
    with pytest.raises(ValueError, match=r"^algorithm\.init: .*too large for float32"):
        first_centres(str(file), 2, 2, None, 0.0, "float32", np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^algorithm\.init: warm needs the true centres"):
        first_centres("warm", 2, 2, None, 0.0, "float32", np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^algorithm\.init: bernouli: .*or use spectral, balls"):
        first_centres("bernouli", 2, 2, None, 0.0, "float32", np.random.default_rng(0))
