"""How a network's work on many clients is cut into pieces, shared out over the cores, and kept for the next round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie._src.data.clients import Block

PIECE_BYTES = 1 << 28
"""What a piece may take on a CPU: samples, activations, and some copies of a model for each client."""
CUDA_SHARE = 16
"""On a GPU a piece may take one part of this many of the memory."""

Found = TypeVar("Found")


def room(device: torch.device) -> int:
    """Bytes for a piece; of all the memory and not of what is free, so that pieces are the same in every round."""
    if device.type != "cuda":
        return PIECE_BYTES
    return max(PIECE_BYTES, torch.cuda.mem_get_info(device)[1] // CUDA_SHARE)


def each(work: Callable[[Block], Found], pieces: Sequence[Block], beside: bool) -> list[Found]:
    """What `work` gives for every piece. beside: it does without the interpreter, so pieces run beside each other.

    A core for each: torch's own threads would share out every single operator and in between keep the cores busy with
    waiting. (Modules must not run so: `functional_call` puts its parameters into the one module that there is.)
    """
    cores = torch.get_num_threads()
    if cores == 1 or len(pieces) == 1 or not beside:
        return [work(piece) for piece in pieces]
    inference = torch.is_inference_mode_enabled()

    def alone(piece: Block) -> Found:  # a thread begins without the modes of its caller
        with torch.inference_mode(inference), torch.no_grad():
            return work(piece)

    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            return list(threads.map(alone, pieces))
    finally:
        torch.set_num_threads(cores)  # 1 would stay the number of all threads that begin later


class Kept:
    """What was made of a block's samples, for as long as they do not change."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, int, int], tuple[int, Any]] = {}

    def get(self, what: str, samples: Tensor, block: Block, make: Callable[[], Found]) -> Found:
        """samples: of which the block is a part; they count their changes."""
        version = 0 if samples.is_inference() else samples._version
        place = what, block.start, block.stop
        if place not in self.made or self.made[place][0] != version:
            self.made[place] = version, make()
        found: Found = self.made[place][1]
        return found
