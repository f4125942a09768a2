"""Which tests concern a file of the core, the most direct first, and which of its mutants are equivalent."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"

TESTS: dict[str, tuple[str, ...]] = {
    "theory.py": ("test_theory.py", "test_theory_formulas.py"),
    "server.py": ("test_server.py", "algorithms/test_descent.py"),
    "client.py": ("test_client.py",),
    "tasks/base.py": ("test_client.py", "tasks/test_base.py"),
    "intake.py": ("test_intake.py",),
    "metrics.py": ("test_metrics.py",),
    "step_sizes.py": ("test_step_sizes.py", "test_server.py"),
    "membership.py": ("test_membership_by_hand.py", "test_membership.py"),
    "algorithms/descent.py": (
        "algorithms/test_questions.py",
        "algorithms/test_convergence.py",
        "algorithms/test_descent.py",
    ),
    "algorithms/convergence.py": ("algorithms/test_convergence.py",),
    "algorithms/newton.py": ("algorithms/test_newton.py", "algorithms/test_questions.py"),
    "aggregators/base.py": ("aggregators/test_by_hand.py", "aggregators/test_base.py"),
    "aggregators/coordinatewise.py": ("aggregators/test_by_hand.py", "aggregators/test_coordinatewise.py"),
    "aggregators/distance.py": (
        "aggregators/test_by_hand.py",
        "aggregators/test_distance.py",
        "aggregators/test_base.py",
    ),
    "aggregators/preaggregation.py": (
        "aggregators/test_by_hand.py",
        "aggregators/test_preaggregation.py",
        "aggregators/test_base.py",
    ),
    "aggregators/spectral.py": ("aggregators/test_spectral_by_hand.py", "aggregators/test_spectral.py"),
    "kernels/order_statistics/reference.py": ("aggregators/test_by_hand.py", "kernels/test_order_statistics.py"),
    "init/leverage.py": ("init/test_leverage.py",),
    "init/robust.py": ("init/test_by_hand.py", "init/test_robust.py"),
    "init/asking.py": ("init/test_by_hand.py", "init/test_asking.py"),
    "init/axes.py": (
        "init/test_conditioning_by_hand.py",
        "init/test_conditioning.py",
        "init/test_rare_axes.py",
    ),
    "init/conditioning.py": (
        "init/test_conditioning_by_hand.py",
        "init/test_conditioning.py",
        "init/test_rare_axes.py",
    ),
}
"""Below `tests`."""


def concerning(file: str) -> tuple[str, ...]:
    """The tests of a file, and the examples in its own docstrings."""
    return f"src/coterie/_src/{file}", *(f"tests/{test}" for test in TESTS[file])


@cache
def listed() -> tuple[dict[str, str], ...]:
    """The equivalent mutants: file, function, before, after, reason."""
    return tuple(tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", ()))


def equivalents(file: str) -> set[tuple[str, str, str]]:
    """(function, before, after) of the equivalent mutants of a file."""
    return {(entry["function"], entry["before"], entry["after"]) for entry in listed() if entry["file"] == file}
