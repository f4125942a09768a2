"""One robust aggregate of updates in files that need not fit into memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.aggregators import Aggregator
from coterie._src.aggregators.columns import ReadShards, ranges, read_width
from coterie._src.arrays import Ints
from coterie._src.intake import Verdict
from coterie._src.sharding.files import (
    SUFFIXES,
    FileRows,
    Layout,
    Malformed,
    Refused,
    UpdateFile,
    check_layout,
    columns_of,
    describe,
    write_update,
)


@dataclass(frozen=True)
class FileAggregates:
    """What `aggregate_files` returns.

    Parameters
    ----------
    updates : per cluster the aggregate in the form of the files: an array where these are .npy, arrays by name where
        they are .safetensors; None for a cluster without an accepted file.
    verdicts : by name of the file, the verdict on it.
    faults : by name of a file that was refused, one line that says why.
    counts : per cluster the number of accepted files.
    paths : per cluster the file that was written, or None.
    """

    updates: tuple[NDArray[Any] | dict[str, NDArray[Any]] | None, ...] = field(repr=False)
    verdicts: dict[str, Verdict]
    faults: dict[str, str]
    counts: tuple[int, ...]
    paths: tuple[Path | None, ...]


def aggregate_files(
    updates: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    rule: Aggregator,
    *,
    labels: Mapping[str, int] | None = None,
    clusters: int = 1,
    like: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
) -> FileAggregates:
    """Aggregate updates in files, one per client, that need not fit into memory.

    A rule by coordinates reads every file once, Krum, clipping, the geometric median and the spectral filter twice, in
    parts that take less than 1 GiB of memory together, whatever the length of the updates. The result is that of the
    rule on the array of all updates, up to the rounding of sums over columns. Updates of float16 or bfloat16 are
    aggregated in float32.

    A file is untrusted: what is no update, has another layout than expected, or holds a number that is not finite is
    refused, and the others are aggregated without it. A file that is refused for its numbers costs one more reading of
    all of them, however many there are.

    Parameters
    ----------
    updates : a folder, of which all .npy and .safetensors files are read; or these files. Names of files must differ.
    labels : by name of the file, its cluster in [0, clusters); a file without a valid one is refused. None: all are of
        one cluster.
    like : a file with the expected layout, such as the model that the clients were sent. None: that of most files.
    out : a folder, into which the aggregate of each cluster j is written as `cluster-j` with the files' suffix.

    Examples
    --------
    >>> import tempfile
    >>> from coterie import Median
    >>> folder = Path(tempfile.mkdtemp())
    >>> for i, value in enumerate([1.0, 2.0, np.nan, 4.0, 99.0]):
    ...     np.save(folder / f"client-{i}.npy", np.full(3, value, dtype=np.float32))
    >>> found = aggregate_files(folder, Median())
    >>> found.updates[0], found.faults
    (array([3., 3., 3.], dtype=float32), {'client-2.npy': 'holds a number that is not finite'})
    """
    if not rule.takes_shards:
        raise ValueError(f"rule: {rule} does not aggregate by columns; use one of coterie's")
    if clusters < 1:
        raise ValueError(f"clusters must be at least 1, got {clusters}")
    paths = _paths(updates)
    described: dict[str, UpdateFile | Malformed] = {path.name: _describe(path) for path in paths}
    layout = _expected(described.values(), like)
    suffix = ".npy" if not layout[0].name else ".safetensors"
    faults = {name: file for name, file in described.items() if isinstance(file, Malformed)}
    files = [file for file in described.values() if isinstance(file, UpdateFile)]
    for file in files:
        try:
            check_layout(file.layout, layout)
            _check_label(file.path.name, labels, clusters)
        except Malformed as fault:
            faults[file.path.name] = fault
    files = [file for file in files if file.path.name not in faults]
    numbers = np.array([0 if labels is None else labels[file.path.name] for file in files], dtype=np.int64)
    found: list[tuple[NDArray[Any] | dict[str, NDArray[Any]] | None, int, Path | None]] = []
    for j in range(clusters):
        one, count = _aggregate(files, np.flatnonzero(numbers == j), rule, layout, faults)
        path = None if out is None or one is None else Path(out) / f"cluster-{j}{suffix}"
        if path is not None and one is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_update(path, layout, one)
        found.append((None if one is None else _in_form(one, layout), count, path))
    verdicts = {name: faults[name].verdict if name in faults else Verdict.ACCEPTED for name in described}
    by_cluster: Any = zip(*found, strict=True)
    arrays, counts, written = by_cluster
    return FileAggregates(arrays, verdicts, {name: fault.reason for name, fault in faults.items()}, counts, written)


def _paths(updates: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files in the order of their names."""
    if isinstance(updates, str | os.PathLike):
        folder = Path(updates)
        if not folder.is_dir():
            raise ValueError(f"updates: {folder} is not a folder")
        paths = [path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith(".")]
        if not paths:
            raise ValueError(f"updates: no {' or '.join(SUFFIXES)} file in {folder}")
    else:
        paths = [Path(path) for path in updates]
        if wrong := [path.name for path in paths if path.suffix not in SUFFIXES]:
            raise ValueError(f"updates: {wrong[0]} is neither {' nor '.join(SUFFIXES)}")
        if not paths or len({path.name for path in paths}) < len(paths):
            raise ValueError("updates must be at least one file, and names of files must differ")
    return sorted(paths, key=lambda path: path.name)


