"""Server-side programs: Algorithm 1, Three-Stage, and the points of reference."""

from coterie._src.algorithms.base import Algorithm, RoundInfo, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.algorithms.references import LocalMinimisers, Oracle
from coterie._src.algorithms.three_stage import ThreeStage

__all__ = ["Algorithm", "ClusteredDescent", "LocalMinimisers", "Oracle", "RoundInfo", "State", "ThreeStage"]
