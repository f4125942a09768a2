"""Experiments beyond the paper's: one grid and one table for each question."""

from __future__ import annotations

from coterie._src.studies.beyond.dimension import by_dimension
from coterie._src.studies.beyond.grids import grids
from coterie._src.studies.beyond.report import beyond_report
from coterie._src.studies.information_limit import DRAWS, QUICK_DRAWS, information_limit_report
from coterie._src.studies.study import Study, on_cpu_only

STUDY = Study(
    name="beyond",
    summary="the method `coterie` under every attack, with unknown k, on tables; aggregators in up to 5,000 dimensions",
    grids=lambda options: grids(options.trials, options.quick),
    reports={
        "beyond.md": lambda rows, options: beyond_report(rows),
        "information_limit.md": lambda rows, options: information_limit_report(QUICK_DRAWS if options.quick else DRAWS),
    },
    figures={"dimension.png": lambda rows, path, options: by_dimension(rows["dimension"], path)},
    quick_trials=2,
    check=on_cpu_only,
    report_early=True,
    prints_tables=False,
)
