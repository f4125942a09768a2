"""Runs the tests of a module on a mutant of it: in a forked process whose import of the module is changed.

Nothing is written beside the sources. The references of all kernels are used, so that nothing is compiled.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from mutants.selection import ROOT

PACKAGE = ROOT / "src" / "coterie" / "_src"
SETTINGS = {
    "COTERIE_KERNELS": "reference",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# what the tests load beside Coterie, once for all mutants
LOADED = (
    "hypothesis", "matplotlib", "mpmath", "narwhals", "numpy", "pandas", "pydantic", "pytest", "rich", "safetensors",
    "scipy.optimize", "scipy.special", "scipy.stats", "sklearn.base", "torch", "typer",
)  # fmt: skip
PYTEST = ("-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
PASSED, FAILED = 0, (1, 2, 3)  # of pytest: tests fail, the collection fails, an error inside


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from another tree than that of its file."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _Finder:
    """Finds one module, with its changed loader."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Changed(name, spec.origin, self.tree)
        spec.cached = None
        return spec


def module_name(file: str) -> str:
    """Of a file below `coterie/_src`."""
    parts = Path(file).with_suffix("").parts
    return ".".join(("coterie", "_src", *(part for part in parts if part != "__init__")))


def prepare() -> None:
    """Loads what all runs share; Coterie itself is loaded by each of them."""
    os.environ.update(SETTINGS)
    for name in LOADED:
        importlib.import_module(name)
    assert not any(name.split(".")[0] == "coterie" for name in sys.modules)


@dataclass
class Run:
    """The tests of a mutant. limit: the seconds after which it counts as noticed, since the tests do not end."""

    process: int
    began: float
    limit: float
    output: Path


def start(file: str, tree: ast.Module, tests: Sequence[str], limit: float, output: Path) -> Run:
    """The tests on the tree in place of the file, stopping at the first that fails."""
    process = os.fork()
    if process:
        return Run(process, time.monotonic(), limit, output)
    code = 70
    try:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(ROOT)
        sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
        sys.meta_path.insert(0, _Finder(module_name(file), tree))  # type: ignore[arg-type]  # what is called is there
        import pytest

        code = int(pytest.main([*PYTEST, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finished(run: Run) -> bool | None:
    """Whether the mutant was noticed; None while its tests run."""
    process, status = os.waitpid(run.process, os.WNOHANG)
    if not process:
        if time.monotonic() - run.began < run.limit:
            return None
        os.kill(run.process, signal.SIGKILL)
        os.waitpid(run.process, 0)
        return True
    code = os.waitstatus_to_exitcode(status)
    if code == PASSED:
        return False
    if code > 0 and code not in FAILED:
        raise RuntimeError(f"the tests could not be run: exit status {code}\n{run.output.read_text()}")
    return True  # by a test that fails, or by a signal


def run_all(jobs: Iterator[Callable[[int], Run]], processes: int, done: Callable[[int, bool, float], None]) -> None:
    """Starts every job with its number, at most so many at once, and tells `done` whether it was noticed, and when."""
    running: dict[int, Run] = {}
    numbered = enumerate(jobs)
    left = True
    try:
        while left or running:
            while left and len(running) < processes:
                number, job = next(numbered, (-1, None))
                if job is None:
                    left = False
                else:
                    running[number] = job(number)
            for number, run in list(running.items()):
                del running[number]
                if (noticed := finished(run)) is None:
                    running[number] = run
                else:
                    done(number, noticed, time.monotonic() - run.began)
            time.sleep(0.02)
    finally:
        for run in running.values():
            os.kill(run.process, signal.SIGKILL)
            os.waitpid(run.process, 0)
