"""The files of a federation: the state after the last round, and the audit of all rounds.

One safetensors file, replaced atomically, holds the whole state; one SQLite file holds the audit, a row per client and
round. The rows of a round are written before its state: a server that is killed in between repeats the round and
replaces its rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie._src.algorithms import State
from coterie._src.arrays import as_numpy
from coterie._src.experiments.database import connect_read_only
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.optimisers import Moments
from coterie._src.server import ServerMemory

STATE, AUDIT = "state.safetensors", "audit.sqlite"
CLIENTS, SUMMARY = "clients.csv", "evaluation.json"
"""The files of an evaluation in the folder of a federation."""
VERSION = 1
"""Of the form of the state; 0: of version 0.1.0, which did not say so."""
ARRAYS = ("centres", "fixed", "curvatures", "weights")
COLUMNS = (
    "round", "client", "node", "verdict", "label", "loss", "margin", "trimmed", "distance", "samples", "seconds",
    "fault", "bytes",
)  # fmt: skip


class Saved(NamedTuple):
    """A federation after a finished round."""

    state: State
    rng: Generator
    nodes: list[int | None]  # the node of each client
    identity: str = ""  # of the problem and the method; another configuration may not go on from this state


class Checkpoint:
    """The folder of a federation; it is made where it does not exist."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, saved: Saved, rows: Sequence[dict[str, Any]] = ()) -> None:
        """Write the audit of a finished round, then the state after it; a ValueError where the disk is full."""
        try:
            self._save(saved, rows)
        except (OSError, sqlite3.OperationalError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"{self.folder}: round {saved.state.round} cannot be written ({reason}); make room, and start again: "
                "it goes on after the round before"
            ) from None

    def _save(self, saved: Saved, rows: Sequence[dict[str, Any]]) -> None:
        marks = ", ".join("?" * len(COLUMNS))
        with self._audit() as audit, audit:
            audit.executemany(
                f"INSERT OR REPLACE INTO replies VALUES ({marks})",
                [[row.get(name) for name in COLUMNS] for row in rows],
            )
        state = saved.state
        arrays = {name: as_numpy(getattr(state, name)) for name in ARRAYS if getattr(state, name) is not None}
        if state.memory.moments is not None:
            moments = state.memory.moments._asdict()
            arrays |= {f"moments.{name}": as_numpy(value) for name, value in moments.items()}
        if state.memory.aggregator is not None:
            arrays["memory"] = as_numpy(state.memory.aggregator)
        if state.memory.shared is not None:
            arrays["memory.shared"] = as_numpy(state.memory.shared)
        metadata = {
            "version": VERSION,
            "round": state.round,
            "progress": [None if np.isinf(state.smallest_move) else state.smallest_move, state.rounds_since],
            "rng": saved.rng.bit_generator.state,
            "nodes": saved.nodes,
            "identity": saved.identity,
        }
        content = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, {"coterie": json.dumps(metadata)})
        write_atomically(self.folder / STATE, content)

    def load(self) -> Saved | None:
        """Return the state after the last finished round, or None where there is none."""
        file = self.folder / STATE
        if not file.is_file():
            return None
        try:
            with safe_open(file, "np") as opened:
                metadata = json.loads((opened.metadata() or {})["coterie"])
                arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            if (version := metadata.get("version", 0)) > VERSION:
                raise ValueError(f"a later version of Coterie has written it, in form {version}; update Coterie")
            rng = default_rng()
            rng.bit_generator.state = metadata["rng"]
            smallest, since = metadata["progress"] if "progress" in metadata else metadata["calm"]  # as in 0.1.0
            moments = None
            if "moments.first" in arrays:
                moments = Moments(*(arrays[f"moments.{name}"] for name in Moments._fields))
            state = State(
                metadata["round"],
                arrays["centres"],
                arrays.get("fixed"),
                arrays.get("curvatures"),
                arrays.get("weights"),
                np.inf if smallest is None else smallest,
                since,
                ServerMemory(moments, arrays.get("memory"), arrays.get("memory.shared")),
            )
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"{file}: is not the state of a federation ({error})") from None
        return Saved(state, rng, list(metadata["nodes"]), str(metadata.get("identity", "")))

    def _audit(self) -> closing[sqlite3.Connection]:
        audit = sqlite3.connect(self.folder / AUDIT)
        audit.execute("PRAGMA journal_mode = WAL")
        audit.execute(f"CREATE TABLE IF NOT EXISTS replies ({', '.join(COLUMNS)}, PRIMARY KEY (round, client))")
        known = {row[1] for row in audit.execute("PRAGMA table_info(replies)")}
        for name in COLUMNS:
            if name not in known:  # written by an earlier version; a new column comes last in both
                audit.execute(f"ALTER TABLE replies ADD COLUMN {name}")
        return closing(audit)

    def rows(self) -> list[dict[str, Any]]:
        """Return the audit so far."""
        return audit_of(self.folder)


def audit_of(folder: Path) -> list[dict[str, Any]]:
    """Return the audit so far in the folder of a federation, without keeping its server from writing."""
    if not (folder / AUDIT).is_file():
        return []
    try:
        with closing(connect_read_only(folder / AUDIT)) as audit:
            if not audit.execute("SELECT count(*) FROM sqlite_master WHERE name = 'replies'").fetchone()[0]:
                return []
            known = {row[1] for row in audit.execute("PRAGMA table_info(replies)")}
            columns = ", ".join(name if name in known else f"NULL AS {name}" for name in COLUMNS)  # of an older version
            found = audit.execute(f"SELECT {columns} FROM replies ORDER BY round, client").fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{folder / AUDIT}: cannot be read as the audit of a federation ({error})") from None
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]
