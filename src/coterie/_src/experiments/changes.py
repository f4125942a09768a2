"""What is different in a run that continues an earlier one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

NAMED = 5
"""The number of clients that a line names."""


@dataclass(frozen=True)
class ClusterChange:
    """What became of a cluster.

    Attributes
    ----------
    cluster : int
        Its number, which is that of the earlier run.
    status : str
        "same", "changed", "died", "new" or "split".
    moved_by : float
        How far the centre moved, in standard errors, as predictions measure it; NaN where it is not known.
    origin : int
        The cluster from which it split; -1 for none.
    """

    cluster: int
    status: str
    moved_by: float = math.nan
    origin: int = -1

    def __str__(self) -> str:
        if self.status == "split":
            return f"{self.cluster} split from {self.origin}"
        by = f" (by {self.moved_by:.1f} standard errors)" if self.status == "changed" else ""
        return f"{self.cluster} {self.status}{by}"


@dataclass(frozen=True)
class Changes:
    """What is different from the earlier run.

    Attributes
    ----------
    clusters : tuple of ClusterChange
        One for each cluster; a cluster keeps its number.
    moved : tuple of (str, int, int)
        The clients whose cluster is another one: name, earlier cluster, cluster.
    joined, left : tuple of str
        The clients that are new, and those that are missing.
    unfit : tuple of str
        The clients that fit none of the clusters.
    searched, restarted : bool
        Whether the clusters were searched for anew, and whether the new ones were better and so were taken.
    """

    clusters: tuple[ClusterChange, ...]
    moved: tuple[tuple[str, int, int], ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    unfit: tuple[str, ...]
    searched: bool
    restarted: bool

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, None for what is not known."""
        clusters = [
            asdict(one) | {"moved_by": None if math.isnan(one.moved_by) else one.moved_by} for one in self.clusters
        ]
        lists = {name: [*getattr(self, name)] for name in ("joined", "left", "unfit")}
        moved = [{"client": name, "from": before, "to": now} for name, before, now in self.moved]
        return {
            "clusters": clusters,
            "moved": moved,
            **lists,
            "searched": self.searched,
            "restarted": self.restarted,
        }

    def lines(self) -> list[str]:
        """At most six lines of text."""
        found = [f"clusters: {', '.join(map(str, self.clusters))}"]
        if self.moved:
            found.append(f"moved: {_listed([f'{name} ({before} to {now})' for name, before, now in self.moved])}")
        for title, names in (("joined", self.joined), ("left", self.left), ("in no cluster", self.unfit)):
            if names:
                found.append(f"{title}: {_listed(names)}")
        if self.searched:
            taken = "which are better" if self.restarted else "which are not better, so that the earlier ones stay"
            found.append(f"search: more clients than may be Byzantine fit no cluster; new clusters were found, {taken}")
        return found


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > NAMED else ""
    return f"{len(names)} ({', '.join(names[:NAMED])}{more})"
