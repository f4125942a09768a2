"""How far long work is, where the output is no terminal: now and then a line on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta

FIRST_SECONDS = 10.0
"""The seconds to the first line; shorter work says nothing."""
LEAST_DONE = 0.01
"""The share of the work from which a time is estimated; the first rounds of all also compile the kernels."""
GROWTH = 1.2
"""The times of two lines are at least so far apart, as a factor: a long run has a log that can be read."""


class ProgressLines:
    """A line about the work that is done, at growing intervals.

    Parameters
    ----------
    unit : what is counted, such as "trials".
    total : how many there are.
    done : how many are done already.
    clock : seconds.

    Examples
    --------
    >>> seconds = iter([0.0, 5.0, 20.0])
    >>> lines = ProgressLines("trials", 40, 10, clock=lambda: next(seconds))
    >>> lines.line(12), lines.line(20)
    ('', '20 of 40 trials, 0.5 a second, about 0:00:40 left')
    """

    def __init__(self, unit: str, total: int, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.unit, self.total, self.begun_with, self.clock = unit, total, done, clock
        self.began, self.next = clock(), FIRST_SECONDS

    def line(self, done: int) -> str:
        """What to say now; "" for nothing."""
        elapsed = self.clock() - self.began
        if elapsed < self.next:
            return ""
        self.next = GROWTH * elapsed
        rate = (done - self.begun_with) / elapsed
        if done - self.begun_with < max(1, LEAST_DONE * self.total):
            return f"{done} of {self.total} {self.unit}"
        left = timedelta(seconds=round((self.total - done) / rate))
        speed = f"{rate:.{1 if rate < 10 else 0}f}"
        return f"{done} of {self.total} {self.unit}, {speed} a second, about {left} left"

    def show(self, done: int) -> None:
        """Print the line, if it is time for one."""
        if line := self.line(done):
            print(line, file=sys.stderr, flush=True)
