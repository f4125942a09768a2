"""Figures of clusters: how many clients they have, and who moves between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coterie._src.report.html.figures.style import capitalised, cluster_class, cluster_name
from coterie._src.report.html.markup import Markup, element, joined
from coterie._src.report.html.svg import WIDTH, Scale, at, figure, text

MAX_COLUMNS = 9
"""The rounds that a flow shows, at most."""
MAX_MOVES = 300
"""The changes of cluster that are listed, at most."""


class Member(NamedTuple):
    """A client in the first trial. byzantine: None where that is not known."""

    name: str
    cluster: int
    byzantine: bool | None = None


def cluster_bars(members: Sequence[Member], title: str, when: str, name: str, noun: str = "clients") -> Markup:
    """The clients in every cluster, and how many of them are Byzantine; when: for the text, such as "at the end"."""
    numbers = sorted({one.cluster for one in members})
    known = any(one.byzantine is not None for one in members)
    sizes = {j: [one for one in members if one.cluster == j] for j in numbers}
    longest = max(len(own) for own in sizes.values())
    left, step, top = 92.0, 28.0, 6.0
    scale = Scale(0, longest, left, WIDTH - 230)
    parts: list[object] = []
    trends = []
    for i, (j, own) in enumerate(sizes.items()):
        y, bad = top + i * step, sum(bool(one.byzantine) for one in own)
        honest, end = scale(len(own) - bad), scale(len(own))
        label = f"{len(own)} {noun}" + (f", {bad} Byzantine ({bad / len(own):.0%})" if known else "")
        trends.append(f"{cluster_name(j)} {label}")
        parts += [
            text(left - 10, y + 16, cluster_name(j), "end"),
            element("rect", x=at(left), y=at(y + 3), width=at(honest - left), height=18,
                    class_=f"bar {cluster_class(j)}"),
            element("rect", x=at(honest), y=at(y + 3), width=at(end - honest), height=18,
                    class_=f"hatched {cluster_class(j)}") if bad else None,
            text(end + 8, y + 16, label),
        ]  # fmt: skip
    words = f"{capitalised(noun)} per cluster {when}: {'; '.join(trends)}." + (
        " The open part of a bar is the Byzantine clients." if known else ""
    )
    return figure(name, title, top + step * len(sizes) + 4, joined(*parts), words)


class Move(NamedTuple):
    """From this round on, a client is in this cluster."""

    round: int
    client: str
    cluster: int


def flow(method: str, moves: Sequence[Move], last: int, name: str = "flow") -> Markup | None:
    """Which clients are in which cluster from round to round; last: the last round."""
    rounds = sorted({one.round for one in moves})
    if not rounds:
        return None
    if len(rounds) == 1:
        words = f"Assignments: no client changed its cluster after its first choice with {method}, in {last} rounds."
        return element("p", words)
    shown = rounds if len(rounds) <= MAX_COLUMNS - 1 else _spread_rounds(rounds, moves)
    shown = sorted({*shown, max(last, rounds[-1])})
    where = {t: _assignment(moves, t) for t in shown}
    clusters = sorted({cluster for own in where.values() for cluster in own.values()})
    movers: set[str] = set()
    changes = []
    before: dict[str, int] = {}
    for one in sorted(moves, key=lambda move: move.round):
        if one.client in before and before[one.client] != one.cluster:
            changes.append((one, before[one.client]))
            movers.add(one.client)
        before[one.client] = one.cluster
    total = len(before)
    height, top, gap = max(260.0, 24.0 * len(clusters)), 22.0, 14.0
    across = [70 + i * (WIDTH - 170) / max(1, len(shown) - 1) for i in range(len(shown))]
    sizes = {t: Counter(own.values()) for t, own in where.items()}
    # a cluster stands at the same place in all columns, with room for the largest of its sizes
    room = {j: max(sizes[t][j] for t in shown) for j in clusters}
    unit = (height - gap * (len(clusters) - 1)) / max(1, sum(room.values()))
    base, y = {}, top
    for j in clusters:
        base[j] = y
        y += unit * room[j] + gap
    parts: list[object] = []
    for i, t in enumerate(shown):
        parts.append(text(across[i], top - 8, f"round {t}" if i == 0 else t, "middle", "tick"))
        if i + 1 < len(shown):
            parts += _bands(where[t], where[shown[i + 1]], clusters, base, unit, across[i] + 5, across[i + 1] - 5,
                            (t, shown[i + 1]))  # fmt: skip
        for j in clusters:
            size = sizes[t][j]
            if size:
                parts.append(
                    element("rect", x=at(across[i] - 5), y=at(base[j]), width=10, height=at(max(1.0, unit * size)),
                            class_=f"bar {cluster_class(j)}", data_tip=f"round {t}: {cluster_name(j)}, {size} clients")
                )  # fmt: skip
    final = sizes[shown[-1]]
    for j in clusters:
        middle = base[j] + unit * sizes[shown[0]][j] / 2
        parts.append(text(across[0] - 12, middle + 4, f"{sizes[shown[0]][j]}", "end", "tick"))
        parts.append(text(across[-1] + 12, base[j] + unit * final[j] / 2 + 4, f"{cluster_name(j)}: {final[j]}"))
    words = (
        f"In which cluster the server counted the clients in the first trial of {method}, in rounds in which that "
        "changed and the last one; a Byzantine client may claim any cluster. "
        + (f"{len(movers)} of {total} clients changed their cluster, {len(changes)} times in all; a darker band is "
           "of clients that moved." if changes else f"None of {total} clients changed its cluster after its first "
           "choice.")
    )  # fmt: skip
    listed = None
    if changes:
        rows = [
            element("li", f"round {one.round}: ", element("bdi", one.client), f", {origin} to {one.cluster}")
            for one, origin in changes[:MAX_MOVES]
        ]
        more = len(changes) - MAX_MOVES
        listed = element(
            "details",
            element("summary", "Who changed when"),
            element("ul", *rows, element("li", f"and {more} more") if more > 0 else None, class_="lines"),
        )
    return figure(name, f"Assignments from round to round, {method}", y + 6, joined(*parts), words, listed)


def _spread_rounds(rounds: Sequence[int], moves: Sequence[Move]) -> list[int]:
    """The first round and those with the most changes."""
    count = Counter(one.round for one in moves)
    return sorted([rounds[0], *sorted(rounds[1:], key=lambda t: (-count[t], t))[: MAX_COLUMNS - 2]])


def _assignment(moves: Sequence[Move], until: int) -> dict[str, int]:
    return {one.client: one.cluster for one in sorted(moves, key=lambda move: move.round) if one.round <= until}


def _bands(
    before: Mapping[str, int], after: Mapping[str, int], clusters: Sequence[int], base: Mapping[int, float],
    unit: float, x1: float, x2: float, rounds: tuple[int, int],
) -> list[Markup]:  # fmt: skip
    """The bands between two columns, one per pair of clusters."""
    pairs: dict[tuple[int, int], list[str]] = {}
    for client, cluster in before.items():
        pairs.setdefault((cluster, after.get(client, cluster)), []).append(client)
    leaving, coming = dict(base), dict(base)
    found = []
    for a in clusters:
        for b in clusters:
            names = pairs.get((a, b))
            if not names:
                continue
            width, y1, y2 = unit * len(names), leaving[a], coming[b]
            leaving[a], coming[b] = y1 + width, y2 + width
            half = (x1 + x2) / 2
            shape = (
                f"M{at(x1)} {at(y1)}C{at(half)} {at(y1)} {at(half)} {at(y2)} {at(x2)} {at(y2)}"
                f"L{at(x2)} {at(y2 + width)}C{at(half)} {at(y2 + width)} {at(half)} {at(y1 + width)} "
                f"{at(x1)} {at(y1 + width)}Z"
            )
            who = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            tooltip = (
                f"{len(names)} stay in {cluster_name(a)}" if a == b else
                f"{len(names)} from {cluster_name(a)} to {cluster_name(b)} between rounds {rounds[0]} and {rounds[1]}: "
                f"{who}"
            )  # fmt: skip
            found.append(element("path", d=shape, class_=f"{'stays' if a == b else 'moves'} {cluster_class(a)}",
                                 data_tip=tooltip))  # fmt: skip
    return found