def _describe(path: Path) -> UpdateFile | Malformed:
    try:
        return describe(path)
    except Malformed as fault:
        return fault


def _expected(described: Collection[UpdateFile | Malformed], like: str | os.PathLike[str] | None) -> Layout:
    """The layout of a file, or that of most updates."""
    if like is not None:
        model = _describe(Path(like))
        if isinstance(model, Malformed):
            raise ValueError(f"like: {Path(like).name} {model.reason}")
        return model.layout
    layouts = Counter(file.layout for file in described if isinstance(file, UpdateFile) and columns_of(file.layout))
    if not layouts:
        fault = next((file for file in described if isinstance(file, Malformed)), None)
        raise ValueError(f"updates: no file holds an update{'' if fault is None else f'; the first {fault.reason}'}")
    return layouts.most_common(1)[0][0]


def _check_label(name: str, labels: Mapping[str, int] | None, clusters: int) -> None:
    label = 0 if labels is None else labels.get(name)
    if not isinstance(label, int | np.integer) or isinstance(label, bool) or not 0 <= label < clusters:
        raise Malformed(Verdict.WRONG_LABEL, f"has label {label!r:.20}, not a whole number in [0, {clusters})")


def _aggregate(
    files: Sequence[UpdateFile], rows: Ints, rule: Aggregator, layout: Layout, faults: dict[str, Malformed]
) -> tuple[NDArray[Any] | None, int]:
    """The aggregate of some files and their number, without those that turn out to be malformed; these go to faults."""
    source, columns = FileRows(files, layout), columns_of(layout)
    while len(rows):
        width = read_width(len(rows))
        try:
            return rule(ReadShards(source, rows, columns, source.dtype, width)), len(rows)
        except Refused as refused:
            rows, found = _well_formed(source, rows, refused.faults, columns, width)
            faults.update({files[row].path.name: fault for row, fault in found.items()})
    return None, 0


def _well_formed(
    source: FileRows, rows: Ints, faults: Mapping[int, Malformed], columns: int, width: int
) -> tuple[Ints, dict[int, Malformed]]:
    """Read everything once: the rows that are well-formed to their end, and the faults of the others."""
    found = dict(faults)
    for start, stop in ranges(columns, width):
        rows = rows[~np.isin(rows, list(found))]
        try:
            source(rows, start, stop)
        except Refused as refused:
            found |= refused.faults
    return rows[~np.isin(rows, list(found))], found


def _in_form(numbers: NDArray[Any], layout: Layout) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """The numbers in the shapes of the layout, without a copy."""
    ends = np.cumsum([field.size for field in layout])
    arrays = {
        field.name: numbers[end - field.size : end].reshape(field.shape)
        for field, end in zip(layout, ends.tolist(), strict=True)
    }
    return arrays[""] if list(arrays) == [""] else arrays
