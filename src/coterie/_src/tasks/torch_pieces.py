"""Computation of a network on many clients in pieces that fit into memory, on several cores, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie._src.data.clients import Block

PIECE_BYTES = 1 << 28
"""The memory of a piece on a CPU: samples, activations, and some copies of the model per client."""
CUDA_SHARE = 16
"""On a GPU a piece may use the memory divided by this number."""

Found = TypeVar("Found")


def piece_bytes(device: torch.device) -> int:
    """The memory of a piece; from the total memory, not the free memory, so that pieces are the same in every round."""
    if device.type != "cuda":
        return PIECE_BYTES
    return max(PIECE_BYTES, torch.cuda.mem_get_info(device)[1] // CUDA_SHARE)


def map_pieces(work: Callable[[Block], Found], pieces: Sequence[Block], parallel: bool) -> list[Found]:
    """The results of `work` for all pieces. parallel: in threads, for work that releases the interpreter's lock.

    Each piece uses one core: torch's own threads would split every single operator, and wait actively between them.
    Modules must not run in parallel, since `functional_call` changes the one module that all threads share.
    """
    cores = torch.get_num_threads()
    if cores == 1 or len(pieces) == 1 or not parallel:
        return [work(piece) for piece in pieces]
    inference = torch.is_inference_mode_enabled()

    def in_thread(piece: Block) -> Found:  # a thread does not inherit the modes of its caller
        with torch.inference_mode(inference), torch.no_grad():
            return work(piece)

    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            return list(threads.map(in_thread, pieces))
    finally:
        torch.set_num_threads(cores)  # else later threads would start with 1


class BlockCache:
    """Values computed from a block's samples, valid while the samples do not change."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, int, int], tuple[int, Any]] = {}

    def get(self, what: str, samples: Tensor, block: Block, make: Callable[[], Found]) -> Found:
        """The cached value, or that of `make()`. samples: the tensor of all samples, whose version counts changes."""
        version = 0 if samples.is_inference() else samples._version
        key = what, block.start, block.stop
        if key not in self.made or self.made[key][0] != version:
            self.made[key] = version, make()
        found: Found = self.made[key][1]
        return found
