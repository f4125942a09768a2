"""The `coterie` command for tests: in this process where the process is not the point, else as a real one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

from coterie._src.cli import entry

COTERIE = [sys.executable, "-m", "coterie"]
"""The command as a process of its own."""
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}

Done = subprocess.CompletedProcess[str]


def coterie(*arguments: str, cwd: Path) -> Done:
    """Run the command in this process, as the console script does, and return its exit code and output."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        patch.object(sys, "argv", ["coterie", *arguments]),
        warnings.catch_warnings(),
    ):
        try:
            entry()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def coterie_process(*arguments: str, cwd: Path, before: str = "") -> Done:
    """Run the command as a process of its own; before: a shell command such as a limit, which goes before it."""
    command = ["bash", "-c", f'{before} exec "$0" "$@"', *COTERIE, *arguments] if before else [*COTERIE, *arguments]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
