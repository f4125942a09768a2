"""What the tests of the page share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie._src.experiments.process import Process


@pytest.fixture(scope="session")
def gone() -> Process:
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        return Process.of(child.pid)
