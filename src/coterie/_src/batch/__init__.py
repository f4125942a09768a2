"""Many trials of one configuration at once on one device: Algorithm 1 with a batch axis.

The same mathematics as `coterie.algorithms` on tensors (trials, methods, …), for replies that are well-formed by
construction: no network, no intake, no audit. On a CUDA device a round is three kernels and no host round-trip.
"""

from coterie._src.batch.descent import Batch, Lane, Response, descend, respond

__all__ = ["Batch", "Lane", "Response", "descend", "respond"]
