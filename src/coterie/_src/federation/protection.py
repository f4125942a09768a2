"""How many Byzantine sites a federation can stand, and how many replies it must have for that."""

from __future__ import annotations

from typing import NamedTuple

from coterie._src.experiments.config import Config
from coterie._src.experiments.method_setting import max_byzantine_count
from coterie._src.experiments.methods import METHODS
from coterie._src.theory import breakdown_limit, worst_contamination


class Protection(NamedTuple):
    """What follows from the bound on the Byzantine sites.

    All of them may claim the same cluster. So a centre moves only on `quorum` = 2b + 1 replies, of which b are fewer
    than half, and a round needs as many replies for each cluster.
    """

    sites: int
    clusters: int
    allowed: int  # b, by algorithm.max_byzantine
    asked: int  # sites that a round asks

    @property
    def tolerable(self) -> int:
        """The largest b for which the honest sites of k clusters of equal size are a quorum: (m − b)/k ≥ 2b + 1.

        >>> [Protection(sites, 2, 1, sites).tolerable for sites in (3, 6, 7, 12)]
        [0, 0, 1, 2]
        """
        return max(0, (self.sites - self.clusters) // (2 * self.clusters + 1))

    @property
    def quorum(self) -> int:
        """The fewest replies that move a centre."""
        return 2 * self.allowed + 1

    @property
    def min_replies(self) -> int:
        """The fewest accepted replies of a round that counts."""
        return min(self.clusters * self.quorum, self.asked)

    @property
    def sites_needed(self) -> int:
        """The fewest sites that can stand the allowed Byzantine ones: k(2b + 1) honest ones, and these."""
        return self.clusters * self.quorum + self.allowed

    def check(self) -> None:
        """Raise a ValueError where the federation is too small for its bound."""
        if self.allowed > self.tolerable:
            raise ValueError(
                f"sites: {self.sites} in {self.clusters} clusters can stand {_sites(self.tolerable)}, and "
                f"algorithm.max_byzantine allows {self.allowed}: name at least {self.sites_needed}, or lower the bound "
                "(0: all sites are trusted)"
            )

    def lines(self, trim: float) -> list[str]:
        """What the federation can stand, for whoever sets it up; trim: of a trimmed mean."""
        if not self.allowed:
            found = [
                f"Can stand no Byzantine site: algorithm.max_byzantine allows none of {self.sites}, and one that is "
                "may move a model anywhere.",
            ]
            if self.tolerable:
                found.append(f"With algorithm.max_byzantine = {self.tolerable / self.sites:.2g} it could stand "
                             f"{_sites(self.tolerable)}.")  # fmt: skip
            return found
        share = (self.sites - self.allowed) / self.clusters / self.sites
        worst = worst_contamination(self.allowed / self.sites, share)
        moved = [name for name in ("trimmed-mean", "mean") if worst > breakdown_limit(name, trim)]
        return [
            f"Can stand {_sites(self.tolerable)} of {self.sites}, if the {self.clusters} clusters are of about equal "
            f"size; algorithm.max_byzantine allows {self.allowed}.",
            f"So a model changes only on {self.quorum} replies from its cluster, and a round counts only with "
            f"{self.min_replies} in all. With fewer the run waits, and then stops without models.",
            f"If the Byzantine sites all claim one cluster they are {100 * worst:.0f} % of it"
            + (f", by which a {' or a '.join(moved)} CAN BE MOVED ANYWHERE." if moved else "."),
        ]


def _sites(count: int) -> str:
    return f"{count or 'no'} Byzantine site{'' if count in (0, 1) else 's'}"


def protection(config: Config, sites: int, method: str = "coterie") -> Protection:
    """The protection of a federation with so many places for sites."""
    bound = config.algorithm.max_byzantine
    assert bound != "auto", "which a federation refuses"
    one = METHODS[method].one_centre or config.algorithm.clusters == "auto"  # an unknown number of clusters counts as 1
    clusters = 1 if one else config.problem.clusters
    asked = max(1, round(config.algorithm.participation * sites))
    return Protection(sites, clusters, max_byzantine_count(bound, sites), asked)
