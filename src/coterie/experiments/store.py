"""What is kept of a run: plain files, complete after every trial, enough to run it again bit for bit."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import save

from coterie import __version__
from coterie.experiments.config import Config, as_toml
from coterie.experiments.summary import summarise
from coterie.experiments.trial import Row, TrialResult


def write_atomically(path: Path, content: bytes) -> None:
    """The whole file or none of it, also when the machine stops in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def as_csv(rows: Sequence[Row], header: bool) -> bytes:
    """Rows of one shape as CSV; floats keep every digit."""
    if not rows:
        return b""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


class RunFolder:
    """The folder of one run.

    config.toml, summary.json, trials.csv (a row per trial and method), rounds.csv (per round), audit.csv
    (per client), centres/TRIAL.safetensors (a tensor per method). Each finished trial is appended at once.
    """

    def __init__(self, path: str | Path, config: Config) -> None:
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f"{self.path}: exists already and is not an empty folder; choose another")
        self.config = config
        self.trials: list[TrialResult] = []

    def open(self) -> None:
        """Make the folder and write what is known before the first trial."""
        header = (
            f"Coterie {__version__}. The numbers of this folder come from this file:\n"
            f"coterie run {self.path / 'config.toml'}"
        )
        write_atomically(self.path / "config.toml", as_toml(self.config, header).encode())
        self._write_summary("running")

    def add(self, result: TrialResult) -> None:
        """Keep a finished trial."""
        named = [(method, found) for method, found in result.methods.items()]
        label = {"trial": result.trial}
        self._append("trials.csv", [{**label, "method": m, **found.metrics} for m, found in named])
        self._append("rounds.csv", [{**label, "method": m, **row} for m, found in named for row in found.rounds])
        self._append("audit.csv", [{**label, "method": m, **row} for m, found in named for row in found.audit])
        centres = save({method: found.centres.copy() for method, found in named})
        write_atomically(self.path / "centres" / f"{result.trial}.safetensors", centres)
        self.trials.append(result)
        self._write_summary("running")

    def close(self, status: str) -> None:
        """`complete` or `interrupted`."""
        self._write_summary(status)

    def _append(self, name: str, rows: list[Row]) -> None:
        path = self.path / name
        with path.open("ab") as stream:
            stream.write(as_csv(rows, header=stream.tell() == 0))

    def _write_summary(self, status: str) -> None:
        summary = {
            "version": __version__,
            "status": status,
            "seed": self.config.run.seed,
            "trials_wanted": self.config.run.trials,
            "trials_finished": sorted(trial.trial for trial in self.trials),
            "methods": summarise(self.trials),
        }
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
