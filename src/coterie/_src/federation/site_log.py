"""The log of a site: every question that it was asked, and what became of it. It never leaves the site."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from coterie._src.federation.messages import OWN_CHOICE, Question
from coterie._src.federation.site_policy import History, SiteFacts, rows_behind
from coterie._src.federation.site_reports import Request

LOG = "questions.sqlite"
"""The file of the log, beside the site's policy."""
ANSWERED = "answered"
"""The code of an answer; any other is that of a refusal."""
MAX_REFUSED = 10_000
"""Refused questions that are kept, the last ones. How many answers are kept is bounded by the policy."""
TRIMMED_EVERY = 100
MAX_TEXT = 500
HOUR = 3600.0

SCHEMA = """
create table if not exists questions (
    id integer primary key, time real not null, run text not null, kind text not null, round integer, label integer,
    part text, centres text, code text not null, samples integer, rows text, cuts text, cost real not null default 0,
    numbers integer, norm real, detail text not null default ''
)
"""


class Entry(NamedTuple):
    """A question in the log."""

    time: float
    run: str
    kind: str
    round: int | None
    label: int | None
    part: str
    centres: str  # their shape
    code: str
    samples: int | None  # behind the answer: the fewest behind any number of it
    cost: float  # of privacy: the squared μ of the answer
    numbers: int | None  # that left
    norm: float | None  # of what left
    detail: str  # for the administrator alone


class Totals(NamedTuple):
    """What the whole log says."""

    codes: dict[str, int]
    runs: int
    row_sets: int
    spent: float


class SiteLog:
    """The log in a file that only its owner may read; in memory without a file.

    Parameters
    ----------
    path
        The file; None: the log is kept as long as this object.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory = sqlite3.connect(":memory:", isolation_level=None) if path is None else None
        if self._memory is not None:
            self._memory.execute(SCHEMA)

    @contextlib.contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        """Hold the log alone, against other processes of the site too: between the history and the new entry."""
        if self._memory is not None:
            yield self._memory
            return
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # private from its first byte, and never through a link that somebody else has placed
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        os.chmod(self.path, 0o600)
        with contextlib.closing(sqlite3.connect(self.path, timeout=30.0, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            try:
                connection.execute(SCHEMA)
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def history(self, connection: sqlite3.Connection, run: str, rows: str, now: float) -> History:
        """Return what the rules need to know about earlier answers."""

        def one(condition: str, *values: Any, what: str = "count(*)") -> Any:
            asked = f"select {what} from questions where code = ? {condition}"
            return connection.execute(asked, (ANSWERED, *values)).fetchone()[0]

        cuts = connection.execute(
            "select distinct cuts from questions where code = ? and rows = ?", (ANSWERED, rows)
        ).fetchall()
        row_sets = connection.execute("select distinct rows from questions where code = ?", (ANSWERED,)).fetchall()
        return History(
            in_run=one("and run = ?", run),
            in_hour=one("and time > ?", now - HOUR),
            in_all=one(""),
            cuts=frozenset(cut for (listed,) in cuts for cut in json.loads(listed)),
            row_sets=frozenset(name for (name,) in row_sets),
            spent=float(one("", what="total(cost)")),
        )

    def add(
        self,
        connection: sqlite3.Connection,
        question: Question | Request | None,
        site: SiteFacts | None,
        *,
        run: str,
        now: float,
        code: str,
        cost: float = 0.0,
        detail: str = "",
    ) -> int:
        """Write down a question and what became of it, and return its number."""
        values: dict[str, Any] = {"time": now, "run": run, "kind": "?", "code": code, "cost": cost}
        values["detail"] = detail[:MAX_TEXT]
        if isinstance(question, Question):
            values |= {"kind": str(question.kind)[:20], "round": _storable(question.round)}
            values |= {"label": None if question.label == OWN_CHOICE else _storable(question.label)}
            values |= {"part": "" if question.part is None else f"{question.part[0]} of {question.part[1]}"[:60]}
        elif question is not None:
            values["kind"] = "report"
        if question is not None:
            values["centres"] = "x".join(str(length) for length in question.centres.shape)
        if question is not None and site is not None and code == ANSWERED:
            ranges = rows_behind(question, site.samples)
            values |= {"rows": site.rows, "cuts": json.dumps(sorted({cut for range in ranges for cut in range}))}
            values["samples"] = min(high - low for low, high in ranges)
        names = ", ".join(values)
        marks = ", ".join("?" for _ in values)
        added = connection.execute(f"insert into questions ({names}) values ({marks})", tuple(values.values()))
        if code != ANSWERED and added.lastrowid and added.lastrowid % TRIMMED_EVERY == 0:
            connection.execute(
                "delete from questions where id in "
                "(select id from questions where code != ? order by id desc limit -1 offset ?)",
                (ANSWERED, MAX_REFUSED),
            )
        return int(added.lastrowid or 0)

    def update(self, number: int, **changes: Any) -> None:
        """Change an entry."""
        with self.locked() as connection:
            assigned = ", ".join(f"{name} = ?" for name in changes)
            connection.execute(f"update questions set {assigned} where id = ?", (*changes.values(), number))

    def entries(self, last: int) -> list[Entry]:
        """Return the last entries, the newest last."""
        names = ", ".join(Entry._fields)
        with self.locked() as connection:
            found = connection.execute(f"select {names} from questions order by id desc limit ?", (last,)).fetchall()
        return [Entry(*row) for row in reversed(found)]

    def totals(self) -> Totals:
        """Return the counts by code, of runs and of sets of samples, and the privacy cost of all answers."""
        with self.locked() as connection:
            codes = Counter(dict(connection.execute("select code, count(*) from questions group by code").fetchall()))
            runs, rows, spent = connection.execute(
                "select count(distinct run), count(distinct rows), total(cost) from questions where code = ?",
                (ANSWERED,),
            ).fetchone()
        return Totals(dict(codes), int(runs), int(rows), float(spent))


def _storable(number: int) -> int | None:
    """The number, if SQLite can store it."""
    return number if -(2**63) <= number < 2**63 else None
