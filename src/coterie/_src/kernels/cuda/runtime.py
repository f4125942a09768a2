"""Common code of all CUDA kernels: their source is assembled, compiled with CuPy, and launched.

The source is in the `.cu` files of this folder, which are package data. A program is one file, or several one after the
other, and depends on parameters in two ways. A constant is a `#define` line before the source, which uses it by name.
Generated text, such as the comparators of a sorting network, replaces `$name` in the source (`string.Template`). The
comment at the top of a file lists the constants and the text that it expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from string import Template
from typing import Any

from coterie._src.arrays import Array

RESERVED_SHARED = 20 * 1024
"""Bytes of shared memory for a kernel's own arrays, beside what it asks for at its launch."""


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether CuPy is installed and finds a device."""
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.cuda.is_available())


def source(files: Sequence[str], constants: Mapping[str, object], **generated: object) -> str:
    """The program of these `.cu` files, with a `#define` line per constant and the generated text inserted."""
    folder = resources.files(__package__)
    text = "\n".join(folder.joinpath(file).read_text(encoding="utf-8") for file in files)
    defined = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return defined + Template(text).substitute(generated)


def kernel(program: str, name: str) -> Any:
    """The function `name` of a program; CuPy compiles it at the first launch and keeps the result on disk.

    CuPy appends -ftz=true to any options: float32 numbers below 1.2e-38 in size count as 0.
    """
    import cupy

    return cupy.RawKernel(program, name, options=("--std=c++14",))


def launch(kernel: Any, blocks: tuple[int, ...], threads: int, *arguments: Any, shared: int = 0) -> None:
    """Start a kernel on the device of its first argument, a tensor, in torch's current stream there.

    Tensors are passed by address; of numbers, `int` is a `long long` and `np.int32` an `int`. shared: bytes of shared
    memory per block.
    """
    passed = tuple(a.data_ptr() if hasattr(a, "data_ptr") else a for a in arguments)
    with _stream_of(arguments[0]):
        if shared:
            kernel.max_dynamic_shared_size_bytes = max(kernel.max_dynamic_shared_size_bytes, shared)
        kernel(blocks, (threads,), passed, shared_mem=shared)


@contextmanager
def _stream_of(tensor: Array) -> Iterator[None]:
    """CuPy works on the tensor's device, in torch's current stream there."""
    import cupy
    import torch

    current = torch.cuda.current_stream(tensor.device)
    adopt = getattr(cupy.cuda.Stream, "from_external", None)  # CuPy 14; before it, by the stream's address
    stream = adopt(current) if adopt else cupy.cuda.ExternalStream(current.cuda_stream, tensor.device.index)
    with cupy.cuda.Device(tensor.device.index), stream:
        yield


@lru_cache(maxsize=16)
def max_shared_bytes(device: Any, reserved: int = RESERVED_SHARED) -> int:
    """The largest shared memory, in bytes, that a block may request on this device beside the reserved part."""
    import cupy

    return int(cupy.cuda.Device(device.index).attributes["MaxSharedMemoryPerBlockOptin"]) - reserved
