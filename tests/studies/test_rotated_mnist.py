"""The study of networks on rotated MNIST: its grids, its report, its figure."""

from __future__ import annotations

from pathlib import Path

from coterie._src.experiments.summary import METRICS
from coterie._src.studies.rotated_mnist import (
    ATTACKS,
    NO_ATTACK,
    accuracies,
    attack_of,
    grids,
    rotated_mnist_report,
)


def test_the_report_of_rotated_mnist(tmp_path: Path) -> None:
    """All methods under all attacks of three settings; a collapse is counted."""
    asked = grids(tmp_path, trials=2)
    found = {}
    for name, grid in asked.items():
        found[name] = [
            {
                "problem.clients": made.problem.clients,
                "problem.samples": made.problem.samples,  # type: ignore[union-attr]
                "problem.byzantine": made.problem.byzantine,  # type: ignore[union-attr]
                "attack.kind": made.attack.kind,
                "attack.scale": made.attack.scale,
                "method": method,
                "seed": 0,
                "trial": trial,
                **dict.fromkeys(METRICS.names, 0.95),
                "ari": 0.7 if trial and method == "ifca" else 1.0,
            }
            for made in grid.configs
            for method in made.methods
            for trial in range(2)
        ]
    assert {attack_of(row) for row in found["attacked"]} == set(ATTACKS) - {NO_ATTACK}
    report = rotated_mnist_report(found)
    assert report.count("### m = 1200, n = 200, 2 trials") == 3
    made = asked["momentum"].configs
    assert {(c.problem.clients, c.algorithm.optimiser) for c in made} == {(1200, "momentum")}
    assert [c.attack.kind for c in made if c.problem.byzantine] == ["sign-flip", "alie", "label-flip"]  # type: ignore[union-attr]
    assert "| ifca | 95.00 ± 0.00, 0.85, 1 of 2 collapsed |" in report
    accuracies([*found["honest"], *found["attacked"]], tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
