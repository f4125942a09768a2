"""Samples of any shape, such as images: one .npz file per client, with an array of samples and one of targets."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from coterie._src.data.clients import Clients

MAX_BYTES = 1 << 36
"""The largest array that is read; the header of a damaged file may announce any size."""


def read_samples(
    path: str | Path, samples: str, target: str, shape: tuple[int, ...], dtype: DTypeLike, target_dtype: DTypeLike
) -> Clients:
    """Clients from an .npz file, or from a folder with one for each client, in the order of their names.

    Parameters
    ----------
    path
        The file or the folder.
    samples, target
        The names of the arrays: (n, *shape), with or without axes of length 1, or (n, columns); and (n,).
    shape
        The shape of one sample.
    dtype, target_dtype
        Of the samples and of the targets. Samples of bytes are divided by 255. Whole numbers as targets are classes.

    Returns
    -------
    Clients
        With flat samples. A ValueError names the file and what is wrong with it.
    """
    place = Path(path)
    files = sorted(place.glob("*.npz")) if place.is_dir() else [place]
    if not files:
        raise ValueError(f"{place}: has no .npz files")
    read = [_read(file, samples, target, shape, np.dtype(dtype), np.dtype(target_dtype)) for file in files]
    features, targets = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
    sizes = np.array([len(found) for _, found in read])
    return Clients(features, targets, sizes, tuple(file.stem for file in files))


def _read(
    file: Path, samples: str, target: str, shape: tuple[int, ...], dtype: np.dtype[Any], target_dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a zip archive of arrays")
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.file_size > MAX_BYTES:
                    raise ValueError(f"{member.filename} has more than {MAX_BYTES} bytes")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            missing = [name for name in (samples, target) if name not in arrays.files]
            if missing:
                raise ValueError(f"it has no array {missing[0]!r}")
            x, y = arrays[samples], arrays[target]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{file}: cannot be read as .npz ({error})") from None
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        raise ValueError(f"{file}: {samples} and {target} must hold numbers")
    columns = math.prod(shape)
    fits = x.ndim > 1 and _without_ones(x.shape[1:]) in (_without_ones(shape), _without_ones((columns,)))
    if not fits or y.ndim != 1 or len(x) != len(y) or not len(y):
        raise ValueError(
            f"{file}: {samples} must have the shape (n, {', '.join(map(str, shape))}) and {target} (n,), "
            f"got {x.shape} and {y.shape}"
        )
    features = x.reshape(len(x), columns).astype(dtype)
    if x.dtype == np.uint8:
        features /= 255
    if not np.isfinite(features).all() or not np.isfinite(y.astype(np.float64)).all():
        raise ValueError(f"{file}: has a value that is not a finite number")
    if target_dtype.kind == "i" and ((y < 0) | (y != np.floor(y)) | (y > 2**31)).any():
        raise ValueError(f"{file}: {target} must hold classes 0, 1, …")
    return features, y.astype(target_dtype)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)
