"""The audit of a federation as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie._src.plot.style import new_figure, save, styled

MAX_NAMED_CLIENTS = 40
"""The names of more clients have no room on the axis."""


@styled
def audit_map(rows: Sequence[dict[str, Any]], path: str | Path, names: Mapping[str, str] | None = None) -> None:
    """Clients by rounds of a federation: how far out each stood (dark is far); red: refused, white: silent or
    blocked.

    names: of the nodes, where they are known.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    clients, rounds = max(row["client"] for row in rows) + 1, max(row["round"] for row in rows)
    away = np.full((clients, rounds), np.nan)
    refused = []
    for row in rows:
        place = row["client"], row["round"] - 1
        away[place] = np.nan if row["distance"] is None else max(row["distance"], 0.1)
        if row["verdict"] not in ("accepted", "silent", "blocked"):
            refused.append(place)
    figure = new_figure(4 + min(9.0, 0.12 * rounds), 1.6 + min(12.0, 0.23 * clients))
    axes = figure.add_subplot()
    axes.grid(visible=False)
    extent = (0.5, rounds + 0.5, clients - 0.5, -0.5)
    drawn = axes.imshow(away, cmap="Blues", norm=LogNorm(0.3, 10.0), aspect="auto", interpolation="none", extent=extent)
    if refused:
        axes.scatter([r + 1 for _, r in refused], [c for c, _ in refused], marker="s", s=12, color="tab:red")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    known = {row["client"]: (names or {}).get(row["node"], str(row["client"])) for row in rows}
    if clients <= MAX_NAMED_CLIENTS:
        axes.set_yticks(range(clients), [known.get(client, "") for client in range(clients)], parse_math=False)
    bar = figure.colorbar(drawn, label="median distances\nfrom the cluster's median", format="{x:g}")
    bar.set_ticks([0.3, 1.0, 3.0, 10.0], minor=False)
    bar.set_ticks([], minor=True)
    save(figure, path)
