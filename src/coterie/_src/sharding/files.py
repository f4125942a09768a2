"""Updates in files, .npy or .safetensors, one per client, of which ranges of columns are read. Files are untrusted.

A row is the flattened array of an .npy file, or the flattened arrays of a .safetensors file in the order of their
names. NumPy has no bfloat16, and the library of safetensors does not tell where in a file an array lies; therefore the
header is read here, and all of it is checked.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import RawIOBase
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Ints
from coterie._src.intake import Verdict

KINDS: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
"""The types of numbers by their safetensors names, as they are stored."""
NAMES = {kind: name for name, kind in KINDS.items() if name != "BF16"}
SUFFIXES = (".npy", ".safetensors")
MAX_HEADER = 1 << 24
"""The longest header, in bytes; a tensor takes about a hundred."""
READ = "cannot be read"


class Malformed(Exception):
    """A file that is no update, with the verdict and one line that says why."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


class Refused(Exception):
    """Rows that turned out to be malformed while they were read: {row: why}."""

    def __init__(self, faults: Mapping[int, Malformed]) -> None:
        super().__init__(f"{len(faults)} rows are malformed")
        self.faults = dict(faults)


class Field(NamedTuple):
    """One array of an update; the name of that in an .npy file is empty."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Layout = tuple[Field, ...]
"""The arrays of an update, in the order of their names."""


class UpdateFile(NamedTuple):
    """A well-formed file: where the numbers of each array begin, in bytes."""

    path: Path
    layout: Layout
    offsets: tuple[int, ...]


def columns_of(layout: Layout) -> int:
    """The numbers of an update."""
    return sum(field.size for field in layout)


def dtype_of(layout: Layout) -> np.dtype[Any]:
    """The type in which updates are aggregated: float64 where an array has it, otherwise float32."""
    return np.dtype(np.float64 if any(field.kind == "F64" for field in layout) else np.float32)


def describe(path: Path) -> UpdateFile:
    """Return what a file holds, by its header, or raise `Malformed`."""
    try:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            return (_describe_npy if path.suffix == ".npy" else _describe_safetensors)(path, file, size)
    except Malformed:
        raise
    except OSError as error:
        raise Malformed(Verdict.WRONG_TYPE, f"{READ}: {error.strerror}") from None
    except (ValueError, RecursionError, SyntaxError, TypeError, KeyError, AttributeError, OverflowError):
        raise Malformed(Verdict.WRONG_TYPE, f"has no valid {path.suffix} header") from None


@contextmanager
def _opened(path: Path) -> Iterator[RawIOBase]:
    """A regular file, without a buffer; anything else, such as a pipe that would block, is an OSError."""
    with open(path, "rb", buffering=0, opener=_opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file")
        yield file


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _describe_npy(path: Path, file: RawIOBase, size: int) -> UpdateFile:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, by_columns, dtype = read(file)
    offset = file.tell()
    if dtype not in NAMES:
        raise Malformed(Verdict.WRONG_TYPE, f"holds {dtype}, not little-endian floating-point numbers")
    if by_columns and len(shape) > 1:
        raise Malformed(Verdict.WRONG_TYPE, "is in Fortran's order")
    field = Field("", tuple(shape), NAMES[dtype])
    _check_length(size - offset, field.size * dtype.itemsize)
    return UpdateFile(path, (field,), (offset,))


def _describe_safetensors(path: Path, file: RawIOBase, size: int) -> UpdateFile:
    length = int.from_bytes(file.read(8) or b"", "little")
    if not 2 <= length <= min(size - 8, MAX_HEADER):
        raise ValueError
    header = json.loads((file.read(length) or b"").decode())
    header.pop("__metadata__", None)
    fields, offsets, ends = [], [], [0]
    for name, entry in sorted(header.items()):
        kind, shape = entry["dtype"], tuple(entry["shape"])
        if kind not in KINDS:
            raise Malformed(Verdict.WRONG_TYPE, f"{name!r:.60} holds {kind!r:.20}, not floating-point numbers")
        begin, end = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError
        fields.append(Field(name, shape, kind))
        offsets.append(begin)
        ends.append(end)
        if end - begin != fields[-1].size * KINDS[kind].itemsize:
            raise ValueError
    if sorted(offsets) != sorted(ends)[:-1]:  # arrays overlap, or have gaps between them
        raise ValueError
    _check_length(size - 8 - length, max(ends))
    return UpdateFile(path, tuple(fields), tuple(8 + length + offset for offset in offsets))


def _check_length(found: int, expected: int) -> None:
    if found != expected:
        raise Malformed(Verdict.WRONG_SHAPE, f"has {found} bytes of numbers where its header says {expected}")


def check_layout(found: Layout, expected: Layout) -> None:
    """Raise `Malformed` with what differs first."""
    if [field.name for field in found] != [field.name for field in expected]:
        raise Malformed(Verdict.WRONG_SHAPE, "has other arrays than the others")
    for one, other in zip(found, expected, strict=True):
        place = f"{one.name!r:.60} has" if one.name else "has"
        if one.kind != other.kind:
            raise Malformed(Verdict.WRONG_TYPE, f"{place} {one.kind}, expected {other.kind}")
        if one.shape != other.shape:
            raise Malformed(Verdict.WRONG_SHAPE, f"{place} shape {one.shape}, expected {other.shape}")


class FileRows:
    """The rows of files of one layout; called with rows and a range of columns it returns their numbers.

    The numbers are float32 or float64, in memory of the calling thread that its next call uses again. A row that cannot
    be read any more, or is not finite, raises `Refused`.
    """

    def __init__(self, files: Sequence[UpdateFile], layout: Layout) -> None:
        self.files, self.layout, self.dtype = files, layout, dtype_of(layout)
        self.ends = list(accumulate(field.size for field in layout))
        self._memory = threading.local()

    def __call__(self, rows: Ints, start: int, stop: int) -> NDArray[Any]:
        block, faults = self._block(len(rows), stop - start), {}
        for i, row in enumerate(rows.tolist()):
            try:
                self._read(self.files[row], start, stop, block[i])
            except OSError as error:
                faults[row] = Malformed(Verdict.WRONG_TYPE, f"{READ}: {error.strerror}")
            except Malformed as fault:
                faults[row] = fault
        if faults:
            raise Refused(faults)
        return block

    def _block(self, rows: int, columns: int) -> NDArray[Any]:
        memory = getattr(self._memory, "numbers", None)
        if memory is None or memory.size < rows * columns:
            memory = self._memory.numbers = np.empty(rows * columns, dtype=self.dtype)
        block: NDArray[Any] = memory[: rows * columns].reshape(rows, columns)
        return block

    def _read(self, update: UpdateFile, start: int, stop: int, out: NDArray[Any]) -> None:
        with _opened(update.path) as file:
            for field, end, offset in zip(self.layout, self.ends, update.offsets, strict=True):
                begin = end - field.size
                first, last = max(start, begin), min(stop, end)
                if first < last:
                    place = offset + (first - begin) * KINDS[field.kind].itemsize
                    _read_numbers(file, field.kind, place, out[first - start : last - start])
        if not np.isfinite(out).all():
            raise Malformed(Verdict.NOT_FINITE, "holds a number that is not finite")


def _read_numbers(file: RawIOBase, kind: str, place: int, out: NDArray[Any]) -> None:
    """Read numbers of a kind from a place in a file, and write them to `out` in its type."""
    stored = out if KINDS[kind] == out.dtype else np.empty(len(out), dtype=KINDS[kind])
    left = stored.view(np.uint8)
    file.seek(place)
    while left.size:
        done = file.readinto(left.data) or 0
        if done == 0:
            raise Malformed(Verdict.WRONG_SHAPE, "has become shorter while it was read")
        left = left[done:]
    if kind == "BF16":  # the upper half of a float32
        out[:] = (stored.astype(np.uint32) << 16).view(np.float32)
    elif stored is not out:
        with np.errstate(invalid="ignore"):
            out[:] = stored


def write_update(path: Path, layout: Layout, numbers: NDArray[Any]) -> None:
    """Write an update in a layout, in the numbers' own type, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            if path.suffix == ".npy":
                description = {"descr": numbers.dtype.str, "fortran_order": False, "shape": layout[0].shape}
                np.lib.format.write_array_header_1_0(file, description)
            else:
                file.write(_safetensors_header(layout, numbers.dtype))
            numbers.tofile(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _safetensors_header(layout: Layout, dtype: np.dtype[Any]) -> bytes:
    entries, place = {}, 0
    for field in layout:
        after = place + field.size * dtype.itemsize
        entries[field.name] = {"dtype": NAMES[dtype], "shape": field.shape, "data_offsets": (place, after)}
        place = after
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header
