"""Many trials of one configuration at once on one device: Algorithm 1 with a batch axis.

The same mathematics as `coterie._src.algorithms` on tensors (trials, methods, …), for replies that are well-formed by
construction: no network, no intake, no audit. On a CUDA device a round is three kernels, and the host waits for none.
"""

from coterie._src.batch.descent import Batch, BatchedMethod, Response, descend, respond

__all__ = ["Batch", "BatchedMethod", "Response", "descend", "respond"]
