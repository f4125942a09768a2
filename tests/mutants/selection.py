"""Which tests concern a file of the core, the most direct first, and which of its mutants are equivalent."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"

TESTS: dict[str, tuple[str, ...]] = {
    "theory.py": ("tests/test_theory.py", "tests/test_theory_formulas.py"),
    "server.py": ("tests/test_server.py", "tests/algorithms/test_descent.py"),
    "client.py": ("tests/test_client.py",),
    "tasks/base.py": ("tests/test_client.py", "tests/tasks/test_base.py"),
    "intake.py": ("tests/test_intake.py",),
    "metrics.py": ("tests/test_metrics.py",),
    "step_sizes.py": ("tests/test_step_sizes.py", "tests/test_server.py", "tests/algorithms/test_descent.py"),
    "membership.py": ("tests/test_membership.py",),
    "algorithms/descent.py": ("tests/algorithms/test_descent.py", "tests/test_client.py"),
    "algorithms/convergence.py": ("tests/algorithms/test_convergence.py", "tests/algorithms/test_descent.py"),
    "algorithms/newton.py": ("tests/algorithms/test_newton.py", "tests/algorithms/test_coterie.py"),
    "aggregators/base.py": ("tests/aggregators/test_base.py", "tests/aggregators/test_coordinatewise.py"),
    "aggregators/coordinatewise.py": ("tests/aggregators/test_coordinatewise.py", "tests/aggregators/test_base.py"),
    "aggregators/distance.py": ("tests/aggregators/test_distance.py", "tests/aggregators/test_base.py"),
    "aggregators/preaggregation.py": ("tests/aggregators/test_preaggregation.py", "tests/aggregators/test_base.py"),
    "aggregators/spectral.py": ("tests/aggregators/test_spectral.py", "tests/aggregators/test_base.py"),
    "kernels/order_statistics/reference.py": (
        "tests/kernels/test_order_statistics.py",
        "tests/aggregators/test_coordinatewise.py",
    ),
    "init/leverage.py": ("tests/init/test_leverage.py", "tests/init/test_conditioning.py"),
    "init/robust.py": ("tests/init/test_robust.py", "tests/init/test_asking.py"),
    "init/asking.py": ("tests/init/test_asking.py", "tests/init/test_robust.py"),
    "init/conditioning.py": ("tests/init/test_conditioning.py", "tests/init/test_rare_axes.py"),
}


def concerning(file: str) -> tuple[str, ...]:
    """The tests of a file, and the examples in its own docstrings."""
    return f"src/coterie/_src/{file}", *TESTS[file]


@cache
def listed() -> tuple[dict[str, str], ...]:
    """The equivalent mutants: file, function, before, after, reason."""
    return tuple(tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", ()))


def equivalents(file: str) -> set[tuple[str, str, str]]:
    """(function, before, after) of the equivalent mutants of a file."""
    return {(entry["function"], entry["before"], entry["after"]) for entry in listed() if entry["file"] == file}
