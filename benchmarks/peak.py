"""The most memory of a process while something runs."""

from __future__ import annotations

import threading


class Peak:
    """The most memory of this process's own while it holds, beyond what it had before, seen every few milliseconds."""

    def __enter__(self) -> Peak:
        self.before, self.most, self.over = _own(), 0, threading.Event()
        self.watch = threading.Thread(target=self._look)
        self.watch.start()
        return self

    def _look(self) -> None:
        while not self.over.wait(0.005):
            self.most = max(self.most, _own() - self.before)

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.watch.join()


def _own() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
