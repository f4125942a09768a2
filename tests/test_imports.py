"""Imports point only to the left, kernels stand apart, and `import coterie` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

STATIONS = (
    "arrays", "registry", "coordinates", "packed", "kernels", "data", "tasks", "client", "personal", "attacks",
    "intake", "network", "aggregators", "sharding", "projections", "optimisers", "server", "step_sizes", "init",
    "algorithms", "diagnostics", "metrics", "membership", "suspicion", "theory", "evaluation", "simulation",
    "experiments", "batch", "fitting", "estimators", "plot", "studies", "report", "tracking", "federation", "watch",
    "cli", "deprecated",
)  # fmt: skip
PACKAGE = Path(coterie.__file__).parent / "_src"
MODULES = sorted(PACKAGE.rglob("*.py"))
KERNELS = sorted((PACKAGE / "kernels").rglob("*.py"))


def station(module: str) -> str:
    return module.removeprefix("coterie._src.").split(".")[0]


def imports(file: Path) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import statement, wherever it stands; name: None where the module itself is imported."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def imported_stations(file: Path) -> set[str]:
    found = set()
    for module, name in imports(file):
        if module == "coterie._src" and name is not None:
            found.add(name)
        elif module.startswith("coterie._src."):
            found.add(station(module))
    return found


def test_every_module_is_a_station_and_imports_only_from_its_left() -> None:
    checked = 0
    for file in MODULES:
        name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        assert name in STATIONS, f"{file.name}: a new station must be given its place in the line"
        for other in imported_stations(file):
            assert STATIONS.index(other) <= STATIONS.index(name), f"{file}: {name} may not import {other}"
            checked += 1
    assert checked > 30
    assert all((PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists() for name in STATIONS)


# --- kernels apart ------------------------------------------------------------------------------------


def test_compilers_are_used_in_kernels_alone() -> None:
    """No module above them imports numba, llvmlite or cupy, compiles a function, or holds CUDA source."""
    compilers = {"numba", "llvmlite", "cupy"}
    seen = set()
    for file in MODULES:
        used = {module.split(".")[0] for module, _ in imports(file)} & compilers
        seen |= used
        if file in KERNELS:
            continue
        assert not used, f"{file}: {used} belongs into kernels"
        assert "coterie._src.kernels.compiling" not in {module for module, _ in imports(file)}, file
        text = file.read_text(encoding="utf-8")
        assert "__global__" not in text, f"{file}: CUDA belongs into kernels/cuda"
        assert "@njit" not in text, file
    assert seen == {"numba", "cupy"}


def test_cuda_source_is_in_cu_files() -> None:
    assert all("__global__" not in file.read_text(encoding="utf-8") for file in KERNELS)
    programs = list((PACKAGE / "kernels" / "cuda").glob("*.cu"))
    assert any("__global__" in program.read_text(encoding="utf-8") for program in programs)


def test_kernels_import_only_arrays_and_kernels() -> None:
    for file in KERNELS:
        assert imported_stations(file) <= {"arrays", "kernels"}, file


def compiled_names(tree: ast.Module) -> set[str]:
    """The functions of a file that are decorated by `compiled`, or by a partial application of it."""
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("compiled" in {n.id for n in ast.walk(d) if isinstance(n, ast.Name)} for d in node.decorator_list)
    }


def calls_of_other_files(files: dict[str, str]) -> list[str]:
    """By module name and text: the compiled functions that use a compiled function, or a module, of another file."""
    trees = {module: ast.parse(text) for module, text in files.items()}
    compiled = {module: compiled_names(tree) for module, tree in trees.items()}
    wrong = []
    for module, tree in trees.items():
        foreign = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    inside = alias.name in compiled.get(node.module or "", set())
                    if inside or f"{node.module}.{alias.name}" in trees:
                        foreign.add(alias.asname or alias.name)
            elif isinstance(node, ast.Import):
                foreign |= {alias.asname for alias in node.names if alias.name in trees and alias.asname}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in compiled[module]:
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & foreign
                wrong += [f"{module}.{node.name}: {name}" for name in sorted(used)]
    return wrong


def test_no_compiled_function_calls_one_of_another_file() -> None:
    """Numba keeps machine code as long as the file of a function is unchanged, whatever happens to another file."""
    files = {
        ".".join(file.relative_to(PACKAGE.parent.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file.read_text(encoding="utf-8")
        for file in KERNELS
    }
    assert sum(len(compiled_names(ast.parse(text))) for text in files.values()) > 10
    assert calls_of_other_files(files) == []


@pytest.mark.parametrize(
    ("imported", "used", "wrong"),
    [
        ("from a import f", "f(x)", ["b.g: f"]),
        ("from a import f as h", "h(x)", ["b.g: h"]),
        ("import a as module", "module.f(x)", ["b.g: module"]),
        ("from a import NUMBER", "NUMBER", []),
        ("from a import f", "x", []),
    ],
)
def test_a_call_of_another_file_is_noticed(imported: str, used: str, wrong: list[str]) -> None:
    begin = "from coterie._src.kernels.compiling import compiled\n"
    called = begin + "NUMBER = 3\n@partial(compiled, reorder=True)\ndef f(x):\n    return x\n"
    calling = begin + f"{imported}\n@compiled\ndef g(x):\n    return {used}\n"
    assert calls_of_other_files({"a": called, "b": calling}) == wrong


# --- light imports ------------------------------------------------------------------------------------


def test_importing_coterie_loads_no_extra_and_takes_under_a_second() -> None:
    heavy = {"torch", "sklearn", "flwr", "ray", "cupy", "matplotlib", "starlette", "uvicorn"}
    program = f"import coterie, sys; print(sorted({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)  # bytecode is written
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert time.perf_counter() - began < 1.0


def test_the_whole_core_loads_no_extra_and_no_compiler() -> None:
    core = STATIONS[: STATIONS.index("batch")]  # which needs torch
    names = ", ".join(f"coterie._src.{name}" for name in core)
    heavy = {"torch", "sklearn", "flwr", "ray", "cupy", "numba", "llvmlite", "matplotlib"}
    program = f"import {names}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_what_follows_the_core_loads_no_extra() -> None:
    extra = {"federation", "estimators"}  # which need Flower and scikit-learn
    following = [name for name in STATIONS[STATIONS.index("batch") + 1 :] if name not in extra]
    names = ", ".join(f"coterie._src.{name}" for name in following)
    heavy = {"torch", "sklearn", "flwr", "ray", "cupy", "starlette", "uvicorn", "mlflow", "tensorboard"}
    program = f"import {names}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_architecture_shows_this_order() -> None:
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    line = text[text.index("    arrays → ") : text.index("deprecated\n") + len("deprecated")]
    assert tuple(name.strip() for name in line.split("→")) == STATIONS
