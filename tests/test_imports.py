"""The straight line: imports point only to the left. And `import coterie` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import coterie

STATIONS = (
    "arrays", "kernels", "data", "tasks", "client", "attacks", "intake", "aggregators", "server", "init", "algorithms",
    "metrics", "theory", "simulation", "experiments", "batch", "plot", "studies", "report", "federation", "cli",
)  # fmt: skip
PACKAGE = Path(coterie.__file__).parent / "_src"


def station(module: str) -> str:
    return module.removeprefix("coterie._src.").split(".")[0]


def imported_stations(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {station(alias.name) for alias in node.names if alias.name.startswith("coterie._src.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "coterie._src":
            found |= {alias.name for alias in node.names} - {"__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie._src."):
            found.add(station(node.module or ""))
    return found


def test_every_module_is_a_station_and_imports_only_from_its_left() -> None:
    checked = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        assert name in STATIONS, f"{file.name}: a new station must be given its place in the line"
        for other in imported_stations(file):
            assert STATIONS.index(other) <= STATIONS.index(name), f"{file}: {name} may not import {other}"
            checked += 1
    assert checked > 30


def test_importing_coterie_loads_no_extra_and_takes_under_a_second() -> None:
    program = "import coterie, sys; print(sorted({'torch', 'flwr', 'ray', 'cupy', 'matplotlib'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)  # bytecode is written
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert time.perf_counter() - began < 1.0


def test_the_whole_core_loads_no_extra() -> None:
    names = ", ".join(
        f"coterie._src.{name}" for name in STATIONS if name not in ("batch", "federation")
    )  # torch, Flower: what they are for
    program = f"import {names}, sys; print(sorted({{'torch', 'flwr', 'ray', 'cupy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
