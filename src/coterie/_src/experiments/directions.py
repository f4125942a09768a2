"""The clients' updates at one common point, along the two directions in which they differ most: for a picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie._src.algorithms import State
from coterie._src.arrays import Floats, as_numpy, namespace
from coterie._src.intake import admit
from coterie._src.simulation import SimulatedNetwork

MAX_SIDE = 2000
"""With more clients and more parameters than this, the directions would take too long."""
CAP = 3.0
"""Updates farther than this many median distances from the median update are moved nearer, to this distance."""
LARGEST = 1e150
"""Larger numbers, whose squares could overflow, count as this one."""


def leading_directions(network: SimulatedNetwork, state: State) -> Floats | None:
    """(m, 2): the clients' updates at the mean of the centres, along the two directions of their largest spread.

    All clients are asked at the same point, where the updates of different clusters differ. An update far from the
    coordinate-wise median is moved towards it first (`CAP`), since Byzantine updates would else be all that is seen.
    NaN for a client whose reply is refused; None where there is nothing to see, or too much to compute. In the server's
    coordinates where it has some. Asked after the last round; no method depends on the answers.
    """
    xp = namespace(state.centres)
    point = xp.mean(state.centres, axis=0, keepdims=True)
    coordinates = None if state.conditioning is None else state.conditioning.coordinates
    if min(network.count, int(point.shape[1])) > MAX_SIDE or not bool(xp.all(xp.isfinite(point))):
        return None
    replies = replace(network, cache=None).gradients(point, state.round, coordinates=coordinates)
    accepted = admit(replies, clients=network.count, clusters=1, round=state.round, like=point)
    if len(accepted.clients) < 3:
        return None
    rows = as_numpy(accepted.updates)
    rows = rows.astype(np.float64) if coordinates is None else coordinates.updates(rows)
    found = np.full((network.count, 2), np.nan)
    found[accepted.clients] = two_directions(rows)
    return found


def two_directions(rows: Floats) -> Floats:
    """(rows, 2): the rows along their two leading directions, about their median, none farther than `CAP`.

    >>> two_directions(np.array([[2.0, 0, 0], [-2, 0, 0], [0, 1, 0], [0, -1, 0]])).round(6).tolist()
    [[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    """
    rows = np.clip(np.nan_to_num(rows), -LARGEST, LARGEST)
    offsets = rows - np.median(rows, axis=0)
    distances = np.linalg.norm(offsets, axis=1)
    reach = CAP * float(np.median(distances))
    if reach == 0:  # at least half of the rows are the same
        reach = float(distances.max()) or 1.0
    offsets /= np.maximum(distances, reach)[:, None]  # at most 1 long
    tall = rows.shape[1] <= rows.shape[0]
    values, vectors = np.linalg.eigh(offsets.T @ offsets if tall else offsets @ offsets.T)
    values, vectors = np.maximum(values[::-1][:2], 0.0), vectors[:, ::-1][:, :2]
    found = offsets @ vectors if tall else vectors * np.sqrt(values)
    if found.shape[1] < 2:  # one parameter
        found = np.column_stack([found, np.zeros(len(found))])
    largest = np.abs(found).argmax(axis=0)
    signs = np.where(found[largest, [0, 1]] < 0, -1.0, 1.0)
    projected: Floats = found * signs * reach
    return projected
