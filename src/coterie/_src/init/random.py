"""First centres without questions to the clients: random, near the true centres, or from a file."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.random import Generator
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coterie._src.arrays import Floats, as_numpy
from coterie._src.data import Truth
from coterie._src.data.synthetic import unit_bernoulli


def bernoulli(clusters: int, dim: int, rng: Generator) -> Floats:
    """(k, d) random Bernoulli(½) vectors of norm 1, as in the paper's reference code."""
    return unit_bernoulli(clusters, dim, rng)


def gaussian(clusters: int, dim: int, rng: Generator) -> Floats:
    """(k, d) with coordinates N(0, 1/d), so about norm 1."""
    return np.asarray(rng.standard_normal((clusters, dim)) / np.sqrt(dim))


def warm(truth: Truth, closeness: float, rng: Generator) -> Floats:
    """(k, d): each true centre moved by closeness·Δ in a random direction.

    The theorems assume ‖θ_j⁽⁰⁾ − θ*_j‖ ≤ ¼ √(λ_F/L_F) Δ, with Δ the smallest distance between two true centres.
    With one cluster Δ is 1.
    """
    centres = as_numpy(truth.centres).astype(np.float64)
    gap = truth.separation if np.isfinite(truth.separation) else 1.0
    directions = rng.standard_normal(centres.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    start: Floats = centres + closeness * gap * directions
    return start


def from_file(path: str | Path, clusters: int, dim: int) -> Floats:
    """(k, d) centres from a `.safetensors`, `.npy` or `.csv` file.

    From a `.safetensors` file the tensor `centres` is read, or NAME if the path ends in #NAME.
    """
    name, _, wanted = str(path).rpartition("#") if ".safetensors#" in str(path) else (str(path), "", "centres")
    file = Path(name)
    if not file.is_file():
        raise ValueError(f"{file}: no such file of centres")
    try:
        if file.suffix == ".safetensors":
            tensors = load_file(file)
            if wanted not in tensors and not (wanted == "centres" and len(tensors) == 1):
                raise ValueError(f"choose a tensor with {file.name}#NAME; it has {', '.join(sorted(tensors))}")
            centres = tensors[wanted] if wanted in tensors else next(iter(tensors.values()))
        elif file.suffix == ".npy":
            centres = np.load(file, allow_pickle=False)
        elif file.suffix == ".csv":
            with warnings.catch_warnings(action="error"):  # NumPy only warns about an empty file
                centres = np.loadtxt(file, delimiter=",", ndmin=2)
        else:
            raise ValueError("its name must end in .safetensors, .npy or .csv")
    except (ValueError, TypeError, UserWarning, OSError, EOFError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read as centres ({error})") from None
    if centres.dtype.kind not in "fiu" or centres.shape != (clusters, dim) or not np.isfinite(centres).all():
        raise ValueError(f"{file}: must hold {clusters} x {dim} finite numbers, has shape {centres.shape}")
    return np.asarray(centres, dtype=np.float64)
