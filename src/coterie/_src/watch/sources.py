"""The folders of runs and sweeps while they are under way, as snapshots."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from coterie._src.experiments.database import ARCHIVE, FILE, Database
from coterie._src.experiments.process import Note
from coterie._src.experiments.progress import MAX_LINES, PROGRESS, TRIALS, Progress, TrialProgress
from coterie._src.experiments.toml import read_config
from coterie._src.report.html.markup import Markup
from coterie._src.report.html.run_page import methods_table
from coterie._src.report.html.sweep_page import results_table
from coterie._src.report.run_record import COLUMNS, SUMMARY, RunRecord, Summary, as_number, read_rows
from coterie._src.watch.snapshot import Bar, Cluster, Kind, Refused, Remembered, Rounds, Snapshot, State, Suspect
from coterie._src.watch.snapshot import state_of as state_while_running

MAX_FILES = 16
"""The most processes whose trials are shown."""
MAX_BYTES = 1 << 22
"""The most bytes of a file of progress."""
N = TypeVar("N", bound=Note)


def read_note(file: Path, kind: type[N]) -> tuple[N, float] | None:
    """A file of progress and when it was written; None where there is none. ValueError for any other file."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return kind.model_validate(json.loads(content)), file.stat().st_mtime
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{file}: {'.'.join(map(str, first['loc']))} {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is no file of progress ({error})") from None


class TrialsSource:
    """What runs and sweeps have in common: files of progress."""

    kind: Kind
    advice = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _snapshot(self, title: str, otherwise: State) -> Snapshot:
        """What the files of progress say; otherwise: the state where there are none."""
        trials = self._trials()
        rounds = [_rounds(note) for note, _ in trials]
        audited = next((note for note, _ in trials if note.audit), None)
        found = Snapshot(
            kind=self.kind,
            title=title,
            state=otherwise,
            rounds=rounds,
            audit_of="" if audited is None else _rounds(audited).title,
            suspects=[] if audited is None else [Suspect(**one.model_dump()) for one in audited.audit],
        )
        read = read_note(self.folder / PROGRESS, Progress)
        if read is None:
            return found
        if read[0].status == "running" and read[0].process.has_ended():
            read = read_note(self.folder / PROGRESS, Progress) or read  # it may have noted its end in between
        progress, written = read
        updated = max([written, *(when for _, when in trials)])
        state: State = progress.status
        if state == "running":
            state = state_while_running(progress.process, time.time() - updated)
        return replace(
            found,
            state=state,
            updated=updated,
            bars=_bars(progress),
            left=progress.left if state in ("running", "stale") else None,
            at_most=progress.at_most,
            advice=self.advice if state in ("gone", "interrupted", "failed") else "",
        )

    def _trials(self) -> list[tuple[TrialProgress, float]]:
        """What the processes do that run trials."""
        files = sorted((self.folder / TRIALS).glob("[0-9]*.json"))[:MAX_FILES]
        notes = [note for file in files if (note := read_note(file, TrialProgress)) is not None]
        return sorted(notes, key=lambda note: (note[0].trial, note[0].method))


def _bars(progress: Progress) -> list[Bar]:
    bars = [Bar("trials", progress.finished, progress.trials)]
    if progress.max_rounds is not None and progress.status == "running":
        bars.append(Bar("rounds, at most", min(progress.rounds, progress.max_rounds), progress.max_rounds))
    return bars


def _rounds(note: TrialProgress) -> Rounds:
    losses = (*note.losses, *([None] * (len(note.sizes) - len(note.losses))))
    return Rounds(
        note.method,
        note.trial,
        note.round,
        note.rounds,
        tuple(Cluster(size, loss) for size, loss in zip(note.sizes, losses, strict=False)),
        {"accepted": note.accepted, "refused": note.refused, "silent": note.silent} if note.sizes else None,
        tuple(Refused(one.client, one.reason.replace("_", " ")) for one in note.refusals),
        note.movement,
        note.process.pid,
    )


class RunSource(TrialsSource):
    """The folder of `coterie run`."""

    kind = "run"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.summary = Remembered(self._read_summary, folder / SUMMARY)
        self.config = Remembered(self._read_config, folder / "config.toml")
        self.audit = Remembered(self._read_audit, folder / "audit.csv")

    def read(self) -> Snapshot:
        """What is known now."""
        summary, (title, methods) = self.summary(), self.config()
        ended: dict[str, State] = {"complete": "complete", "interrupted": "interrupted", "failed": "failed"}
        found = replace(self._snapshot(title, ended.get(summary.status, "unknown")), methods=methods)
        if summary.methods:
            found = replace(found, results=methods_table(RunRecord(self.folder, summary, None, "")))
        if not found.suspects and found.state not in ("running", "stale"):
            audit_of, suspects = self.audit()
            found = replace(found, audit_of=audit_of, suspects=suspects)
        return found

    def _read_summary(self) -> Summary:
        try:
            return Summary.model_validate_json((self.folder / SUMMARY).read_bytes())
        except ValidationError as error:
            raise ValueError(f"{self.folder / SUMMARY}: {error.errors()[0]['msg']}") from None

    def _read_config(self) -> tuple[str, list[str]]:
        """One line about the problem, and the methods."""
        try:
            config = read_config(self.folder / "config.toml")
            return config.problem.title(), config.methods
        except (ValueError, OSError):
            return self.folder.resolve().name, []

    def _read_audit(self) -> tuple[str, list[Suspect]]:
        """Of the first finished trial and the first method that clusters the clients, those that stand out most."""
        rows = read_rows(self.folder / "audit.csv", *COLUMNS["audit"])
        trial = min((int(row["trial"]) for row in rows), default=0)
        clustered = [row for row in rows if int(row["trial"]) == trial and int(row["cluster"]) >= 0]
        method = clustered[0]["method"] if clustered else ""
        found = [
            Suspect(
                row["client"],
                int(row["cluster"]),
                _share(row.get("refused")),
                _share(row.get("silent")),
                _share(row.get("trimmed")),
                reasons=row.get("reasons", ""),
            )
            for row in rows
            if row["method"] == method and int(row["trial"]) == trial
        ]
        found.sort(key=lambda one: (-one.refused, -one.trimmed))
        return f"{method}, trial {trial}", found[:MAX_LINES]


def _share(text: str | None) -> float:
    value = as_number(text)
    return value if 0 <= value <= 1 else 0.0


class SweepSource(TrialsSource):
    """The folder of `coterie sweep`."""

    kind = "sweep"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / FILE
        self.advice = f"coterie sweep --resume --out {shlex.quote(str(folder))} runs what is left."
        files = (self.file, self.file.with_name(f"{FILE}-wal"), folder / ARCHIVE)
        self.results = Remembered(self._read_results, *files)

    def read(self) -> Snapshot:
        """What is known now."""
        results, count = self.results()
        found = replace(self._snapshot(f"Sweep {self.folder.resolve().name}", "unknown"), results=results)
        return found if found.bars else replace(found, bars=[Bar("results", count, count)])

    def _read_results(self) -> tuple[Markup | None, int]:
        """The table of the results so far, and how many there are."""
        database = Database(self.folder)
        try:
            rows = database.rows() if database.keys() else []
        finally:
            database.close()
        return results_table(rows) if rows else None, len(rows)
