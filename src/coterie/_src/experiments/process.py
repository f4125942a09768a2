"""Which process writes a file of progress, so that another one can find out whether it still runs."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict


class Note(BaseModel):
    """A part of a file of progress; what another version has added is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Process(Note):
    """A process, so that another one can find out whether it still runs."""

    pid: int
    host: str  # a digest of the name of the machine
    began: str = ""  # by the clock of the machine; empty: not known

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process of this machine with a number."""
        return cls(pid=pid, host=_host(), began=_state_and_beginning(pid)[1])

    def has_ended(self) -> bool | None:
        """Whether the process has ended; None where that cannot be told from here."""
        if self.host != _host() or os.name != "posix" or self.pid <= 0:
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # it belongs to somebody else
        state, began = _state_and_beginning(self.pid)
        return state == "Z" or (bool(began and self.began) and began != self.began)


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _state_and_beginning(pid: int) -> tuple[str, str]:
    """The state of a process and when it began, where the system says so (Linux); else two empty texts."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
