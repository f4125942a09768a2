"""Which node is which client: an algorithm knows clients by their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class ClientNumbers:
    """Numbers for nodes. A node keeps its number while it is away, until another node needs it.

    Parameters
    ----------
    max_clients
        How many numbers there are; also the number of clients that an algorithm counts with, where a number without a
        node is a silent client.
    nodes
        The node of each number, from an earlier run; None where the number is free.
    """

    def __init__(self, max_clients: int, nodes: Iterable[int | None] = ()) -> None:
        if max_clients < 1:
            raise ValueError(f"max_clients must be at least 1, got {max_clients}")
        self.max_clients = max_clients
        self.nodes: list[int | None] = [*nodes][:max_clients]
        self.nodes += [None] * (max_clients - len(self.nodes))
        self.without_number: set[int] = set()

    def assign(self, present: Iterable[int], name: Callable[[int], str] = str) -> dict[int, int]:
        """Return {node: its number} for the nodes that are present.

        A new node gets the number of an absent node of the same name, as of a site that has changed its key, or the
        first free number or, where none is free, that of a node that is not present. A new node for which there is no
        number is added to `without_number`.
        """
        here = sorted(set(present))
        for node in [node for node in here if node not in self.nodes]:
            free = [i for i, known in enumerate(self.nodes) if known is None]
            absent = [i for i, known in enumerate(self.nodes) if known is not None and known not in here]
            same = [i for i in absent if name(self.nodes[i] or 0) == name(node)]
            number = next(iter(same or free or absent), None)
            if number is None:
                self.without_number.add(node)
            else:
                self.nodes[number] = node
                self.without_number.discard(node)
        return {node: self.nodes.index(node) for node in here if node in self.nodes}
